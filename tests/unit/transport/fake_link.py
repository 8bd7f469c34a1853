"""A connection whose link leads nowhere, for tests of the sender's end."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.transport import connection as connection_module
from penstock.transport.connection import Connection
from penstock.transport.credit import CONTROL_FRAMES_MAX, QUEUED_BYTES_MAX
from penstock.transport.discovery import Address
from penstock.transport.frames import (
    FRAME_COST_BYTES,
    Close,
    Credit,
    Flushed,
    Frame,
    Hello,
    Origin,
    VnodeData,
)
from penstock.transport.security import Security, Token
from penstock.transport.stages import OutboundStage
from penstock.transport.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import pytest

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
PEER = 2
TOKEN = Token("sixteen letters!")
ADDRESS = Address("tcp", "nowhere", 1)
HELLO = Hello(PEER, 0, TOKEN.for_member(PEER), 40_000)
FULL = Credit(40_000, CONTROL_FRAMES_MAX)
ROWS = pa.record_batch([pa.array(range(QUEUED_BYTES_MAX))], ["n"])


def data(cost_bytes: int, stage: str = "s") -> VnodeData:
    """Where batches are priced by rows, a message of this cost."""
    return VnodeData(stage, 0, ROWS.slice(0, cost_bytes))


def price_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a row cost one byte, so that tests of credit need no guesses of sizes."""

    def size(stage: OutboundStage, batch: pa.RecordBatch, bound_bytes_max: int = 0) -> int:
        return batch.num_rows - FRAME_COST_BYTES

    monkeypatch.setattr(OutboundStage, "size", size)


def waits(future: Future[Any]) -> None:
    """It has most likely begun to wait by now. If not, what follows holds all the same."""
    time.sleep(0.03)
    assert not future.done()


class FakeLink:
    """A carrier's end of a connection that leads nowhere."""

    encodes = True

    def __init__(self) -> None:
        self.offered: list[tuple[Frame, int]] = []
        self.closed: list[Close] = []
        self.cuts = 0
        self.progress = 0
        self.on_wait: Callable[[], bool] = lambda: True
        self.on_hello: Callable[[], object] = lambda: None
        self.on_data: Callable[[int], object] = lambda _: None

    def offer(self, frame: Frame, estimate_bytes: int = 0) -> None:
        self.offered.append((frame, estimate_bytes))
        if isinstance(frame, Hello):
            self.on_hello()
        elif isinstance(frame, VnodeData):
            self.on_data(estimate_bytes)

    def close(self, close: Close) -> None:
        self.closed.append(close)

    def wait_ended(self, _seconds: float) -> bool:
        return self.on_wait()

    def cut(self) -> None:
        self.cuts += 1

    @property
    def frames(self) -> list[Frame]:
        return [frame for frame, _ in self.offered if not isinstance(frame, Hello)]


class World:
    """A connection with its link, and what it told its owner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link = FakeLink()
        self.flushed: list[tuple[int, Flushed]] = []
        self.lost: list[tuple[int, str]] = []
        self.roomy: list[int] = []
        self.connection = Connection(
            PEER,
            Origin(1, 3),
            Security(1, TOKEN, None),
            on_flushed=lambda member, frame: self.flushed.append((member, frame)),
            on_lost=lambda member, reason: self.lost.append((member, reason)),
            on_room=self.roomy.append,
        )
        self.answers: list[Frame] = [HELLO, FULL]
        self.link.on_hello = self.answer
        self.dial_error: Exception | None = None
        carrier = SimpleNamespace(dial=self.dial)
        monkeypatch.setattr(connection_module, "carrier_of", lambda _: carrier)

    def dial(self, *arguments: object) -> FakeLink:
        assert (arguments[0], arguments[2]) == (ADDRESS, self.connection)
        if self.dial_error:
            raise self.dial_error
        return self.link

    def widen(self, window_bytes: int) -> None:
        """A window that no test uses up, with an encoder that is never behind."""
        hello = Hello(PEER, 0, TOKEN.for_member(PEER), window_bytes)
        self.answers = [hello, Credit(window_bytes, CONTROL_FRAMES_MAX)]
        self.link.on_data = lambda estimate: self.connection.settle([(estimate, estimate)])

    def answer(self) -> None:
        for frame in self.answers:
            self.connection.on_frame(frame, None)

    def open(self, connect_seconds_max: float = WAIT_SECONDS_MAX) -> Connection:
        self.connection.open(ADDRESS, Timing(connect_seconds_max, 1.0, 10.0))
        return self.connection
