"""Members of one cluster, on each kind of store."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from penstock.directory.gossip import GossipKeyValue
from penstock.directory.keyvalue import MemoryKeyValue
from penstock.directory.postgres import PostgresKeyValue
from tests.conformance.waiting import WAIT_SECONDS_MAX
from tests.postgres_server import shared_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.directory.keyvalue import KeyValue, Watch

T = TypeVar("T")


class MemoryFamily:
    def __init__(self) -> None:
        self._root = MemoryKeyValue(0)

    def open(self, member: int) -> KeyValue:
        return self._root.view(member)

    def close(self) -> None:
        return


class PostgresFamily:
    def __init__(self) -> None:
        self._cluster = f"family-{secrets.token_hex(8)}"
        self._opened: list[PostgresKeyValue] = []

    def open(self, member: int) -> PostgresKeyValue:
        opened = PostgresKeyValue(member, shared_server().conninfo(), self._cluster)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


class GossipFamily:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._opened: list[GossipKeyValue] = []

    def open(self, member: int) -> GossipKeyValue:
        seeds = [other.address for other in self._opened]
        opened = GossipKeyValue(member, self._key, seeds)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


Family = MemoryFamily | PostgresFamily | GossipFamily
KINDS: dict[str, Callable[[], Family]] = {
    "memory": MemoryFamily,
    "postgres": PostgresFamily,
    "gossip": GossipFamily,
}
OUTLIVED = ("postgres", "gossip")
"""Those whose members are processes, which end and are started again."""


def until(keyvalue: KeyValue, condition: Callable[[], T], what: str, prefix: str = "") -> T:
    """The condition's value, once it is true: looked at whenever a watch says so, and never because
    time has passed. So this fails if nobody is woken, even if the value is there."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with keyvalue.watch(prefix) as watch:
        return until_told(watch, condition, what, deadline)


def until_told(
    watch: Watch, condition: Callable[[], T], what: str, deadline: float | None = None
) -> T:
    deadline = deadline if deadline is not None else time.monotonic() + WAIT_SECONDS_MAX
    while not (value := condition()):
        if not watch.wait(max(deadline - time.monotonic(), 0)):
            late = "it came, but nobody was woken" if condition() else "it did not come"
            pytest.fail(f"waited {WAIT_SECONDS_MAX:g} s in vain for {what}: {late}")
    return value


def acquainted(*members: KeyValue) -> None:
    """Waits until all of them have heard of each other: nothing of the start is on its way."""
    for each in members:
        each.write("hello", "hello")
    known = {other.member for other in members}
    for each in members:
        until(
            each,
            lambda each=each: set(each.scan("hello")) >= known,  # type: ignore[misc]
            f"member {each.member} to hear of {sorted(known)}",
        )
