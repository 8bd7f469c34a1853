"""The Slice's loop: takes what happened, lets its state decide, and does what that wants.

One thread decides. It never waits for a Queue: what a member has no credit for is kept here, and no
further round is made until it is gone; marks and barriers for the other members go on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, assert_never

from penstock.checkpoint import Injector
from penstock.errors import PeerUnavailableError
from penstock.ids import clock_from_unix, clock_to_unix
from penstock.shuffle.marks import BEGINNING
from penstock.shuffle.parcels import READS_STAGE
from penstock.shuffle.session.state import (
    Progressed,
    ReadEnded,
    RowsMissing,
    SliceOpened,
    SpansLeft,
)
from penstock.shuffle.slice.events import (
    BarrierClaimed,
    Fetch,
    Flushed,
    Probe,
    Replay,
    Report,
    SendBarrier,
    SendFlush,
    SendMark,
    SendParcel,
    SendReads,
    SendRollbacks,
    Sleep,
    SliceEffect,
    SliceEvent,
    TellEnded,
    TellMissing,
    TellSpansLeft,
)
from penstock.shuffle.slice.fetching import Fetcher
from penstock.shuffle.slice.listing import Lister
from penstock.threads import supervised
from penstock.transport import Flush, SendTimeoutError, VnodeData
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.checkpoint import Barrier
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.control import FromMember
    from penstock.shuffle.plan import BindingPlan
    from penstock.shuffle.slice.snapshots import SliceSnapshot
    from penstock.shuffle.slice.state import SliceState
    from penstock.shuffle.status import Details, SliceStatus
    from penstock.transport import Sender
    from penstock.transport.frames import Message

WAKE_SECONDS: Final = 0.5
"""Nothing is missed without it: everything that matters wakes the loop. But clocks are set, and
lost connections are looked for."""


class SliceActor:
    """From `start` to `close`. `tell` gets what the Session is to know, `captured` the snapshot at
    each barrier, `fail` what ends it."""

    def __init__(
        self,
        member: int,
        lane: int,
        state: SliceState,
        store: ReadableStore,
        sender: Sender,
        *,
        members: Sequence[int],
        listed: Sequence[BindingPlan],
        tell: Callable[[FromMember], None],
        captured: Callable[[int, Barrier, SliceSnapshot], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.lane = lane
        self.injector = Injector()
        self._member = member
        self._members = tuple(members)
        self._state = state
        self._sender = sender
        self._tell = tell
        self._captured = captured
        self._events: queue.SimpleQueue[SliceEvent | None] = queue.SimpleQueue()
        self._unsent: dict[int, deque[Message]] = {peer: deque() for peer in members}
        self._sent = 0
        self._wishes: list[Probe | Fetch | Replay] = []
        self._sleep_until: int | None = None
        self._turning = threading.Lock()
        """Held while the loop decides and does: others see it between two turns."""
        self._closing = threading.Event()
        name = f"slice {member}.{lane}"
        self._fetcher = Fetcher(store, name, self.post, fail)
        self._lister = Lister(store, listed, (member, lane), tell=tell, fail=fail)
        self._threads = [
            supervised(f"{name}{what}", work, fail=fail, until=self._closing.is_set)
            for work, what in ((self._run, ""), (self._hear_flushes, " flushes"))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def post(self, event: SliceEvent) -> None:
        """From any thread: something happened."""
        self._events.put(event)

    def wake(self) -> None:
        """From any thread: there is credit, or a barrier."""
        self._events.put(None)

    def inject(self, barrier: Barrier) -> None:
        if self.injector.trigger(barrier):
            self.wake()

    def status(self, *, with_details: bool) -> tuple[SliceStatus, tuple[Seen, ...], Details | None]:
        """What it did so far, and what it waits for. What it says there to be told, it has told."""
        with self._turning:
            waits = self._state.waits(self._now(), self._member, self.lane)
            for peer, unsent in self._unsent.items():
                if unsent:
                    wait = self._state.credit_wait(self._member, self.lane, peer)
                    waits.append(Seen(wait, self._sent))
            details = self._state.details() if with_details else None
            return self._state.status(), tuple(waits), details

    def close(self) -> None:
        self._closing.set()
        self.wake()
        self._sender.interrupt()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._lister.close()
        self._fetcher.close()

    # The loop

    def _run(self) -> None:
        for peer in self._members:
            self._sender.send(peer, BEGINNING)  # opens the stream, so that there is credit
        self._tell(SliceOpened(self._member, self.lane))
        self._lister.start()
        pause = 0.0
        while not self._closing.is_set():
            first = self._wait_for_event(pause)
            with self._turning:
                self._take_events(first)
                self._check_streams()
                if self.injector.pending is not None:
                    self._inject()
                pause = self._go_on()
                self._submit()

    def _wait_for_event(self, seconds: float) -> SliceEvent | None:
        try:
            return self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return None

    def _take_events(self, first: SliceEvent | None) -> None:
        """All events there are."""
        event = first
        try:
            while True:
                if event is not None:
                    self._obey(self._state.handle(event, self._now()))
                event = self._events.get_nowait()
        except queue.Empty:
            self._submit()

    def _inject(self) -> None:
        barrier = self.injector.claim()
        if barrier is not None:
            self._obey(self._state.handle(BarrierClaimed(barrier)))
            self._captured(self.lane, barrier, self._state.snapshot())

    def _go_on(self) -> float:
        """Sends what can be sent. Returns how long there is nothing more to do."""
        self._send_unsent()
        if any(self._unsent.values()):
            return WAKE_SECONDS
        now = self._now()
        credit = {peer: self._sender.credit_bytes(peer) for peer in self._members}
        self._sleep_until = None
        effects = self._state.round(now, credit)
        self._obey(effects)
        if self._state.is_due(now) and not self._state.lacks_credit:
            return 0.0  # there is more
        if self._sleep_until is None:
            return WAKE_SECONDS
        seconds, nanoseconds = clock_to_unix(self._sleep_until)
        return min(WAKE_SECONDS, max(0.001, seconds + nanoseconds / 1e9 - time.time()))

    def _obey(self, effects: list[SliceEffect]) -> None:
        for effect in effects:
            match effect:
                case Probe() | Fetch() | Replay():
                    self._wishes.append(effect)
                case SendReads():
                    self._send_all(VnodeData(READS_STAGE, 0, effect.batch))
                case SendParcel():
                    self._send(effect.member, VnodeData(str(effect.stage), 0, effect.batch))
                case SendRollbacks():
                    self._send_all(VnodeData(str(effect.stage), 0, effect.batch))
                case SendMark():
                    self._send(effect.member, effect.mark)
                case SendFlush():
                    self._send_all(Flush(effect.cycle))
                case SendBarrier():
                    self._send_all(effect.barrier)
                case Report():
                    self._tell(Progressed(self._member, self.lane, effect.delta, effect.markers))
                case TellMissing() | TellEnded() | TellSpansLeft():
                    self._tell_of_read(effect)
                case Sleep():
                    self._sleep_until = effect.until
                case _:
                    assert_never(effect)

    def _submit(self) -> None:
        """What is wished for because of many events can be read together."""
        wishes, self._wishes = self._wishes, []
        if wishes:
            self._fetcher.submit(*wishes)

    def _tell_of_read(self, effect: TellMissing | TellEnded | TellSpansLeft) -> None:
        key = (self._member, self.lane)
        match effect:
            case TellEnded(read=read):
                self._tell(ReadEnded(*key, read))
            case TellMissing(read=read, begin=begin, end=end, reason=reason):
                self._tell(RowsMissing(*key, read, begin, end, reason))
            case TellSpansLeft(binding=binding, journal=journal):
                self._tell(SpansLeft(*key, binding, journal))
            case _:
                assert_never(effect)

    # Sending

    def _send_all(self, message: Message) -> None:
        for peer in self._members:
            self._send(peer, message)

    def _send(self, peer: int, message: Message) -> None:
        self._unsent[peer].append(message)
        self._send_unsent_to(peer)

    def _send_unsent(self) -> None:
        for peer, unsent in self._unsent.items():
            if unsent:
                self._send_unsent_to(peer)

    def _send_unsent_to(self, peer: int) -> None:
        unsent = self._unsent[peer]
        while unsent:
            try:
                self._sender.send(peer, unsent[0], timeout_seconds=0)
            except SendTimeoutError:
                return
            unsent.popleft()
            self._sent += 1

    def _check_streams(self) -> None:
        """A stream that was lost may have lost rows with it: everything begins anew."""
        for loss in self._sender.losses():
            raise PeerUnavailableError(f"the stream to member {loss.member} is lost: {loss.reason}")

    def _hear_flushes(self) -> None:
        while not self._closing.is_set():
            answer = self._sender.receive_flushed(WAKE_SECONDS)
            if answer is not None:
                peer, flushed = answer
                self.post(Flushed(peer, flushed.cycle, flushed.lsn))

    @staticmethod
    def _now() -> int:
        return clock_from_unix(*divmod(time.time_ns(), 1_000_000_000))
