"""The receiver's end: who is let in, what is delivered, and that credits come back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.routing import VNODE_COLUMN, VNODE_FIELD
from penstock.transport.credit import CONTROL_FRAMES_MAX, WINDOW_BYTES_MIN
from penstock.transport.frames import (
    ALIVE,
    PROTOCOL_VERSION,
    Barrier,
    Close,
    Credit,
    Flush,
    Flushed,
    Frame,
    Hello,
    Origin,
    VnodeData,
)
from penstock.transport.security import InsecureTransportWarning, Security, Token
from penstock.transport.stream import Desk, Stream
from penstock.transport.tls import PeerRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.transport.inbox import Received

RECEIVER = 9
TOKEN = Token("sixteen letters!")
WINDOW_BYTES = 40_000
BATCH = pa.record_batch([pa.array([1, 2, 3])], ["n"])


def insecure(member: int, token: Token = TOKEN) -> Security:
    with pytest.warns(InsecureTransportWarning):
        return Security.insecure(member, token)


@pytest.fixture
def desk() -> Desk:
    return Desk(insecure(RECEIVER), 3 * WINDOW_BYTES, 3)


class Peer:
    """A sender, as its receiver's end sees it."""

    def __init__(
        self, desk: Desk, member: int = 1, lane: int = 0, proven_member: int | None = None
    ) -> None:
        self.member, self.lane = member, lane
        self.replies: list[Frame] = []
        self.cuts = 0
        self.on_cut: Callable[[], object] = lambda: None
        self.stream = Stream(desk, proven_member, self.replies.append, self.cut)

    def cut(self) -> None:
        self.cuts += 1
        self.on_cut()

    def greet(self, generation: int = 0) -> Peer:
        token = TOKEN.for_member(self.member)
        self.stream.accept(Hello(self.member, self.lane, token, generation=generation))
        return self

    def data(self, cost_bytes: int = 1_000, stage: str = "s") -> None:
        self.stream.accept(VnodeData(stage, 0, BATCH), cost_bytes)

    @property
    def credit(self) -> Credit:
        """All that was granted."""
        granted = [reply for reply in self.replies if isinstance(reply, Credit)]
        return Credit(sum(c.data_bytes for c in granted), sum(c.control_frames for c in granted))


def drained(desk: Desk) -> list[Received]:
    return desk.inbox.drain(lambda _: True)


def frames_of(desk: Desk) -> list[Frame]:
    return [received.frame for received in drained(desk)]


def test_a_sender_is_greeted_and_given_its_window(desk: Desk) -> None:
    peer = Peer(desk).greet()
    hello = Hello(RECEIVER, 0, TOKEN.for_member(RECEIVER), WINDOW_BYTES)
    assert peer.replies == [hello, Credit(WINDOW_BYTES, CONTROL_FRAMES_MAX)]
    assert frames_of(desk) == []


def test_frames_are_delivered_in_their_order(desk: Desk) -> None:
    peer, other = Peer(desk).greet(), Peer(desk, 2, 1).greet()
    sent: list[Frame] = [
        VnodeData("s", 3, BATCH),
        Barrier(1, 2, 3),
        Flush(4),
        VnodeData("t", 0, BATCH),
    ]
    for frame in sent:
        peer.stream.accept(frame, 1_000 if isinstance(frame, VnodeData) else 0)
    for frame in (ALIVE, Flush(4)):  # a heartbeat is heard, and not delivered
        other.stream.accept(frame)
    found = drained(desk)
    assert [received.frame for received in found] == [*sent, Flush(4)]
    assert [received.origin for received in found] == [Origin(1)] * 4 + [Origin(2, 1)]
    assert [received.connection for received in found] == [1] * 4 + [2]
    assert [received.number for received in found] == [1, 2, 3, 4, 5]
    assert [received.charged_bytes for received in found] == [1_000, 0, 0, 1_000, 0]


