"""The key-value interface over real sockets, with several members in one process."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import socket
import struct
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.directory.gossip import (
    MEMBERSHIP_KEY,
    GossipKeyValue,
    GossipTiming,
    MemberStatus,
)
from penstock.directory.gossip.address import Address
from penstock.directory.gossip.messages import VALUE_BYTES_MAX, ClusterKey, encode
from penstock.directory.keyvalue import DirectoryEndedError
from penstock.errors import ConfigurationError, FencedError, LocalProtocolError
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually, open_sockets
from tests.unit.directory.gossip.made_messages import EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.directory.keyvalue import KeyValue

KEY = b"the key of the tests' own cluster"
OTHER_KEY = b"the key of somebody else's cluster"
SELDOM = GossipTiming(interval_seconds=20, silence_seconds_max=60)
"""What arrives under these was pushed: no tick comes in time."""


class Cluster:
    def __init__(self) -> None:
        self.open: list[GossipKeyValue] = []

    def start(
        self,
        member: int,
        *,
        key: bytes = KEY,
        generation: int | None = None,
        timing: GossipTiming | None = None,
        seeds: list[str] | None = None,
    ) -> GossipKeyValue:
        """The first one is the others' seed."""
        if seeds is None:
            seeds = [self.open[0].address] if self.open else []
        started = GossipKeyValue(member, key, seeds, generation=generation, timing=timing)
        self.open.append(started)
        return started

    def start_all(self, count: int, timing: GossipTiming | None = None) -> list[GossipKeyValue]:
        """They know each other when this returns."""
        started = [self.start(member, timing=timing) for member in range(count)]
        for each in started:
            for other in started:
                sees(each, other.member, "alive")
        return started


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    closing = [Background(each.close) for each in cluster.open]
    for each in closing:
        each.result()


def status(observer: GossipKeyValue, member: int) -> str:
    states = observer.members()
    return states[member].status.value if member in states else "unknown"


def sees(observer: GossipKeyValue, member: int, expected: str) -> None:
    eventually(
        lambda: status(observer, member) == expected,
        lambda: (
            f"that member {observer.member} sees {member} as {expected}, not "
            f"{status(observer, member)}"
        ),
    )


def reads(observer: GossipKeyValue, member: int, key: str, value: str | None) -> None:
    eventually(
        lambda: observer.read(member, key) == value,
        f"that member {observer.member} reads {key} of {member}",
    )


def test_a_member_reads_what_another_wrote(cluster: Cluster) -> None:
    first, second, third = cluster.start_all(3)
    interface: KeyValue = first
    interface.write("address", "here")
    second.write("address", "there")
    assert first.read(0, "address") == "here", "the member itself reads it at once"
    for each in (first, second, third):
        reads(each, 0, "address", "here")
        reads(each, 1, "address", "there")
        assert each.scan("address") == {0: "here", 1: "there"}
        assert each.read(2, "address") is None
        assert each.read(9, "address") is None
        assert each.scan("port") == {}


def test_a_member_that_joins_later_reads_what_was_written_before(cluster: Cluster) -> None:
    first = cluster.start(0)
    first.write("a", "1")
    first.write("large", "x" * 50_000)
    later = cluster.start(1)
    reads(later, 0, "large", "x" * 50_000)
    reads(later, 0, "a", "1")


def test_a_write_reaches_who_waits_without_a_tick(cluster: Cluster) -> None:
    first, second = cluster.start_all(2, SELDOM)
    with second.watch("epoch:") as watch:
        for number in range(20):
            waiting = Background(lambda: watch.wait(WAIT_SECONDS_MAX))
            first.write("epoch:announcement", str(number))
            assert waiting.result()
            assert second.read(0, "epoch:announcement") == str(number)


def test_a_watch_is_told_of_its_own_prefix_only(cluster: Cluster) -> None:
    first, second = cluster.start_all(2)
    with second.watch("epoch:") as watch, second.watch("after") as after:
        first.write("other", "1")
        first.write("after", "1")
        assert after.wait(WAIT_SECONDS_MAX)
        assert not watch.wait(0)


def test_a_writer_is_told_of_its_own_write(cluster: Cluster) -> None:
    first = cluster.start(0)
    with first.watch("a") as watch:
        first.write("a", "1")
        assert watch.wait(0)


