"""Carriers: three ways to move frames, one contract.

A carrier is a module with `listen`, for a receiver, and `dial`, for a sender. It moves frames in
order and reports the end of a connection; everything else (who may speak, credits, order of
opening) is decided outside of it, once for all carriers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.connection import Connection
    from penstock.transport.discovery import Address
    from penstock.transport.frames import Close, Frame
    from penstock.transport.security import Security
    from penstock.transport.stream import Stream
    from penstock.transport.timing import Timing

    OpenStream = Callable[[int | None, Callable[[Frame], None], Callable[[], None]], Stream]
    """Makes the receiver's end of a new connection, from the member that the certificate proves,
    a way to reply that does not block, and a way to cut the connection from any thread."""


class Link(Protocol):
    """The sender's end of a connection, to be fed by a Connection."""

    encodes: bool
    """Whether it settles what a frame really costs, later: else what is reserved must be exact."""

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        """Takes a frame over, to be sent after those before it. Does not wait for the peer."""

    def close(self, close: Close) -> None:
        """Sends what was offered, then the Close. Does not wait for that."""

    @property
    def progress(self) -> int:
        """A number that rises with what the peer takes."""

    def wait_ended(self, seconds: float) -> bool:
        """After a close: whether the peer has ended its side, as it does when it has read all."""

    def cut(self) -> None:
        """Ends at once."""


class Listener(Protocol):
    """The receiver's end of all connections."""

    @property
    def address(self) -> Address: ...

    def close(self) -> None:
        """Stops listening and ends every connection, letting each write its last words."""


class Carrier(Protocol):
    def listen(
        self, host: str, port: int, security: Security, timing: Timing, open_stream: OpenStream
    ) -> Listener: ...

    def dial(self, address: Address, timing: Timing, connection: Connection) -> Link:
        """Connects. Raises OSError, or PeerRefusedError, when that fails."""


CARRIERS: Final = ("local", "tcp", "grpc")
CLOSE_SECONDS_MAX: Final = 1.0
"""For the last words of a connection. A peer that reads is done in a millisecond."""


def carrier_of(name: str) -> Carrier:
    """The carrier of an address. Only what is used is imported: gRPC alone takes a while."""
    if name not in CARRIERS:
        raise ConfigurationError(
            f"there is no carrier {name!r}; choose one of {', '.join(CARRIERS)}"
        )
    return cast(Carrier, importlib.import_module(f"penstock.transport.carriers.{name}"))
