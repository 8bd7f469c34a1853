"""In Spark's source process: the outlet of a shuffle that the driver's process has."""

from __future__ import annotations

import threading
from multiprocessing.connection import Client
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.shuffle.resume import NOTHING
from penstock.spark.cluster.server import Answer, Call, ClusterClosedError, Opening

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from penstock.shuffle.outlet import Share
    from penstock.shuffle.resume import Epoch

_FAMILY: Final = "AF_UNIX"


class RemoteOutlet:
    """Does what an `Outlet` does, from its making to `close`."""

    def __init__(
        self, address: str, feed: str, options: Mapping[str, str], *, is_new: bool
    ) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._epochs: dict[int, Epoch] = {0: NOTHING}
        """Their frontiers can be large, and never change."""
        self._has_target = False
        try:
            self._connection: Connection[Any, Any] = Client(address, _FAMILY)
        except OSError as error:
            raise ConfigurationError(
                f"no cluster answers at {address} ({error}): the options are of a program that is "
                "over. Take them from `cluster.feed(...)` of the one that runs"
            ) from error
        self._exchange(Opening(feed, is_new, dict(options)))

    def wait_epoch(self, after: int, seconds: float) -> Epoch | None:
        return self._known(self._ask("wait_epoch", after, seconds))

    def newest(self) -> Epoch:
        newest: Epoch = self._ask("newest")
        self._known(newest)
        return newest

    def numbers(self, after: int) -> list[int]:
        numbers: list[int] = self._ask("numbers", after)
        return numbers

    def epoch(self, number: int) -> Epoch:
        if number not in self._epochs:
            self._known(self._ask("epoch", number))
        return self._epochs[number]

    def shares(self) -> list[Share]:
        shares: list[Share] = self._ask("shares")
        return shares

    def consumed(self, number: int) -> None:
        self._epochs = {one: epoch for one, epoch in self._epochs.items() if one >= number}
        self._ask("consumed", number)

    def set_target(self) -> None:
        self._ask("set_target")
        self._has_target = True

    @property
    def has_target(self) -> bool:
        return self._has_target

    def has_reached(self, epoch: Epoch) -> bool:
        return bool(self._ask("has_reached", epoch.number))

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self._ask("figures")
        return figures

    def close(self) -> None:
        self._connection.close()

    def _known(self, epoch: Epoch | None) -> Epoch | None:
        if epoch is not None:
            self._epochs[epoch.number] = epoch
        return epoch

    def _ask(self, method: str, *arguments: float) -> Any:
        return self._exchange(Call(method, arguments))

    def _exchange(self, said: Opening | Call) -> Any:
        with self._lock:
            try:
                self._connection.send_bytes(said.encode())
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                raise ClusterClosedError(self._feed) from error
        if isinstance(answer, Answer):
            return answer.value
        raise answer.error