@pytest.mark.parametrize(
    "frame", [VnodeData("s", 0, BATCH), Barrier(1, 1), Flush(1), Flushed(1, 1), ALIVE, Close()]
)
def test_a_stream_begins_with_hello(desk: Desk, frame: Frame) -> None:
    peer = Peer(desk)
    with pytest.raises(RemoteProtocolError, match=f"this one began with {type(frame).__name__}"):
        peer.stream.accept(frame)
    newer = PROTOCOL_VERSION + 1
    with pytest.raises(RemoteProtocolError, match=f"the peer speaks version {newer}"):
        peer.stream.accept(Hello(1, 0, TOKEN.for_member(1), version=newer))
    peer.stream.lose("it went away")
    assert frames_of(desk) == [], "a stranger is not heard of"


def test_who_does_not_hold_the_token_is_refused(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    admitted = Peer(desk).greet()
    others = [TOKEN.for_member(2), Token("another cluster's").for_member(1), b"", bytes(32)]
    for token in others:
        stranger = Peer(desk)
        with pytest.raises(PeerRefusedError, match="a peer as member 1 was refused") as caught:
            stranger.stream.accept(Hello(1, 0, token))
        with caplog.at_level(logging.WARNING):
            stranger.stream.refuse(caught.value)
        assert stranger.replies == [Close(str(caught.value), fault=True)], "it is told why"
    assert "a stranger is ended" in caplog.text
    assert admitted.cuts == 0
    admitted.data()
    assert frames_of(desk) == [VnodeData("s", 0, BATCH)], "whoever was there is still there"


def test_a_certificate_overrules_a_claim(desk: Desk) -> None:
    with pytest.raises(PeerRefusedError, match="its certificate is that of member 3"):
        Peer(desk, 1, proven_member=3).greet()
    assert Peer(desk, 3, proven_member=3).greet().replies


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (Hello(1, 0, TOKEN.for_member(1)), "Hello in the middle"),
        (Flushed(1, 1), "Flushed in the middle"),
        (Credit(1, 0), "grants no credit"),
        (Credit(0, 1), "grants no credit"),
    ],
)
def test_what_a_sender_may_not_say_is_refused(desk: Desk, frame: Frame, problem: str) -> None:
    peer = Peer(desk).greet()
    with pytest.raises(RemoteProtocolError, match=problem):
        peer.stream.accept(frame)


def test_frames_before_a_fault_are_delivered(desk: Desk) -> None:
    """Frames that came together are as good as frames that came one by one."""
    peer, hello = Peer(desk), Hello(1, 0, TOKEN.for_member(1))
    frames: list[Frame] = [hello, Flush(1), VnodeData("s", 0, BATCH), hello, Flush(2)]
    together = [(frame, 1_000 * isinstance(frame, VnodeData)) for frame in frames]
    with pytest.raises(RemoteProtocolError, match="in the middle") as caught:
        peer.stream.accept_all(together)
    peer.stream.refuse(caught.value)
    closing = Close(str(caught.value), fault=True)
    assert frames_of(desk) == [Flush(1), VnodeData("s", 0, BATCH), closing]


def test_a_new_connection_supersedes_the_last_one(desk: Desk) -> None:
    old = Peer(desk).greet()
    other_lane = Peer(desk, 1, 1).greet()
    old.data()
    new = Peer(desk).greet()
    assert (old.cuts, new.cuts, other_lane.cuts) == (1, 0, 0)
    old.data()
    old.stream.accept(Close("done"))
    old.stream.lose("it was cut")
    new.data()
    found = drained(desk)
    assert [received.connection for received in found] == [1, 1, 3]
    assert found[1].frame == Close("the peer opened a new connection", fault=True)
    assert new.credit == Credit(WINDOW_BYTES - 1_000, CONTROL_FRAMES_MAX - 1), "less what is held"


def test_hello_comes_before_any_credit(desk: Desk) -> None:
    """Somebody else may take frames in the very moment in which a sender comes back."""
    old = Peer(desk).greet()
    for _ in range(20):
        old.data()
    old.on_cut = lambda: drained(desk)
    new = Peer(desk).greet()
    assert isinstance(new.replies[0], Hello)
    assert new.credit.data_bytes == WINDOW_BYTES


