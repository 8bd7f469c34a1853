"""The network: streams that keep their order, with credits, and slower or faster than others."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.shuffle.slice.events import SendParcel, SendReads, SendRollbacks
from penstock.transport.credit import Allowance, Window
from tests.simulation.choices import Menu

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.checkpoint import Barrier
    from penstock.shuffle.marks import Mark
    from penstock.shuffle.parcels import Stage
    from penstock.transport.frames import Credit
    from tests.simulation.world import Process
    from tests.simulation_shuffle.setting import Setting

FRAME_BYTES: Final = 64
"""What a frame costs beside its batch."""
_DELAYS: Final = Menu((20, 0.005), (4, 0.03), (1, 0.3))


class Data:
    """A batch on its way. `stage` is None if it tells what read numbers stand for."""

    __slots__ = ("batch", "charged_bytes", "stage")

    def __init__(self, stage: Stage | None, batch: pa.RecordBatch) -> None:
        self.stage = stage
        self.batch = batch
        self.charged_bytes = 0


class Flushing:
    __slots__ = ("cycle",)

    def __init__(self, cycle: int) -> None:
        self.cycle = cycle


Frame: TypeAlias = "Data | Mark | Flushing | Barrier"


class Line:
    """Messages that arrive in the order they were sent in, each after a while."""

    def __init__(self, process: Process, name: str) -> None:
        self._process = process
        self._name = name
        self._last = 0.0

    def send(self, deliver: Callable[[], None]) -> None:
        world = self._process.world
        delay = world.choices.choose(f"{self._name} delays", _DELAYS)
        self._last = max(self._last, world.now + delay)
        self._process.after(self._last - world.now, deliver, "arrives")


class Stream:
    """From a Slice to a Queue. What there is no credit for waits here, and all behind it."""

    def __init__(
        self,
        process: Process,
        name: str,
        setting: Setting,
        arrive: Callable[[Frame], None],
        on_room: Callable[[], None],
    ) -> None:
        self._there = Line(process, name)
        self._back = Line(process, f"{name} credits")
        self._arrive = arrive
        self._on_room = on_room
        self._window = Window(setting.window_bytes)
        self._allowance = Allowance(setting.window_bytes)
        self._allowance.grant(self._window.reopen())
        self.unsent: deque[Frame] = deque()

    @property
    def credit_bytes(self) -> int:
        return self._allowance.free_bytes

    def send(self, frame: Frame) -> None:
        self.unsent.append(frame)
        self.send_unsent()

    def send_unsent(self) -> None:
        while self.unsent:
            frame = self.unsent[0]
            if isinstance(frame, Data):
                cost_bytes = frame.batch.nbytes + FRAME_BYTES
                if not self._allowance.reserve(cost_bytes):
                    return
                self._allowance.settle(cost_bytes, cost_bytes)
            self.unsent.popleft()
            self._there.send(lambda frame=frame: self._arrived(frame))  # type: ignore[misc]

    def _arrived(self, frame: Frame) -> None:
        if isinstance(frame, Data):
            # Raises if there was no credit for it.
            frame.charged_bytes = self._window.arrive(frame.batch.nbytes + FRAME_BYTES)
            if frame.stage is None:
                self.give_back(frame.charged_bytes)
        self._arrive(frame)

    def give_back(self, charged_bytes: int) -> None:
        credit = self._window.take(charged_bytes, 0)
        if credit is not None:
            self._back.send(lambda: self._granted(credit))

    def _granted(self, credit: Credit) -> None:
        self._allowance.grant(credit)
        self._on_room()


def data_of(effect: SendParcel | SendRollbacks | SendReads) -> Data:
    stage = None if isinstance(effect, SendReads) else effect.stage
    return Data(stage, effect.batch)
