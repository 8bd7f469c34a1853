"""The receiver's end of a connection: checks each frame, and puts it into the inbox.

Carriers call `accept` with what they read, in order, and one of the endings when that is over. The
desk knows all streams of a receiver and their windows.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing import split_vnode_column
from penstock.transport.credit import CONTROL_FRAMES_MAX, Window
from penstock.transport.frames import (
    PROTOCOL_VERSION,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Mark,
    Origin,
    VnodeData,
)
from penstock.transport.inbox import Arrival, Inbox, Received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.transport.security import Security

_LOG: Final = logging.getLogger("penstock.transport")


class Desk:
    """What the streams of one receiver share: who is connected, and the room for each."""

    def __init__(
        self, security: Security, inbound_bytes_max: int, streams_max: int, held: str | None = None
    ) -> None:
        """Batches of stages that begin with `held` keep their credit after they were taken, until
        they are released."""
        self._security = security
        self._held = held
        self._streams_max = streams_max
        self._window_bytes = inbound_bytes_max // streams_max
        Window(self._window_bytes)  # too small is said now, not at the first stream
        self.inbox = Inbox(self._on_taken)
        # One lock for what follows: a frame of a stream that is over must not follow its Close.
        self._lock = threading.Lock()
        self._streams: dict[Origin, Stream] = {}
        self._windows: dict[Origin, Window] = {}
        self._generations: dict[int, int] = {}
        """The latest that a member's streams came from."""
        self._connections = 0
        self._closed = False

    @property
    def hello(self) -> Hello:
        member = self._security.member
        return Hello(member, 0, self._security.token.for_member(member), self._window_bytes)

    def admit(self, stream: Stream, hello: Hello, proven_member: int | None) -> tuple[Origin, int]:
        """Lets a stream in that has proven who it is. It supersedes the last one of its origin, and
        all of older processes of its member, none of which is let in again."""
        if hello.version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the peer speaks version {hello.version} of the transport, this member version "
                f"{PROTOCOL_VERSION}; run the same release on all members"
            )
        self._security.verify_hello(hello.member, hello.token, proven_member)
        origin = Origin(hello.member, hello.lane)
        with self._lock:
            self._check_generation(hello)
            window = self._window(origin)
        stream.reply(self.hello)  # before anything is granted, by whoever takes frames meanwhile
        with self._lock:
            if self._closed:
                raise RemoteProtocolError("the receiver is closed")
            self._check_generation(hello)
            self._generations[origin.member] = stream.generation = hello.generation
            superseded = self._superseded(origin, hello.generation)
            for each, reason in superseded:
                self._end(each, Close(reason, fault=True))
            self._connections += 1
            self._streams[origin] = stream
            credit = window.reopen()
            number = self._connections
        for each, _ in superseded:
            each.cut()
        stream.reply(credit)
        return origin, number

    def _superseded(self, origin: Origin, generation: int) -> list[tuple[Stream, str]]:
        """The streams that a new one ends, and why."""
        replaced = f"a newer process of member {origin.member} has taken its place"
        return [
            (
                stream,
                replaced if stream.generation < generation else "the peer opened a new connection",
            )
            for known, stream in self._streams.items()
            if known == origin or (known.member == origin.member and stream.generation < generation)
        ]

    def _check_generation(self, hello: Hello) -> None:
        newest = self._generations.get(hello.member, 0)
        if hello.generation < newest:
            raise RemoteProtocolError(
                f"a newer process of member {hello.member} has taken its place: that one's "
                f"generation is {newest}, this one's {hello.generation or 'not said'}"
            )

    def _window(self, origin: Origin) -> Window:
        if self._closed:
            raise RemoteProtocolError("the receiver is closed")
        window = self._windows.get(origin)
        if window is None:
            if len(self._windows) == self._streams_max:
                raise RemoteProtocolError(
                    f"this receiver was opened for {self._streams_max} streams, and has them; "
                    f"{origin} is one more: raise streams_max"
                )
            window = self._windows[origin] = Window(self._window_bytes)
        if window.held_frames >= CONTROL_FRAMES_MAX:
            raise RemoteProtocolError(f"nobody takes the frames of {origin}")
        return window

    def put(self, stream: Stream, frames: list[_Parts]) -> None:
        """Frames of an admitted stream."""
        charged: list[Arrival] = []
        grants: list[Credit] = []
        with self._lock:
            if stream.over or stream.origin is None:
                return
            window = self._windows[stream.origin]
            try:
                for parts, cost_bytes in frames:
                    if not cost_bytes:
                        window.arrive_control()
                        charged.append((parts[0], 0))
                        continue
                    charged_bytes = window.arrive(cost_bytes)
                    if len(parts) == 1:
                        charged.append((parts[0], charged_bytes))
                    elif parts:
                        charged += _shared_out(parts, charged_bytes)
                    else:  # a batch to split, without rows: there is nothing to hold
                        credit = window.take(charged_bytes, 0)
                        if credit is not None:
                            grants.append(credit)
            finally:  # those before a fault were good
                self.inbox.put(stream.origin, stream.connection, charged)
        for credit in grants:
            stream.reply(credit)

    def end(self, stream: Stream, close: Close) -> None:
        with self._lock:
            self._end(stream, close)

    def reply(self, origin: Origin, frame: Flushed) -> bool:
        with self._lock:
            stream = self._streams.get(origin)
        return stream is not None and stream.answer(frame)

    def put_back(self, received: Received) -> None:
        if self._keeps_credit(received):
            self.inbox.put_back(received)
            return
        held = received.charged_bytes, _control_frames(received)
        with self._lock:
            self._windows[received.origin].put_back(*held)
        try:
            self.inbox.put_back(received)
        except LocalProtocolError:
            with self._lock:
                self._windows[received.origin].put_back(-held[0], -held[1])
            raise
        if isinstance(received.frame, Flush):
            with self._lock:
                self._note_asked(received, received.frame, asked=False)

    def close(self) -> None:
        """Ends every stream; each peer is told why."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
            for stream in streams:
                self._end(stream, Close("the receiver was closed"))
        self.inbox.close()
        for stream in streams:
            stream.reply(Close("the receiver was closed"))

    def _end(self, stream: Stream, close: Close) -> None:
        if stream.over:
            return
        stream.over = True
        if stream.origin is not None and self._streams.get(stream.origin) is stream:
            del self._streams[stream.origin]
            # It takes no credit to end, but it is counted: see admit.
            self._windows[stream.origin].held_frames += 1
            self.inbox.put(stream.origin, stream.connection, [(close, 0)])

    def _note_asked(self, received: Received, flush: Flush, *, asked: bool) -> None:
        """A Flush can be answered once it was taken, on the connection that it came by."""
        stream = self._streams.get(received.origin)
        if stream is not None and stream.connection == received.connection:
            stream.unanswered[flush.cycle] = asked

    def _keeps_credit(self, received: Received) -> bool:
        return (
            self._held is not None
            and isinstance(received.frame, VnodeData)
            and received.frame.stage.startswith(self._held)
        )

    def _on_taken(self, taken: list[Received]) -> None:
        if self._held is not None:
            taken = [received for received in taken if not self._keeps_credit(received)]
        self.give_back(taken)

    def give_back(self, taken: list[Received]) -> None:
        """The room that frames took is free again."""
        charged: dict[Origin, int] = {}
        control: list[Received] = []
        for received in taken:
            charged[received.origin] = charged.get(received.origin, 0) + received.charged_bytes
            if not isinstance(received.frame, VnodeData):
                control.append(received)
        grants: list[tuple[Stream, Credit]] = []
        with self._lock:
            for received in control:
                if isinstance(received.frame, Flush):
                    self._note_asked(received, received.frame, asked=True)
            for origin, charged_bytes in charged.items():
                control_frames = sum(received.origin == origin for received in control)
                credit = self._windows[origin].take(charged_bytes, control_frames)
                stream = self._streams.get(origin)
                if credit is not None and stream is not None:
                    grants.append((stream, credit))
        for stream, credit in grants:
            stream.reply(credit)


class Stream:
    """One connection. `reply` must not block; `cut` ends the connection from any thread."""

    def __init__(
        self,
        desk: Desk,
        proven_member: int | None,
        reply: Callable[[Frame], None],
        cut: Callable[[], None],
    ) -> None:
        self._desk = desk
        self._proven_member = proven_member
        self.reply = reply
        self.cut = cut
        self.origin: Origin | None = None
        self.connection = 0
        self.generation = 0
        self.over = False
        self.unanswered: dict[int, bool] = {}
        """The cycles of Flushes that came, and whether each was taken."""
        self._unsplit: set[str] = set()
        """Stages that came without the vnode column. A stage has one schema for as long as its
        connection lives, so this is asked once."""

    def accept(self, frame: Frame, cost_bytes: int = 0) -> None:
        """The next frame. Raises RemoteProtocolError for one that may not come here."""
        self.accept_all([(frame, cost_bytes)])

    def accept_all(self, frames: Iterable[tuple[Frame, int]]) -> None:
        """The next frames, which go into the inbox together: whoever waits is woken once."""
        good: list[_Parts] = []
        try:
            for frame, cost_bytes in frames:
                if isinstance(frame, VnodeData) and frame.stage in self._unsplit:
                    good.append(((frame,), cost_bytes))
                    continue
                self._check(frame)
                match frame:
                    case VnodeData():
                        good.append((self._split(frame), cost_bytes))
                    case Mark() | Barrier() | Flush():
                        good.append(([frame], 0))
                    case Close():
                        self._desk.put(self, good)
                        good = []
                        self._desk.end(self, frame)
        finally:  # those before a fault were good
            if good:
                self._desk.put(self, good)

    def _check(self, frame: Frame) -> None:
        """Refuses what may not come now; greets a Hello and counts a Flush."""
        if self.origin is None:
            if not isinstance(frame, Hello):
                raise RemoteProtocolError(
                    f"a stream begins with Hello; this one began with {type(frame).__name__}"
                )
            self.origin, self.connection = self._desk.admit(self, frame, self._proven_member)
            return
        match frame:
            case VnodeData() | Mark() | Barrier() | Close():
                pass
            case Flush():
                if frame.cycle in self.unanswered:
                    raise RemoteProtocolError(f"Flush of cycle {frame.cycle} came twice")
                if len(self.unanswered) == CONTROL_FRAMES_MAX:
                    raise RemoteProtocolError(f"{CONTROL_FRAMES_MAX} Flushes are open already")
                self.unanswered[frame.cycle] = False
            case Credit():
                if frame.data_bytes or frame.control_frames:
                    raise RemoteProtocolError("a sender grants no credit")
            case Hello() | Flushed():
                raise RemoteProtocolError(f"{type(frame).__name__} in the middle of a stream")
            case _:
                assert_never(frame)

    def _split(self, frame: VnodeData) -> Sequence[VnodeData]:
        try:
            batches = split_vnode_column(frame.batch)
        except ConfigurationError as error:  # the sender's, who had to find the same
            raise RemoteProtocolError(f"stage {frame.stage!r}: {error}") from error
        if batches is None:
            self._unsplit.add(frame.stage)
            return (frame,)
        return [VnodeData(frame.stage, vnode, batch) for vnode, batch in batches]

    def refuse(self, error: Exception) -> None:
        """The peer is at fault: it is told, and so is whoever takes the frames."""
        close = Close(str(error), fault=True)
        _LOG.warning("the stream of %s is ended: %s", self.origin or "a stranger", error)
        self.reply(close)
        self._desk.end(self, close)

    def lose(self, reason: str) -> None:
        """The connection ended without a Close."""
        self._desk.end(self, Close(reason, fault=True))

    def answer(self, frame: Flushed) -> bool:
        if not self.unanswered.get(frame.cycle, False):
            return False  # answered already, not yet asked, or on the connection before this one
        del self.unanswered[frame.cycle]
        self.reply(frame)
        return True


_Parts: TypeAlias = "tuple[Sequence[VnodeData | Mark | Barrier | Flush], int]"
"""A frame, or its batch split by vnode, and what it costs (control frames: nothing)."""


def _shared_out(
    parts: Sequence[VnodeData | Mark | Barrier | Flush], charged_bytes: int
) -> Iterator[Arrival]:
    """The parts of a frame share its charge, to the last byte."""
    share, rest = divmod(charged_bytes, len(parts))
    return ((part, share + (index < rest)) for index, part in enumerate(parts))


def _control_frames(received: Received) -> int:
    return 0 if isinstance(received.frame, VnodeData) else 1