@pytest.mark.parametrize("ending", ["said", "lost", "refused", "closed"])
def test_the_end_is_delivered_once(desk: Desk, ending: str) -> None:
    peer = Peer(desk).greet()
    peer.data()
    match ending:
        case "said":
            peer.stream.accept(Close("done"))
        case "lost":
            peer.stream.lose("it broke")
        case "refused":
            peer.stream.refuse(RemoteProtocolError("it is at fault"))
        case _:
            desk.close()
    assert peer.stream.over
    peer.data()
    peer.stream.accept(Flush(1))
    peer.stream.accept(Close("done again"))
    peer.stream.lose("it broke")
    desk.close()
    with pytest.raises(RemoteProtocolError, match="the receiver is closed"):
        Peer(desk).greet()
    data, close = frames_of(desk)
    assert isinstance(data, VnodeData)
    endings = {
        "said": Close("done"),
        "lost": Close("it broke", fault=True),
        "refused": Close("it is at fault", fault=True),
        "closed": Close("the receiver was closed"),
    }
    assert close == endings[ending]
    told = [reply for reply in peer.replies if isinstance(reply, Close)]
    assert told == [close] * (ending in ("refused", "closed"))


def test_streams_have_a_limit(desk: Desk) -> None:
    for member in range(3):
        Peer(desk, member).greet()
    with pytest.raises(RemoteProtocolError, match=r"opened for 3 streams.* raise streams_max"):
        Peer(desk, 3).greet()
    with pytest.raises(RemoteProtocolError, match="member 2 lane 1 is one more"):
        Peer(desk, 2, 1).greet()
    Peer(desk, 2).greet()
    Desk(insecure(RECEIVER), 4 * WINDOW_BYTES_MIN, 4)
    with pytest.raises(ConfigurationError, match="raise inbound_bytes_max or lower streams_max"):
        Desk(insecure(RECEIVER), 4 * WINDOW_BYTES_MIN - 1, 4)


def test_a_flush_is_answered_once(desk: Desk) -> None:
    peer, other = Peer(desk).greet(), Peer(desk, 2).greet()
    peer.stream.accept(Flush(5))
    other.stream.accept(Flush(6))
    with pytest.raises(RemoteProtocolError, match="cycle 5 came twice"):
        peer.stream.accept(Flush(5))
    assert not desk.reply(Origin(1), Flushed(5, 77)), "nobody has taken it yet"
    assert frames_of(desk) == [Flush(5), Flush(6)]
    assert desk.reply(Origin(1), Flushed(5, 77))
    assert peer.replies[-1] == Flushed(5, 77)
    replies = len(peer.replies)
    for cycle in (5, 6):
        assert not desk.reply(Origin(1), Flushed(cycle, 77)), "answered, or never asked"
    assert (len(peer.replies), len(other.replies)) == (replies, 2)
    peer.stream.accept(Flush(5))
    drained(desk)
    assert desk.reply(Origin(1), Flushed(5, 78))
    peer.stream.accept(Close("done"))
    assert not desk.reply(Origin(1), Flushed(5, 79)), "nobody is there"
    assert not desk.reply(Origin(3), Flushed(5, 79))


def test_a_flush_of_a_connection_that_is_gone_has_nobody_to_answer(desk: Desk) -> None:
    """Its taker cannot know that the sender came back meanwhile."""
    Peer(desk).greet().stream.accept(Flush(5))
    (flush,) = drained(desk)
    new = Peer(desk).greet()
    assert not desk.reply(flush.origin, Flushed(5, 77))
    new.stream.accept(Flush(5))
    assert not desk.reply(flush.origin, Flushed(5, 77)), "this is another one, after more frames"
    assert not any(isinstance(reply, Flushed) for reply in new.replies)


def test_open_flushes_have_a_limit(desk: Desk) -> None:
    peer = Peer(desk).greet()
    for cycle in range(CONTROL_FRAMES_MAX):
        peer.stream.accept(Flush(cycle))
    frames_of(desk)
    with pytest.raises(RemoteProtocolError, match="1024 Flushes are open already"):
        peer.stream.accept(Flush(CONTROL_FRAMES_MAX))


