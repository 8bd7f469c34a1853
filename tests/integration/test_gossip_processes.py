"""Five processes on gossip at its default settings: they find each other, notice within three
seconds who is killed, and do not take a slow one for dead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.waiting import Background, eventually
from tests.stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBERS = 5
NOTICED_SECONDS_MAX = 3.0
SLOW_SECONDS = 1.0
ATTEMPTS_MAX = 3
STALL_SECONDS_MAX = 0.2
"""This machine is shared. If one of the processes stood still for longer than that, a time measured
says nothing of gossip, and is measured again; if one always stands still, then only that it is
noticed counts."""

CHILD = """
import json, sys, threading, time
from penstock.directory.gossip import GossipKeyValue
from tests.stalls import Stalls

member, seeds = int(sys.argv[1]), sys.argv[2:]
gossip = GossipKeyValue(member, b"the key of five processes", seeds)

stalls = Stalls()

def spin(until):
    while time.monotonic() < until:
        sum(range(1000))

def do(command, *arguments):
    if command == "state":
        return {
            "members": {m: [s.status.value, s.generation] for m, s in gossip.members().items()},
            "events": [
                [event.change.value, event.member, event.generation, event.at_seconds]
                for event in gossip.membership_events()
            ],
        }
    if command == "write":
        return gossip.write(*arguments)
    if command == "scan":
        return gossip.scan(*arguments)
    if command == "spin":
        until = time.monotonic() + arguments[0]
        for _ in range(2):
            threading.Thread(target=spin, args=(until,), daemon=True).start()
        return None
    if command == "stalled":
        return stalls.take()
    if command == "close":
        return gossip.close()

print(json.dumps(gossip.address), flush=True)
for line in sys.stdin:
    print(json.dumps(do(*json.loads(line))), flush=True)
