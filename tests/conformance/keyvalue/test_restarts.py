"""A member's process ends, and another one takes its place."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LocalProtocolError
from tests.conformance.keyvalue.families import acquainted, until
from tests.conformance.waiting import WAIT_SECONDS_MAX, Background, eventually, never

if TYPE_CHECKING:
    from tests.conformance.keyvalue.families import GossipFamily, PostgresFamily


def test_a_member_that_is_started_again_begins_with_an_empty_slot(
    processes: PostgresFamily | GossipFamily,
) -> None:
    first, second = processes.open(1), processes.open(2)
    first.write("address", "here")
    first.write("state", "running")
    until(second, lambda: second.read(1, "state") == "running", "the slot's values")
    first.close()
    again = processes.open(1)
    assert again.generation > first.generation
    again.write("address", "there")
    assert again.read(1, "state") is None
    until(second, lambda: second.read(1, "address") == "there", "the new address")
    until(second, lambda: second.read(1, "state") is None, "the old slot to be gone")
    assert second.scan("address") == {1: "there"}


def test_a_watch_is_told_that_a_member_was_started_again(
    processes: PostgresFamily | GossipFamily,
) -> None:
    first, second = processes.open(1), processes.open(2)
    acquainted(first, second)
    first.write("epoch:ack", "7")
    until(second, lambda: second.read(1, "epoch:ack") == "7", "the old value")
    with second.watch("epoch:") as watch:
        while watch.wait(0):
            pass
        again = processes.open(1)
        assert again.read(1, "epoch:ack") is None
        assert watch.wait(WAIT_SECONDS_MAX), "nobody was told"
        while second.read(1, "epoch:ack") is not None:
            assert watch.wait(WAIT_SECONDS_MAX), "the value is gone, and nobody was told"


def test_a_process_that_was_replaced_cannot_write(
    processes: PostgresFamily | GossipFamily,
) -> None:
    old, second = processes.open(1), processes.open(2)
    acquainted(old, second)
    new = processes.open(1)
    new.write("address", "new")

    def refusal() -> str:
        try:
            old.write("address", "old")
        except LocalProtocolError as error:
            return str(error)
        return ""

    why = eventually(refusal, "the old process to learn that it was replaced")
    assert "member 1" in why
    assert "was started again elsewhere" in why
    until(second, lambda: second.read(1, "address") == "new", "the new process's address")
    with suppress(LocalProtocolError):
        old.write("address", "old")
    never(lambda: second.read(1, "address") != "new", "the old process was heard")
    assert new.read(1, "address") == "new"
    new.write("address", "newer")
    until(second, lambda: second.read(1, "address") == "newer", "the new process's second address")


def test_closing_a_store_lets_its_waiters_go(processes: PostgresFamily | GossipFamily) -> None:
    first = processes.open(1)
    watch = first.watch("address")
    waiter = Background(lambda: watch.wait(WAIT_SECONDS_MAX))
    never(lambda: not waiter.running, "nothing changed yet")
    first.close()
    assert waiter.result() is False
    first.close()


def test_what_a_closed_member_wrote_stays(processes: PostgresFamily | GossipFamily) -> None:
    first, second = processes.open(1), processes.open(2)
    first.write("address", "here")
    until(second, lambda: second.read(1, "address") == "here", "the address")
    first.close()
    assert second.read(1, "address") == "here"
    with pytest.raises(LocalProtocolError):
        first.write("address", "there")