def test_the_largest_value_arrives_without_a_tick(cluster: Cluster) -> None:
    first, second = cluster.start_all(2, SELDOM)
    value = "€" * (VALUE_BYTES_MAX // 3)
    with second.watch("large") as watch:
        first.write("large", value)
        assert watch.wait(WAIT_SECONDS_MAX)
        assert second.read(0, "large") == value


def test_many_writers_and_large_values_at_once(cluster: Cluster) -> None:
    members = cluster.start_all(4)

    def write(writer: GossipKeyValue) -> None:
        for number in range(50):
            size = 20_000 if number % 10 == 0 else number
            writer.write(f"k{number % 7}", f"{number}-" + "x" * size)

    for each in [Background(partial(write, writer)) for writer in members]:
        each.result()
    for reader in members:
        for writer in members:
            for number in range(7):
                expected = writer.read(writer.member, f"k{number}")
                reads(reader, writer.member, f"k{number}", expected)


def test_too_large_a_value_is_refused(cluster: Cluster) -> None:
    first = cluster.start(0)
    with pytest.raises(LocalProtocolError, match="at most 1048576 bytes"):
        first.write("large", "x" * (VALUE_BYTES_MAX + 1))
    assert first.read(0, "large") is None


def test_closing_is_leaving_and_the_last_write_arrives(cluster: Cluster) -> None:
    first, second = cluster.start_all(2, SELDOM)
    with first.membership() as watch:
        second.write("last", "x" * 100_000)
        second.close()
        assert watch.wait(WAIT_SECONDS_MAX)
    sees(first, 1, "left")
    assert first.read(1, "last") == "x" * 100_000
    assert [event.change.value for event in first.membership_events()] == ["joined", "left"]
    assert second.members()[1].status is MemberStatus.LEFT


def test_closing_lets_go_who_waits_and_ends_writing(cluster: Cluster) -> None:
    first = cluster.start(0)
    watch = first.watch()
    waiting = Background(watch.wait)
    first.write("a", "1")
    assert waiting.result()
    waiting = Background(watch.wait)
    first.close()
    first.close()
    assert not waiting.result()
    assert first.read(0, "a") == "1"
    with pytest.raises(LocalProtocolError, match="closed"):
        first.write("a", "2")


def test_membership_is_watched_and_listed(cluster: Cluster) -> None:
    first = cluster.start(0)
    with first.membership() as watch, first.watch(MEMBERSHIP_KEY) as same:
        second = cluster.start(1)
        assert watch.wait(WAIT_SECONDS_MAX)
        assert same.wait(WAIT_SECONDS_MAX)
    (joined,) = first.membership_events()
    assert (joined.number, joined.change.value, joined.member) == (1, "joined", 1)
    assert joined.generation == second.generation
    assert first.membership_events(since=1) == []
    state = first.members()[1]
    assert (state.address, state.since_seconds) == (second.address, joined.at_seconds)
    assert first.members()[0].address == first.address


def test_a_restart_is_a_new_generation(cluster: Cluster) -> None:
    first, second = cluster.start_all(2)
    second.write("a", "1")
    reads(first, 1, "a", "1")
    second.close()
    sees(first, 1, "left")
    again = cluster.start(1)
    assert again.generation > second.generation
    sees(first, 1, "alive")
    changes = [event.change.value for event in first.membership_events()]
    assert changes == ["joined", "left", "restarted"]
    assert first.read(1, "a") is None, "it has not written in this life"


def test_the_older_of_two_processes_is_fenced_and_told(cluster: Cluster) -> None:
    first = cluster.start(0)
    older = cluster.start(1, generation=5)
    sees(first, 1, "alive")
    older.write("a", "old")
    with older.watch("a") as watch:
        watch.wait(0)
        newer = cluster.start(1, generation=6)
        assert watch.wait(WAIT_SECONDS_MAX), "whoever waits looks again"
    assert older.fenced
    with pytest.raises(
        FencedError, match="member 1 was started again elsewhere: this process is fenced"
    ):
        older.write("a", "older")
    newer.write("a", "new")
    reads(first, 1, "a", "new")
    older.close()
    assert not newer.fenced
    reads(newer, 0, "a", None)
    assert status(first, 1) == "alive", "the older one's end is not the newer one's"


def test_a_clock_that_is_behind_does_not_fence_who_starts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cluster.start(0)
    before = cluster.start(1)
    sees(first, 1, "alive")
    before.close()
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000)
    again = cluster.start(1)
    again.write("a", "1")
    reads(first, 1, "a", "1")
    assert again.generation == before.generation + 1
    assert not again.fenced