def test_credits_go_to_those_whose_frames_were_taken(desk: Desk) -> None:
    peer, other = Peer(desk).greet(), Peer(desk, 2).greet()
    for _ in range(30):
        peer.data(stage="s")
        peer.data(300, stage="t")
    assert peer.credit.data_bytes == WINDOW_BYTES
    desk.inbox.drain({"s"}.__contains__)
    assert peer.credit.data_bytes == WINDOW_BYTES + 30_000
    assert other.credit.data_bytes == WINDOW_BYTES
    while desk.inbox.take(0):
        pass
    assert peer.credit.data_bytes == WINDOW_BYTES + 30_000, "a grant waits for a quarter"


def test_who_exceeds_the_credit_is_refused(desk: Desk) -> None:
    peer = Peer(desk).greet()
    peer.data(30_000)
    with pytest.raises(RemoteProtocolError, match="exceeded its credit"):
        peer.data(10_001)
    for number in range(CONTROL_FRAMES_MAX):
        peer.stream.accept(Barrier(number, 0))
    with pytest.raises(RemoteProtocolError, match="exceeded its credit"):
        peer.stream.accept(Barrier(0, 0))


def test_a_sender_whose_frames_nobody_takes_cannot_come_back_for_ever(desk: Desk) -> None:
    """An end takes no credit. A thousand of them are enough all the same."""
    for _ in range(CONTROL_FRAMES_MAX):
        Peer(desk).greet().stream.lose("it broke")
    with pytest.raises(RemoteProtocolError, match="nobody takes the frames of member 1 lane 0"):
        Peer(desk).greet()
    assert len(drained(desk)) == CONTROL_FRAMES_MAX
    assert Peer(desk).greet().credit == Credit(WINDOW_BYTES, CONTROL_FRAMES_MAX)


def test_a_frame_put_back_counts_again(desk: Desk) -> None:
    peer = Peer(desk).greet()
    peer.data(20_000)
    peer.stream.accept(Flush(1))
    taken = drained(desk)
    for received in reversed(taken):
        desk.put_back(received)
    with pytest.raises(LocalProtocolError, match="is staged already"):
        desk.put_back(taken[0])
    assert Peer(desk).greet().credit == Credit(WINDOW_BYTES - 20_000, CONTROL_FRAMES_MAX - 2)
    assert drained(desk)[:2] == taken
    assert Peer(desk).greet().credit.data_bytes == WINDOW_BYTES, "no more than was put back"


def marked(vnodes: list[int]) -> pa.RecordBatch:
    """A batch for several vnodes; each row's value is its place."""
    numbers = pa.array(range(len(vnodes)), pa.int64())
    schema = pa.schema([pa.field("n", pa.int64()), VNODE_FIELD])
    return pa.RecordBatch.from_arrays([numbers, pa.array(vnodes, pa.uint16())], schema=schema)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=50), st.integers(1_024, WINDOW_BYTES))
