"""What every key-value store does: slots, scans and watches."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.directory.gossip.messages import KEY_BYTES_MAX, VALUE_BYTES_MAX
from penstock.directory.keyvalue import DirectoryEndedError, MemoryKeyValue
from penstock.errors import LocalProtocolError
from tests.conformance.keyvalue.families import acquainted, until, until_told
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, never

if TYPE_CHECKING:
    from penstock.directory.keyvalue import KeyValue
    from tests.conformance.keyvalue.families import Family, GossipFamily, PostgresFamily

TEXTS = (
    "",
    "here",
    "größer \u2192 \U0001f6b0",
    "a\x00b\r\n\t",
    "'; DROP TABLE slots; --",
    "%s %(x)s",
)
EXAMPLES = itertools.count()


def test_the_end_of_a_view_is_told_and_wakes_who_watches(family: Family) -> None:
    first = family.open(1)
    woken = threading.Event()
    first.watch("any").call(woken.set)
    first.check()
    if isinstance(first, MemoryKeyValue):
        return  # it never ends
    first.close()  # type: ignore[attr-defined]
    assert woken.wait(WAIT_SECONDS_MAX)
    with pytest.raises(DirectoryEndedError):
        first.check()
    assert first.watch("later").wait(WAIT_SECONDS_MAX) is False


def test_a_member_reads_what_it_wrote_at_once(family: Family) -> None:
    first = family.open(1)
    assert first.member == 1
    assert first.read(1, "address") is None
    first.write("address", "here")
    assert first.read(1, "address") == "here"
    assert first.scan("address") == {1: "here"}
    assert first.read(1, "port") is None
    assert first.read(7, "address") is None
    assert first.scan("port") == {}


def test_a_slot_is_its_members_own(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    first.write("address", "here")
    second.write("address", "there")
    for each in (first, second):
        until(each, lambda: len(each.scan("address")) == 2, "both addresses")  # noqa: B023
        assert each.scan("address") == {1: "here", 2: "there"}
        assert (each.read(1, "address"), each.read(2, "address")) == ("here", "there")


def test_only_the_newest_value_counts(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    for number in range(20):
        first.write("step", str(number))
        assert first.read(1, "step") == str(number)
    until(second, lambda: second.read(1, "step") == "19", "the last step")
    first.write("step", "0")
    until(second, lambda: second.read(1, "step") == "0", "a value that was there before")


def test_a_member_that_comes_later_reads_what_was_written_before(family: Family) -> None:
    first = family.open(1)
    first.write("address", "here")
    later = family.open(2)
    until(later, lambda: later.read(1, "address") == "here", "an old value")


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_any_text_is_a_value(family: Family, text: str) -> None:
    first, second = family.open(1), family.open(2)
    first.write("text", text)
    assert first.read(1, "text") == text
    assert until(second, lambda: second.scan("text"), "a text") == {1: text}


@pytest.mark.parametrize("key", [text for text in TEXTS if text], ids=ascii)
def test_any_text_is_a_key(family: Family, key: str) -> None:
    first, second = family.open(1), family.open(2)
    with second.watch(key) as watch:
        first.write(key, "value")
        until_told(watch, lambda: second.read(1, key) == "value", "a value under an odd key")


def test_a_value_of_the_greatest_size(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    large = "ü" * (VALUE_BYTES_MAX // 2)
    key = "k" * KEY_BYTES_MAX
    first.write(key, large)
    until(second, lambda: second.read(1, key) == large, "a large value")
    first.write(key, "small")
    until(second, lambda: second.read(1, key) == "small", "a small value after it")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k" * (KEY_BYTES_MAX + 1), "value"),
        ("key", "v" * (VALUE_BYTES_MAX + 1)),
        ("", "value"),
        ("key", "half a character: \ud800"),
    ],
    ids=["key", "value", "no-key", "half"],
)
def test_what_does_not_fit_is_refused(
    processes: PostgresFamily | GossipFamily, key: str, value: str
) -> None:
    first = processes.open(1)
    with pytest.raises(LocalProtocolError):
        first.write(key, value)
    first.write("key", "a value that fits")
    assert first.read(1, "key") == "a value that fits"


def test_a_watch_wakes_who_waits_when_another_writes(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    acquainted(first, second)
    with second.watch("address") as watch:
        assert not watch.wait(0), "nothing changed yet"
        waiter = Background(lambda: watch.wait(WAIT_SECONDS_MAX))
        never(lambda: not waiter.running, "nothing changed yet")
        first.write("address", "here")
        assert waiter.result() is True
        assert second.read(1, "address") == "here", "who is woken reads the new value"


def test_a_watch_is_told_of_ones_own_writes(family: Family) -> None:
    first = family.open(1)
    with first.watch() as watch:
        first.write("address", "here")
        assert watch.wait(WAIT_SECONDS_MAX)


def test_a_watch_is_told_of_its_prefix_only(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    acquainted(first, second)
    with second.watch("epoch:") as epochs, second.watch("epoch:ack") as acks:
        first.write("epoc", "1")
        first.write("address", "1")
        first.write("epoch", "1")
        until(second, lambda: second.read(1, "epoch") == "1", "a key beside the prefix")
        assert not epochs.wait(0)
        first.write("epoch:announce", "1")
        until_told(epochs, lambda: second.read(1, "epoch:announce") == "1", "a key of the prefix")
        assert not acks.wait(0)
        first.write("epoch:acknowledge", "1")
        assert acks.wait(WAIT_SECONDS_MAX)


def test_changes_before_a_wait_are_told_together(family: Family) -> None:
    first = family.open(1)
    with first.watch("step") as watch:
        for number in range(50):
            first.write("step", str(number))
        told = 0
        with first.watch("last") as last:
            first.write("last", "")
            assert last.wait(WAIT_SECONDS_MAX), "all that was told before has arrived"
        while watch.wait(0):
            told += 1
        assert told == 1
        never(lambda: watch.wait(0), "nothing changes any more")


def test_every_watch_is_told(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    acquainted(first, second)
    watches = [second.watch(prefix) for prefix in ("", "a", "ad", "address")]
    waiters = [Background(lambda watch=watch: watch.wait(WAIT_SECONDS_MAX)) for watch in watches]  # type: ignore[misc]
    first.write("address", "here")
    assert [waiter.result() for waiter in waiters] == [True] * 4
    for watch in watches:
        watch.close()


def test_a_watch_calls_for_changes_also_for_those_before(family: Family) -> None:
    first, second = family.open(1), family.open(2)
    acquainted(first, second)
    called: queue.SimpleQueue[None] = queue.SimpleQueue()
    with second.watch("step") as watch:
        first.write("step", "1")
        until(second, lambda: second.read(1, "step") == "1", "the first step")
        watch.call(lambda: called.put(None))
        called.get(timeout=WAIT_SECONDS_MAX)  # of a change that nobody waited for
        first.write("step", "2")
        while second.read(1, "step") != "2":
            called.get(timeout=WAIT_SECONDS_MAX)
        assert watch.wait(WAIT_SECONDS_MAX), "who waits is woken all the same"


def test_closing_a_watch_lets_its_waiter_go(family: Family) -> None:
    first = family.open(1)
    watch = first.watch("address")
    waiter = Background(lambda: watch.wait(WAIT_SECONDS_MAX))
    never(lambda: not waiter.running, "nothing changed yet")
    watch.close()
    assert waiter.result() is False
    first.write("address", "here")
    assert not watch.wait(0), "a closed watch tells nothing"
    watch.close()


def test_no_change_is_missed_between_two_waits(family: Family) -> None:
    """Readers look only when they are told to. One wake too few, and a reader waits in vain."""
    writers = [family.open(member) for member in (1, 2, 3)]
    acquainted(*writers)
    last = 40

    def write(writer: KeyValue) -> None:
        for number in range(1, last + 1):
            writer.write("step", str(number))
            if number % 8 == 0:
                time.sleep(0.001)  # others come in between

    def read(reader: KeyValue) -> int:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        seen: dict[int, int] = {}
        looks = 0
        with reader.watch("step") as watch:
            while seen != dict.fromkeys((1, 2, 3), last):
                now = {member: int(value) for member, value in reader.scan("step").items()}
                assert all(now[member] >= seen[member] for member in seen), "a value went back"
                seen, looks = now, looks + 1
                if seen != dict.fromkeys((1, 2, 3), last):
                    woken = watch.wait(max(deadline - time.monotonic(), 0))
                    assert woken, f"not woken after {seen}; by now it is {reader.scan('step')}"
        return looks

    readers = [Background(lambda each=each: read(each)) for each in writers * 2]  # type: ignore[misc]
    writing = [Background(lambda each=each: write(each)) for each in writers]  # type: ignore[misc]
    for each in writing:
        each.result()
    assert all(reader.result() >= 1 for reader in readers)


def test_threads_of_one_member_write_at_once(family: Family) -> None:
    first, second = family.open(1), family.open(2)

    def write(key: str) -> None:
        for number in range(20):
            first.write(key, str(number))
            assert first.read(1, key) == str(number), "the key is this thread's own"

    keys = [f"key-{number}" for number in range(6)]
    for each in [Background(lambda key=key: write(key)) for key in keys]:  # type: ignore[misc]
        each.result()
    until(second, lambda: all(second.read(1, key) == "19" for key in keys), "the last of each")


def test_the_last_value_of_each_slot_is_read(family: Family) -> None:
    members = [family.open(member) for member in range(3)]

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from("abc"),
                st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
            ),
            max_size=20,
        )
    )
    def writes_are_read(writes: list[tuple[int, str, str]]) -> None:
        example = f"example-{next(EXAMPLES)}:"
        expected: dict[str, dict[int, str]] = {key: {} for key in "abc"}
        for member, key, value in writes:
            members[member].write(example + key, value)
            expected[key][member] = value
        for each in members:
            until(
                each,
                lambda: {key: each.scan(example + key) for key in "abc"} == expected,  # noqa: B023
                f"{expected} at member {each.member}",
                example,
            )
            for member, key in itertools.product(range(3), "abc"):
                assert each.read(member, example + key) == expected[key].get(member)

    writes_are_read()