def test_with_a_wrong_key_nothing_gets_in_and_the_log_says_so(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = cluster.start(0)
    stranger = cluster.start(1, key=OTHER_KEY)
    stranger.write("a", "1")
    stranger.write("large", "x" * 100_000)
    eventually(lambda: first.messages_ignored >= 5, "that some of its messages are ignored")
    assert set(first.members()) == {0}
    assert set(stranger.members()) == {1}
    assert first.scan("a") == {}
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1, "once per peer and minute"
    assert "wrong cluster key" in warnings[0]
    assert stranger.address in warnings[0]


def test_nonsense_from_anywhere_is_counted_and_ignored(cluster: Cluster) -> None:
    first, second = cluster.start_all(2)
    address = Address.parse(first.address)
    target = (address.host, address.port)
    good = encode(EXAMPLE, ClusterKey(KEY))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for data in (b"", b"x", b"x" * 5000, good[:-1], good + b"x", good[:-1] + b"\0"):
            udp.sendto(data, target)
    length = struct.pack("<I", len(good))
    for data in (b"", b"x", struct.pack("<I", 2**31) + good, length + good[:9]):
        with socket.create_connection(target) as connection:
            connection.sendall(data)
    eventually(lambda: first.messages_ignored == 10, "that all ten are counted")
    second.write("a", "1")
    reads(first, 1, "a", "1")


def test_idle_connections_keep_nobody_out_for_long(cluster: Cluster) -> None:
    first, second = cluster.start_all(2)
    address = Address.parse(second.address)
    with contextlib.ExitStack() as idle:
        for _ in range(40):
            idle.enter_context(socket.create_connection((address.host, address.port)))
        first.write("a", "small")
        reads(second, 0, "a", "small")
    first.write("large", "x" * 100_000)
    reads(second, 0, "large", "x" * 100_000)


def test_seeds_that_do_not_answer_are_tried_on_and_warned_of_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.directory.gossip.node.LONELY_SECONDS", 0.3)
    first = cluster.start(0)
    free = first.address
    first.close()
    lonely = cluster.start(1, seeds=[free])
    eventually(lambda: "none of its seeds answers" in caplog.text, "the warning")
    assert free in caplog.text
    address = Address.parse(free)
    found = GossipKeyValue(2, KEY, [], host=address.host, port=address.port)
    cluster.open.append(found)
    sees(lonely, 2, "alive")
    assert caplog.text.count("none of its seeds answers") == 1


def test_a_seed_may_be_a_name_or_oneself_or_a_pair(cluster: Cluster) -> None:
    first = cluster.start(0)
    address = Address.parse(first.address)
    named = cluster.start(1, seeds=[f"localhost:{address.port}", "no-such-host.invalid:9"])
    sees(named, 0, "alive")
    paired = GossipKeyValue(2, KEY, [(address.host, address.port)])
    cluster.open.append(paired)
    sees(paired, 0, "alive")
    alone = GossipKeyValue(3, KEY, [first.address], host=address.host)
    cluster.open.append(alone)
    sees(alone, 0, "alive")
    assert set(cluster.open[0].members()) <= {0, 1, 2, 3}


def test_ipv6(cluster: Cluster) -> None:
    try:
        first = GossipKeyValue(0, KEY, [], host="::1")
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    cluster.open.append(first)
    second = GossipKeyValue(1, KEY, [first.address], host="::1")
    cluster.open.append(second)
    second.write("large", "x" * 100_000)
    reads(first, 1, "large", "x" * 100_000)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": b"short"}, "at least 16 bytes"),
        ({"seeds": ["nowhere"]}, "not an address"),
        ({"member": -1}, "a member is a number"),
        ({"generation": 0}, "a generation is a number"),
        ({"host": "0.0.0.0"}, "others can reach"),
    ],
)
def test_options_that_cannot_be_are_refused_and_leave_nothing_open(
    options: dict[str, object], named: str
) -> None:
    before = open_sockets()
    given = {"member": 0, "key": KEY, "seeds": [], **options}
    with pytest.raises(ConfigurationError, match=named):
        GossipKeyValue(**given)  # type: ignore[arg-type]
    assert open_sockets() == before


def threads_of(member: int) -> list[threading.Thread]:
    name = f"penstock gossip {member}"
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_one_that_is_dropped_leaves_too(cluster: Cluster) -> None:
    first = cluster.start(0)
    before = open_sockets()
    dropped = GossipKeyValue(11, KEY, [first.address])
    sees(first, 11, "alive")
    sees(dropped, 0, "alive")
    assert threads_of(11)
    del dropped
    gc.collect()
    sees(first, 11, "left")
    eventually(lambda: not threads_of(11) and open_sockets() <= before, "that all is closed")


