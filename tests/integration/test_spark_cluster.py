"""`penstock.cluster`: members as tasks of Spark, killed, rescaled, and on two machines.

Each Spark here is another process's, with slots of its own: the program is cluster_program.py. The
two machines of the second test are workers on this one that are told to be two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.waiting import eventually
from tests.standalone import ROOT, Standalone

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

WAIT_SECONDS_MAX = 300.0


class Program:
    """cluster_program.py, as a process, and what it said so far."""

    def __init__(self, folder: Path, *arguments: str, temporary: Path | None = None) -> None:
        self._errors = folder / "stderr"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.cluster_program", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("w"),
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary or folder)},
        )

    def hear(self, what: str) -> dict[str, Any]:
        """The next thing it says, which must be this."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()[-5_000:]
        said: dict[str, Any] = json.loads(line)
        assert said["what"] == what
        return said

    def wait(self) -> None:
        assert self._process.wait(WAIT_SECONDS_MAX) == 0, self._errors.read_text()[-5_000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.end()


def _check_result(said: dict[str, Any]) -> list[list[Any]]:
    """The same documents as the batch reader has, once each."""
    delivered: list[list[Any]] = said["delivered"]
    assert Counter(map(tuple, said["batch"])) == Counter((row[0], row[1]) for row in delivered)
    assert delivered
    return delivered


def _is_gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder in which a socket fits: pytest's are named after workers and tests."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_members_on_one_machine(tmp_path: Path, short: Path, programs: list[Program]) -> None:
    programs.append(program := Program(tmp_path, "local", str(tmp_path), temporary=short))
    assert "1 missing" in program.hear("too few")["error"]
    killed = program.hear("killed")
    assert set(killed["before"]) == set(killed["after"]) == {"1", "2"}
    assert killed["before"]["1"] != killed["after"]["1"]
    assert killed["consumer"] == "spark"
    assert killed["restarts"]
    assert killed["restarts"][0].startswith("the task of member ")
    rescaled = program.hear("rescaled")
    assert {row[2] for row in rescaled["failed"]} == {1, 2, 3}, "read again, of three members"
    assert rescaled["warnings"] == [], "as it was queued"
    delivered = _check_result(program.hear("result"))
    # Documents of one vnode are at one member, but for those that moved to the third.
    members: dict[int, set[int]] = {}
    for row in delivered:
        members.setdefault(row[3], set()).add(row[2])
    assert {member for found in members.values() for member in found} == {1, 2, 3}
    assert all(len(found - {3}) <= 1 for found in members.values())
    assert "stop queries before" in program.hear("left")["error"]
    # Nothing outlives the driver, however it ends: the operating system tells the members.
    waiting = program.hear("waiting")
    everybody = [*killed["before"].values(), *waiting["processes"].values()]
    program.kill()
    eventually(lambda: all(map(_is_gone, everybody)), "the end of all members", 60.0)
    assert len(list(short.glob("penstock-cluster-*"))) == 1, "swept at the next start"


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(tmp_path, slots=3)
    yield made
    made.close()


def test_members_on_other_machines(
    tmp_path: Path, programs: list[Program], standalone: Standalone
) -> None:
    programs.append(program := Program(tmp_path, "standalone", str(tmp_path), standalone.url))
    seen = program.hear("machines")
    machines = seen["machines"]
    assert set(machines) == {"1", "2"}
    assert set(machines.values()) <= {"a", "b"}, "members are not on the driver's machine"
    # After all members were killed, a plan that was made before is carried out: what is not on the
    # task's own machine is where the driver says.
    places = [
        [Counter((row[0], row[1]) for row in rows) for rows in seen[which]]
        for which in ("first", "again")
    ]
    assert places[0] == places[1]
    assert any(places[0])
    assert seen["batches"] > 1
    # Another member, on one of the machines: it takes over what is on the other one, too.
    rescaled = program.hear("rescaled")
    assert {row[2] for row in rescaled["failed"]} == {1, 2, 3}
    assert rescaled["warnings"] == [], "as it was queued"
    machines = {**machines, **rescaled["machines"]}
    delivered = _check_result(program.hear("result"))
    # Which task is where is Spark's choice; but the one machine has not read everything of its own.
    remote = [row for row in delivered if row[5] != machines[str(row[2])]]
    assert remote, "nothing was read from another machine"
    program.wait()
    queues = {path.name for path in tmp_path.glob("disk-*/**/penstock/*/member-*")}
    assert queues <= {"member-1", "member-2", "member-3"}, (
        "in Spark's own directories, until Spark removes them"
    )
    assert not list(tmp_path.glob("store/feeds/*/member-*"))
