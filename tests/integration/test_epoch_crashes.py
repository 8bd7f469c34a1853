"""A leader and two members, real processes, one of them killed at every one of its steps.

Whatever the step, the others and the victim's next life reach one decision for every epoch, the
one on record, and each committed epoch has every member's snapshot, whole, and its rows.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.directory.gossip import GossipKeyValue
from penstock.epoch.decisions import DecisionLog
from tests.integration import epoch_processes as processes
from tests.postgres_server import Database, database

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from pathlib import Path

__all__ = ["database"]

SECONDS_MAX = 120.0
"""After which a step counts as stuck. It takes about three."""
AT_ONCE = 8
"""Clusters that run beside each other: most of the time they wait for a timeout."""
MORE_COMMITS = 2
"""Asked for after the victim's return: the cluster works again."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integration.epoch_processes"])
_POLLING = threading.Lock()
"""Starting a process looks at all others, and two threads that look at one at once take its exit
code from each other: then it is 255."""


def exit_code(process: BaseProcess) -> int | None:
    with _POLLING:
        return process.exitcode


def has_ended(process: BaseProcess) -> bool:
    return exit_code(process) is not None


class Cluster:
    def __init__(self, place: Path, database: Database | None) -> None:
        self.database = database
        self.setting = processes.Setting(str(place))
        if database is not None:
            self.setting = processes.Setting(
                str(place), conninfo=database.conninfo, cluster=f"step-{place.name}"
            )
        self.keyvalue = self.setting.keyvalue(processes.PARENT)
        if isinstance(self.keyvalue, GossipKeyValue):
            self.setting = processes.Setting(str(place), self.keyvalue.address)
        self.log = DecisionLog(self.setting.records())
        self.running: dict[str, BaseProcess] = {}

    def start(
        self, who: str, fatal: int | None = None, version: processes.Version = "current"
    ) -> None:
        target: Callable[..., None] = processes.run_leader
        number = processes.LEADER
        if who != "leader":
            target, number = processes.run_member, int(who.removeprefix("member "))
        arguments = (self.setting, number, fatal, version)
        process = CONTEXT.Process(target=target, args=arguments, daemon=True)
        with _POLLING:
            process.start()
        self.running[who] = process

    def commits(self) -> list[int]:
        found = (self.log.read(epoch) for epoch in self.log.epochs())
        return [decision.epoch for decision in found if decision and decision.is_commit]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.state()}"
            time.sleep(0.02)

    def state(self) -> str:
        alive = {who: exit_code(process) for who, process in self.running.items()}
        return f"exit codes {alive}, decisions {[self.log.read(e) for e in self.log.epochs()]}"

    def stop(self) -> None:
        for who in ("leader", "leader members"):
            self.keyvalue.write(processes.STOP_KEY, who)
            for name, process in self.running.items():
                if name == "leader" or who != "leader":
                    self.wait_for(partial(has_ended, process), name)
                    assert exit_code(process) == 0, f"{name} did not end in order: {self.state()}"

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            with _POLLING:
                process.join()
        self.keyvalue.close()


def run_case(place: Path, database: Database | None, victim: str, fatal: int) -> bool:
    """Whether the victim came as far as its fatal step."""
    cluster = Cluster(place, database)
    try:
        for who in ("member 1", "member 2", "leader"):
            cluster.start(who, fatal if who == victim else None)
        killed = cluster.running[victim]
        cluster.wait_for(
            lambda: exit_code(killed) is not None or len(cluster.commits()) > 3, "at first"
        )
        if exit_code(killed) is not None:
            assert exit_code(killed) == -signal.SIGKILL, f"it ended otherwise: {cluster.state()}"
            wanted = len(cluster.commits()) + MORE_COMMITS
            cluster.start(victim)
            cluster.wait_for(lambda: len(cluster.commits()) >= wanted, f"after step {fatal}")
        cluster.stop()
        check(cluster)
        return exit_code(killed) == -signal.SIGKILL
    finally:
        cluster.close()


def check(cluster: Cluster) -> None:
    decisions = [cluster.log.read(epoch) for epoch in cluster.log.epochs()]
    assert [decision.epoch for decision in decisions if decision] == list(
        range(1, len(decisions) + 1)
    )
    commits = cluster.commits()
    for member in processes.MEMBERS:
        store = cluster.setting.snapshots(member)
        assert store.committed() == commits, f"member {member}"
        assert store.epochs() == commits, f"member {member} is in doubt, or kept what was aborted"
        for epoch in commits:
            snapshot = store.load(epoch)
            for name, expected in processes.parts_of(member, epoch).items():
                assert bytes(snapshot.part(name)) == expected
        if cluster.database is not None:
            assert rows_of(cluster, member) == commits, f"member {member}"


def rows_of(cluster: Cluster, member: int) -> list[int]:
    assert cluster.database is not None
    with cluster.database.connect() as connection:
        found = connection.execute(
            "SELECT epoch FROM rows WHERE cluster = %s AND member = %s ORDER BY epoch",
            (cluster.setting.cluster, member),
        )
        return [int(str(epoch)) for (epoch,) in found]


def run_cases(place: Path, database: Database | None, victim: str, least_steps: int) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        steps = range(1, 2 * least_steps + 1)
        came = pool.map(lambda step: run_case(place / str(step), database, victim, step), steps)
        reached = [step for step, did in zip(steps, came, strict=True) if did]
    assert set(range(1, least_steps + 1)) <= set(reached), "the first epoch has that many steps"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "least_steps"), [("leader", 16), ("member 2", 10)], ids=["leader", "member"]
)
def test_a_kill_at_every_step_changes_no_decision(
    victim: str, least_steps: int, tmp_path: Path
) -> None:
    run_cases(tmp_path, None, victim, least_steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "least_steps"), [("leader", 16), ("member 2", 14)], ids=["leader", "member"]
)
def test_a_database_takes_part_and_keeps_the_records(
    victim: str, least_steps: int, tmp_path: Path, database: Database
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE rows (cluster text, member int, epoch int)")
    run_cases(tmp_path, database, victim, least_steps)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("older", "current"), ("current", "newer")])
@pytest.mark.parametrize("first", ["leader", "member 1"])
def test_a_cluster_is_upgraded_one_process_after_the_other(
    before: processes.Version, after: processes.Version, first: str, tmp_path: Path
) -> None:
    """At every step there are two versions, and epochs go on being committed; also when one process
    goes back to the version before."""
    cluster = Cluster(tmp_path, None)

    def commits_more() -> None:
        wanted = len(cluster.commits()) + MORE_COMMITS
        cluster.wait_for(lambda: len(cluster.commits()) >= wanted, "with two versions")

    def replace(who: str, version: processes.Version) -> None:
        old = cluster.running[who]
        old.kill()
        with _POLLING:
            old.join()
        cluster.start(who, version=version)
        commits_more()

    everybody = sorted(("member 1", "member 2", "leader"), key=lambda who: who != first)
    try:
        for who in everybody:
            cluster.start(who, version=before)
        commits_more()
        for who in everybody:
            replace(who, after)
        replace(first, before)
        cluster.stop()
        check(cluster)
    finally:
        cluster.close()