"""


class Child:
    """A member in a process of its own, which answers line by line."""

    def __init__(self, member: int, seeds: list[str]) -> None:
        self.member = member
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(member), *seeds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._lock = threading.Lock()
        self.address: str = self._answer()

    def ask(self, command: str, *arguments: object) -> Any:
        with self._lock:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
            self.process.stdin.flush()
            return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = Background(self.process.stdout.readline, f"member {self.member}").result()
        assert line, f"member {self.member} ended"
        return json.loads(line)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def statuses(self) -> dict[int, str]:
        members = self.ask("state")["members"]
        return {int(member): status for member, (status, _) in members.items()}

    def changes(self, member: int) -> list[str]:
        """What happened to a member, as this one saw it."""
        return [change for change, who, _, _ in self.ask("state")["events"] if who == member]

    def has_seen(self, member: int, changes: list[str]) -> bool:
        return self.changes(member) == changes

    def sees_all(self) -> bool:
        return self.statuses() == dict.fromkeys(range(MEMBERS), "alive")

    def reads(self, key: str, values: dict[int, str]) -> bool:
        return {int(member): value for member, value in self.ask("scan", key).items()} == values

    def deaths(self) -> list[int]:
        return [who for change, who, _, _ in self.ask("state")["events"] if change == "died"]


@dataclass
class Cluster:
    members: dict[int, Child]

    def start(self, member: int) -> Child:
        seeds = [child.address for child in self.members.values() if child.member != member]
        self.members[member] = Child(member, seeds[:1])
        return self.members[member]

    def others(self, than: int) -> list[Child]:
        return [child for member, child in self.members.items() if member != than]

    def all_see(self, member: int, *changes: str) -> None:
        """Waits until everybody else has seen all that happen to it."""
        for child in self.others(member):
            seen = partial(child.has_seen, member, list(changes))
            eventually(seen, f"that member {child.member} sees {member}: {' '.join(changes)}")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster({})
    try:
        cluster.start(0)
        starting = [Background(partial(cluster.start, member)) for member in range(1, MEMBERS)]
        for started in starting:
            started.result()
        for child in cluster.members.values():
            eventually(child.sees_all, f"that member {child.member} sees all five")
        yield cluster
    finally:
        for child in cluster.members.values():
            child.end()


def test_five_find_each_other_and_read_each_other(cluster: Cluster) -> None:
    for member, child in cluster.members.items():
        child.ask("write", "name", f"{member}")
        child.ask("write", "large", f"{member}" * 30_000)
    for child in cluster.members.values():
        for key, times in (("name", 1), ("large", 30_000)):
            values = {member: str(member) * times for member in range(MEMBERS)}
            reads = partial(child.reads, key, values)
            eventually(reads, f"that member {child.member} reads everybody's {key}")
    cluster.members[2].ask("close")
    cluster.all_see(2, "joined", "left")
    assert not any(child.deaths() for child in cluster.members.values())


@pytest.mark.slow
def test_a_killed_member_is_noticed_within_three_seconds_and_its_restart_seen(
    cluster: Cluster,
) -> None:
    """The times are the observers' own: the monotonic clock is one for all processes."""
    expected = ["joined"]
    for _ in range(ATTEMPTS_MAX):
        observers = cluster.others(4)
        for child in observers:
            child.ask("stalled")
        killed_at = time.monotonic()
        cluster.members[4].signal(signal.SIGKILL)
        cluster.all_see(4, *expected, "died")
        stalled_seconds = max(float(child.ask("stalled")) for child in observers)
        noticed = {
            child.member: max(at for change, who, _, at in child.ask("state")["events"] if who == 4)
            - killed_at
            for child in observers
        }
        cluster.members[4].end()
        cluster.start(4)
        expected += ["died", "restarted"]
        cluster.all_see(4, *expected)
        assert min(noticed.values()) > 1, f"that was a guess: {noticed}"
        if max(noticed.values()) <= NOTICED_SECONDS_MAX:
            break
        assert stalled_seconds > STALL_SECONDS_MAX, (
            f"noticed after {noticed}, with stalls of {stalled_seconds} s"
        )
    generations = {child.ask("state")["members"]["4"][1] for child in cluster.members.values()}
    assert len(generations) == 1, "all mean the same life of it"
    assert {who for child in cluster.others(4) for who in child.deaths()} == {4}


@pytest.mark.slow
def test_a_slow_member_is_not_taken_for_dead(cluster: Cluster) -> None:
    slow, busy = cluster.members[3], cluster.members[1]
    busy.ask("spin", 8.0)
    stalls = Stalls()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as load:
        try:
            for _ in range(3):
                slow.signal(signal.SIGSTOP)
                time.sleep(SLOW_SECONDS)
                slow.signal(signal.SIGCONT)
                time.sleep(0.5)
            time.sleep(NOTICED_SECONDS_MAX)
        finally:
            load.kill()
    stalled_seconds = stalls.end()
    if stalled_seconds > SLOW_SECONDS / 2 and any(
        child.deaths() for child in cluster.members.values()
    ):
        pytest.skip(f"this machine stood still for {stalled_seconds:.1f} s")
    for child in cluster.members.values():
        assert child.deaths() == []
        assert set(child.statuses().values()) == {"alive"}


@pytest.mark.slow
def test_a_member_that_was_cut_off_comes_back_with_all_that_happened(cluster: Cluster) -> None:
    away = cluster.members[2]
    away.ask("write", "k", "before")
    away.signal(signal.SIGSTOP)
    try:
        cluster.all_see(2, "joined", "died")
        cluster.members[0].ask("write", "k", "meanwhile")
        cluster.members[0].ask("write", "large", "x" * 100_000)
    finally:
        away.signal(signal.SIGCONT)
    cluster.all_see(2, "joined", "died", "returned")
    for key, values in (
        ("k", {0: "meanwhile", 2: "before"}),
        ("large", {0: "x" * 100_000}),
    ):
        eventually(partial(away.reads, key, values), f"that it catches up on {key}")
    assert away.deaths() == [], "it was away itself: the others were never silent"