def test_a_batch_for_several_vnodes_is_split(vnodes: list[int], cost_bytes: int) -> None:
    desk = Desk(insecure(RECEIVER), WINDOW_BYTES, 1)
    peer = Peer(desk).greet()
    peer.stream.accept(VnodeData("s", 0, marked(vnodes)), cost_bytes)
    found = drained(desk)
    rows = {}
    for received in found:
        assert isinstance(received.frame, VnodeData)
        assert received.frame.batch.schema.names == ["n"], f"{VNODE_COLUMN} is taken off"
        assert received.frame.stage == "s"
        rows[received.frame.vnode] = received.frame.batch.column(0).to_pylist()
    places = np.array(vnodes)
    assert rows == {vnode: np.flatnonzero(places == vnode).tolist() for vnode in set(vnodes)}
    charges = [received.charged_bytes for received in found]
    assert sum(charges) == min(cost_bytes, WINDOW_BYTES * 3 // 4), "to the last byte"
    assert max(charges) - min(charges) <= 1


def test_control_frames_taken_together_are_granted_each_to_its_sender(desk: Desk) -> None:
    peer, other = Peer(desk).greet(), Peer(desk, 2, 1).greet()
    for count, sender in ((CONTROL_FRAMES_MAX // 4, peer), (3, other)):
        sender.stream.accept_all([(Barrier(1, epoch), 0) for epoch in range(count)])
    assert len(frames_of(desk)) == CONTROL_FRAMES_MAX // 4 + 3
    assert peer.credit.control_frames == CONTROL_FRAMES_MAX + CONTROL_FRAMES_MAX // 4
    assert other.credit.control_frames == CONTROL_FRAMES_MAX, "three are not worth a frame"


def test_each_stage_is_split_or_not_by_itself(desk: Desk) -> None:
    peer, other = Peer(desk).greet(), Peer(desk, 2, 1).greet()
    whole, split = VnodeData("whole", 7, BATCH), VnodeData("split", 0, marked([3, 5]))
    for _ in range(2):
        peer.stream.accept_all([(whole, 1_500), (split, 1_501)])
        # What one connection found does not hold for another.
        other.stream.accept(VnodeData("whole", 0, marked([9])), 1_100)
    found = [
        (r.origin.member, r.frame.stage, r.frame.vnode, r.charged_bytes)
        for r in drained(desk)
        if isinstance(r.frame, VnodeData)
    ]
    once = [
        (1, "whole", 7, 1_500),
        (1, "split", 3, 751),
        (1, "split", 5, 750),
        (2, "whole", 9, 1_100),
    ]
    assert found == once * 2


def test_batches_without_rows_do_not_use_up_the_window(desk: Desk) -> None:
    """Nobody will ever take them: their credit comes back at once."""
    peer = Peer(desk).greet()
    for _ in range(20):
        peer.stream.accept(VnodeData("s", 0, marked([])), 4_000)
    assert frames_of(desk) == []


BAD_BATCHES = {
    "no such vnode": pa.record_batch([pa.array([256], pa.uint16())], [VNODE_COLUMN]),
    "cannot be split": pa.record_batch(
        [pa.array(["a", "b"], pa.string_view()), pa.array([1, 2], pa.uint16())],
        ["text", VNODE_COLUMN],
    ),
}


@pytest.mark.parametrize("kind", BAD_BATCHES)
def test_a_batch_that_is_refused_holds_nothing(desk: Desk, kind: str) -> None:
    peer = Peer(desk).greet()
    with pytest.raises(RemoteProtocolError) as caught:
        peer.stream.accept(VnodeData("s", 0, BAD_BATCHES[kind]), 20_000)
    peer.stream.refuse(caught.value)
    assert frames_of(desk) == [Close(str(caught.value), fault=True)]
    assert Peer(desk).greet().credit.data_bytes == WINDOW_BYTES


def test_a_newer_process_ends_all_streams_of_an_older_one(desk: Desk) -> None:
    older = [Peer(desk, 1, lane).greet(5) for lane in range(2)]
    other = Peer(desk, 2).greet(1)
    newer = Peer(desk, 1, 1).greet(6)
    assert [peer.cuts for peer in older] == [1, 1]
    assert all(peer.stream.over for peer in older)
    assert not other.stream.over
    assert not newer.stream.over
    reasons = {frame.reason for frame in frames_of(desk) if isinstance(frame, Close)}
    assert reasons == {"a newer process of member 1 has taken its place"}
    older[0].data()
    assert frames_of(desk) == [], "what is under way of it is nobody's"


@pytest.mark.parametrize("generation", [0, 1, 5])
def test_an_older_process_is_not_let_in_again(desk: Desk, generation: int) -> None:
    """One of a release that says no generation is the oldest of all."""
    newer = Peer(desk, 1, 0).greet(6)
    for lane in range(3):
        with pytest.raises(RemoteProtocolError, match="that one's generation is 6"):
            Peer(desk, 1, lane).greet(generation)
    assert not newer.stream.over
    newer.stream.lose("it went away")
    with pytest.raises(RemoteProtocolError, match="newer process of member 1"):
        Peer(desk, 1, 0).greet(generation)
    Peer(desk, 2, 0).greet(generation)


def test_a_process_may_open_its_stream_again(desk: Desk) -> None:
    for generation in (0, 0, 3, 3, 4):
        assert not Peer(desk).greet(generation).stream.over
