"""Guards: what they wait for, by a clock that the test turns; and the thread that looks at it."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest

from penstock.transport.carriers import grpc_watch
from penstock.transport.carriers.grpc_watch import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS_MAX = 120.0
"""How long a test waits for what must come: it is reached only by a failure."""
FAR_SECONDS = 1_000_000.0
"""What does not happen within a test."""
SOON_SECONDS = 0.01


def watching() -> bool:
    return any(each.name == "penstock watching" for each in threading.enumerate())


def wait_until_nobody_watches() -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while watching():
        assert time.monotonic() < deadline, "the thread outlives the guards"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def nobody_watches_in_the_end() -> Iterator[None]:
    yield
    wait_until_nobody_watches()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(grpc_watch, "time", made)
    return made


def test_patience_begins_anew_with_each_word(clock: Clock) -> None:
    guard = Guard(20, pytest.fail)
    assert guard.due() == (1020, "it says nothing for 20 s")
    clock.now = 1015
    guard.heard()
    assert guard.due() == (1035, "it says nothing for 20 s")
    guard.drop()


def test_a_write_has_to_be_accepted(clock: Clock) -> None:
    guard = Guard(20, pytest.fail)
    clock.now = 1005
    with guard.writing():
        clock.now = 1010
        guard.heard()  # it speaks, and does not listen
        assert guard.due() == (1025, "it accepts no bytes for 20 s")
    assert guard.due() == (1030, "it says nothing for 20 s")
    guard.drop()


def test_a_limit_counts_from_now(clock: Clock) -> None:
    guard = Guard(5, pytest.fail)
    clock.now = 1004
    guard.limit(60)
    assert guard.due() == (1064, "it says nothing for 60 s")
    guard.drop()


def test_an_end_that_was_announced_is_not_put_off(clock: Clock) -> None:
    guard = Guard(20, pytest.fail)
    guard.end_within(3)
    clock.now = 1002
    guard.heard()
    guard.end_within(3)
    assert guard.due() == (1003, "it does not end the stream")
    guard.drop()


def test_overdue_calls_are_reported_once_each() -> None:
    overdue: queue.SimpleQueue[str] = queue.SimpleQueue()
    patient = Guard(FAR_SECONDS, pytest.fail)
    for place in range(3):
        Guard(SOON_SECONDS * (1 + place), overdue.put)
    found = {overdue.get(timeout=WAIT_SECONDS_MAX) for _ in range(3)}
    assert found == {
        "it says nothing for 0.01 s",
        "it says nothing for 0.02 s",
        "it says nothing for 0.03 s",
    }
    assert watching()
    patient.drop()
    wait_until_nobody_watches()
    assert overdue.empty()


@pytest.mark.parametrize("what", ["limit", "end"])
def test_a_wait_can_be_made_shorter(what: str) -> None:
    """The thread sleeps for long already, and must be woken."""
    overdue: queue.SimpleQueue[str] = queue.SimpleQueue()
    guard = Guard(FAR_SECONDS, overdue.put)
    time.sleep(SOON_SECONDS)
    if what == "limit":
        guard.limit(SOON_SECONDS)
    else:
        guard.end_within(SOON_SECONDS)
    reason = overdue.get(timeout=WAIT_SECONDS_MAX)
    assert (
        reason == {"limit": "it says nothing for 0.01 s", "end": "it does not end the stream"}[what]
    )


def test_a_guard_that_was_dropped_is_silent() -> None:
    overdue: queue.SimpleQueue[str] = queue.SimpleQueue()
    dropped = Guard(SOON_SECONDS, pytest.fail)
    dropped.drop()
    dropped.drop()
    Guard(3 * SOON_SECONDS, overdue.put)
    assert overdue.get(timeout=WAIT_SECONDS_MAX)


def test_a_failure_does_not_harm_the_others(caplog: pytest.LogCaptureFixture) -> None:
    overdue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def fail(_reason: str) -> None:
        raise RuntimeError("on purpose")

    Guard(SOON_SECONDS, fail)
    Guard(3 * SOON_SECONDS, overdue.put)
    assert overdue.get(timeout=WAIT_SECONDS_MAX)
    assert "could not be ended: it says nothing" in caplog.text


def test_guards_may_come_and_go_in_any_thread() -> None:
    def come_and_go() -> None:
        for _ in range(300):
            Guard(FAR_SECONDS, pytest.fail).drop()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until_nobody_watches()
    overdue: queue.SimpleQueue[str] = queue.SimpleQueue()
    Guard(SOON_SECONDS, overdue.put)
    assert overdue.get(timeout=WAIT_SECONDS_MAX)
