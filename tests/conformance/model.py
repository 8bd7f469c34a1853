"""The oracle of the stories: what was sent on which connection, and what may be received of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.transport import Barrier, Close, Flush, Mark, VnodeData
from penstock.transport.carriers import carrier_of
from tests.conformance.batches import number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from penstock.transport import Origin, Received
    from penstock.transport.discovery import Address
    from tests.conformance.fabric import Fabric


def identity(frame: object) -> int:
    """The number that the story gave a frame."""
    match frame:
        case VnodeData():
            return number_of(frame)
        case Barrier():
            return frame.checkpoint
        case Flush():
            return frame.cycle
        case Mark():
            return frame.key
    raise AssertionError(frame)


class Dials:
    """Counts the connections that each origin opened. What it sends goes over its latest."""

    def __init__(self, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: defaultdict[Origin, int] = defaultdict(int)
        carrier: Any = carrier_of(fabric.kind.carrier)
        dial = carrier.dial

        def counted(address: Address, timing: Any, connection: Any) -> Any:
            link = dial(address, timing, connection)
            self.counts[connection._origin] += 1
            return link

        monkeypatch.setattr(carrier, "dial", counted)


@dataclass
class Model:
    """A receiver, as simple as can be. It checks each taking as it happens, and all at the end."""

    sent: dict[tuple[Origin, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By origin and the count of its connection, in order."""
    cut: set[tuple[Origin, int]] = field(default_factory=set)
    """Connections that were ended while frames may have been on their way."""
    staged: dict[int, Received] = field(default_factory=dict)
    """Frames that were put back, by the receiver's number."""
    hand: dict[int, Received] = field(default_factory=dict)
    done: list[Received] = field(default_factory=list)
    _first_taken: dict[tuple[int, str | None], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _seen: set[int] = field(default_factory=set)

    def on_drained(
        self, taken: Iterable[Received], chosen: Callable[[str | None], bool] = lambda _: True
    ) -> None:
        """Some stages were drained: all that had been put back must be among it."""
        taken = list(taken)
        order = [each.number for each in taken]
        assert order == sorted(set(order)), "a drain is in the order of arrival"
        assert all(chosen(each.stage) for each in taken), "a drain takes only what it names"
        missed = [each for each in self.staged.values() if chosen(each.stage)]
        assert {each.number for each in missed} <= set(order), "what was put back is lost"
        for received in taken:
            self._on_taken(received)

    def on_received(self, received: Received | None) -> None:
        """One frame was received, the oldest."""
        if received is None:
            assert not self.staged, "there was a frame that had been put back"
            return
        assert all(received.number <= number for number in self.staged), "there was an older one"
        self._on_taken(received)

    def put_back(self, received: Received) -> None:
        del self.hand[received.number]
        self.staged[received.number] = received

    def keep(self, received: Received) -> None:
        """It will not be put back any more."""
        del self.hand[received.number]
        self.done.append(received)

    def _on_taken(self, received: Received) -> None:
        assert received.number not in self.hand, "a frame came twice"
        before = self.staged.pop(received.number, None)
        if before is not None:
            assert received is before
        else:
            assert received.number not in self._seen, "a frame came twice"
            self._seen.add(received.number)
            if not isinstance(received.frame, Close):
                key = received.connection, received.stage
                self._first_taken[key].append(identity(received.frame))
        self.hand[received.number] = received

    def check_end(self, dials: Dials) -> None:
        """Everything was taken, and all connections have ended."""
        assert not self.staged
        assert not self.hand
        of_connection: dict[tuple[Origin, int], list[Received]] = defaultdict(list)
        for received in sorted(self.done, key=lambda each: each.number):
            of_connection[received.origin, received.connection].append(received)
        for origin, count in dials.counts.items():
            connections = sorted(each for at, each in of_connection if at == origin)
            assert len(connections) == count, "each connection ends with a Close"
            for epoch, connection in enumerate(connections, 1):
                self._check_connection(origin, epoch, of_connection[origin, connection])

    def _check_connection(self, origin: Origin, epoch: int, received: list[Received]) -> None:
        *frames, last = received
        sent = self.sent[origin, epoch]
        found = [identity(each.frame) for each in frames]
        assert isinstance(last.frame, Close), "nothing comes after a Close"
        assert found == sent[: len(found)], "what came is the beginning of what was sent"
        if (origin, epoch) not in self.cut:
            assert found == sent, "what was not cut came whole"
            assert not last.frame.fault
        stages = {each.stage for each in frames}
        for stage in stages:
            # However it was taken, a stage was first seen in its order.
            of_stage = [identity(each.frame) for each in frames if each.stage == stage]
            assert self._first_taken[last.connection, stage] == of_stage