def test_a_context_closes_its_member(cluster: Cluster) -> None:
    first = cluster.start(0)
    before = open_sockets()
    with GossipKeyValue(1, KEY, [first.address]) as second:
        sees(first, second.member, "alive")
        sees(second, first.member, "alive")  # farewell is said to those whom it knows
    sees(first, 1, "left")
    assert open_sockets() == before


# What arrives, and what ends the loop


class Odd:
    """A socket with some odd things to give before what really came."""

    def __init__(self, inner: socket.socket, first: list[Any]) -> None:
        self._inner = inner
        self.first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __eq__(self, other: object) -> bool:
        return other is self._inner  # the selector has that one

    def __hash__(self) -> int:
        return hash(self._inner)

    def recvfrom(self, size: int) -> Any:
        return self._next() or self._inner.recvfrom(size)

    def accept(self) -> Any:
        return self._next() or self._inner.accept()

    def _next(self) -> Any:
        if not self.first:
            return None
        odd = self.first.pop(0)
        if isinstance(odd, Exception):
            raise odd
        return odd


REFUSALS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EIO, errno.EPERM)
SOURCES = [("127.0.0.1", 0), ("0.0.0.0", 0), ("::1%lo", 0, 0, 1), ("", 0), ("\0x", 65535)]


def stir(observer: GossipKeyValue) -> None:
    """Its loop looks at both of its sockets."""
    address = Address.parse(observer.address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"x", (address.host, address.port))
    socket.create_connection((address.host, address.port)).close()


def test_nothing_that_arrives_ends_the_loop(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From every kind of source, and whatever goes wrong with a single message: a datagram from
    port 0, which is allowed, ended the gossip for good."""
    first, second = cluster.start_all(2)
    sockets = second._node._sockets
    refused = [OSError(number, "no") for number in REFUSALS]
    udp = Odd(sockets.udp, [*((b"not gossip", source) for source in SOURCES), *refused])
    listener = Odd(sockets.listener, list(refused))
    monkeypatch.setattr(sockets, "udp", udp)
    monkeypatch.setattr(sockets, "listener", listener)
    original, defects = second._node._exchange.receive, [KeyError("x"), RecursionError()]

    def receive(*arguments: Any) -> Any:
        if defects:
            raise defects.pop()
        return original(*arguments)

    monkeypatch.setattr(second._node._exchange, "receive", receive)

    def has_come() -> bool:
        stir(second)
        first.write("turn", "again")
        return not (udp.first or listener.first or defects)

    eventually(has_come, "that all of it has come")
    first.write("after", "heard")
    reads(second, 0, "after", "heard")
    second.write("after", "told")
    reads(first, 1, "after", "told")
    second.check()
    assert second.messages_ignored >= len(SOURCES)


def test_a_datagram_from_port_0_is_ignored(cluster: Cluster) -> None:
    """By a raw socket: others do not send from there."""
    first, second = cluster.start_all(2)
    address = Address.parse(second.address)
    payload = b"not gossip"
    head = struct.pack("!HHHH", 0, address.port, 8 + len(payload), 0)
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("a raw socket is for root")
    with raw:
        raw.sendto(head + payload, (address.host, address.port))
    eventually(lambda: second.messages_ignored, "that it is ignored")
    second.write("after", "told")
    reads(first, 1, "after", "told")


def test_a_loop_that_ends_is_told_by_every_call_and_wakes_who_watches(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster.start_all(2)
    woken = threading.Event()
    second.watch("any").call(woken.set)
    waiting = Background(second.watch("other").wait)
    second.check()
    assert not woken.is_set()

    def tick(_: float) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(second._node, "_tick", tick)
    assert woken.wait(WAIT_SECONDS_MAX)
    assert waiting.result() is False
    for call in (
        second.check,
        partial(second.write, "k", "v"),
        partial(second.read, 0, "k"),
        partial(second.scan, "k"),
    ):
        with pytest.raises(
            DirectoryEndedError, match="member 1 ended: ZeroDivisionError: a defect"
        ):
            call()
    late = threading.Event()
    second.watch("late").call(late.set)
    assert late.is_set(), "who comes later does not wait either"
    sees(first, 1, "dead")


def test_one_that_is_closed_says_so(cluster: Cluster) -> None:
    only = cluster.start(0)
    only.write("k", "v")
    only.close()
    with pytest.raises(DirectoryEndedError, match="member 0 was closed"):
        only.check()
    assert only.read(0, "k") == "v"
