"""Starts everything, does harm by the schedule, lets it come to an end, and looks at the result."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tests.chaos.processes import (
    DRIVER_JAVA,
    EXECUTOR,
    SOURCE,
    Running,
    running,
    running_as,
    send,
)
from tests.chaos.schedule import Event, Fault
from tests.standalone import ROOT, TWO_HOSTS, WORKERS, Standalone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRODUCERS = 2
LOOK_SECONDS = 0.1
LATE_SECONDS = 1.5
"""Between events that had to wait for a victim."""
START_SECONDS_MAX = 600.0
DRAIN_SECONDS_MAX = 600.0
"""Only what hangs takes so long; but the machine may be busy with other tests."""
STARTS_MAX = 3
"""Of a driver that ends before its queries have begun: Spark waits ten seconds for a Python worker
to start, which is too short on a machine that is busy, and cannot be told otherwise."""
GONE_SECONDS_MAX = 180.0
DRIVER_SLOTS = 2


class Wrong(Exception):  # noqa: N818 - it is what the run says in the end
    """An output is not what was written."""


@dataclass(frozen=True, slots=True)
class Mending:
    due: float
    mend: Callable[[], None]
    what: str


VICTIMS = (Fault.SOURCE, Fault.DRIVER, Fault.JAVA, Fault.MEMBER, Fault.PRODUCER, Fault.PAUSE)
"""Faults of processes that every kind of run has."""
SLOTS = 4
"""Of a worker: all members of both queries, and no batch, if there is only one worker."""


class Chaos:
    """From its making to `close`. What is written, read and broken is a subclass's."""

    package: ClassVar[str]
    """Has the modules `driver` and `producer`."""
    queries: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path, mark: str, seed: int, *, with_cluster: bool) -> None:
        self._folder = folder
        self.mark = mark
        self._seeds = (f"{seed} {number}" for number in itertools.count())
        self._begun = time.monotonic()
        self._cluster: Standalone | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._producers: list[subprocess.Popen[bytes]] = []
        self._mendings: list[Mending] = []
        self.done: Counter[Fault] = Counter()
        self.batches: dict[str, int] = {}
        """The last of each query, as far as the driver has told."""
        try:
            self._open()
            self._cluster = Standalone(folder, SLOTS, TWO_HOSTS) if with_cluster else None
            self._begun = time.monotonic()
            self._producers = [self._new_producer(place) for place in range(PRODUCERS)]
            self._start_driver()
        except BaseException:
            self.close()
            raise

    # What a subclass has

    def _open(self) -> None:
        """Starts what the programs write to and read from. `_shut` ends it, as far as it came."""
        raise NotImplementedError

    def _shut(self) -> None:
        raise NotImplementedError

    @property
    def _where(self) -> str:
        """What the driver is told beside the folder and Spark's master."""
        raise NotImplementedError

    def _producer_arguments(self, place: int) -> tuple[str, ...]:
        """What a producer is told beside the folder."""
        raise NotImplementedError

    def _settle(self) -> None:
        """The producers have ended."""

    def _judge(self) -> dict[str, int]:
        """Raises Wrong, or says how much there was."""
        raise NotImplementedError

    def _is_own(self, one: Running) -> bool:
        """Whether a process is what `_open` has started."""
        raise NotImplementedError

    def _inflict_own(self, event: Event) -> bool:
        """False if there was nobody to hit."""
        raise NotImplementedError

    # What it does

    def rage(self, schedule: list[Event], seconds: float) -> None:
        """What the schedule says, until the time is over."""
        self._await_batches()
        coming, late, next_late = list(schedule), list[Event](), 0.0
        while self._seconds < seconds:
            self._mend_what_is_due()
            self._start_what_ended()
            while coming and coming[0].at_seconds <= self._seconds:
                event = coming.pop(0)
                if not self._inflict(event):
                    late.append(event)
            if late and self._seconds > next_late:
                next_late = self._seconds + LATE_SECONDS
                hit = next((event for event in late if self._inflict(event)), None)
                late = [event for event in late if event is not hit]
            self._hear()
            time.sleep(LOOK_SECONDS)
        for event in late:
            self._say(f"nobody was there for: {event}")

    def _await_batches(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        starts = 1
        while len(self.batches) < len(self.queries) or min(self.batches.values()) < 0:
            if self._driver is None or self._driver.poll() is not None:
                starts += 1
            if starts > STARTS_MAX or time.monotonic() > deadline:
                raise Wrong(f"the queries do not begin: {self.state()}")
            self._start_what_ended()
            self._hear()
            time.sleep(LOOK_SECONDS)
        self._say(f"{' and '.join(self.queries)} write")
        self._begun = time.monotonic()

    def drain(self) -> None:
        """Nothing goes wrong any more: everything is read to its end."""
        for mending in self._mendings:
            mending.mend()
        self._mendings = []
        (self._folder / "stop").touch()
        for producer in self._producers:
            if producer.wait(DRAIN_SECONDS_MAX) != 0:
                raise Wrong(f"a producer ended with {producer.returncode}; see producer.log")
        self._settle()
        (self._folder / "drain").touch()
        self._say("producers have ended; the queries read to the end")
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while self._driver is None or self._driver.poll() != 0:
            self._start_what_ended()
            if time.monotonic() > deadline:
                raise Wrong(f"the queries do not come to an end: {self.state()}")
            self._hear()
            time.sleep(LOOK_SECONDS)
        self._say("the driver has ended")

    def check(self) -> dict[str, int]:
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while left := self._left():
            if time.monotonic() > deadline:
                raise Wrong(f"processes are left behind: {', '.join(map(str, left))}")
            time.sleep(LOOK_SECONDS)
        return self._judge()

    def counts(self) -> dict[str, int]:
        done = {fault.value: count for fault, count in self.done.items()}
        return {**done, **{f"batches of {query}": last + 1 for query, last in self.batches.items()}}

    def state(self) -> str:
        return f"{dict(self.batches)} batches; processes {', '.join(map(str, running(self.mark)))}"

    def close(self) -> None:
        for mending in self._mendings:
            with contextlib.suppress(Exception):
                mending.mend()
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
        for producer in self._producers:
            producer.kill()
        if self._cluster is not None:
            self._cluster.close()
        self._shut()
        for one in running(self.mark):
            send(one.process, signal.SIGKILL)

    # What goes wrong

    def _inflict(self, event: Event) -> bool:
        """False if there was nobody to hit."""
        if event.fault is Fault.WORKER:
            return self._kill_worker(event)
        if event.fault not in VICTIMS:
            return self._inflict_own(event)
        names = self._victims(event.fault)
        if not names:
            return False
        process, name = names[min(int(event.choice * len(names)), len(names) - 1)]
        if event.fault is Fault.PAUSE:
            self._say(f"{name} {process} pauses for {event.lasts_seconds:.1f} s", event)
            send(process, signal.SIGSTOP)
            self._later(event, lambda: send(process, signal.SIGCONT), f"{name} {process} goes on")
        else:
            self._say(f"{name} {process} is killed", event)
            send(process, signal.SIGKILL)
        return True

    def _victims(self, fault: Fault) -> list[tuple[int, str]]:
        def named(fault: Fault, processes: list[int]) -> list[tuple[int, str]]:
            return [(process, fault.value) for process in processes]

        alive = self._driver is not None and self._driver.poll() is None
        driver = [self._driver.pid] if alive and self._driver is not None else []
        found = {
            Fault.SOURCE: named(Fault.SOURCE, running_as(self.mark, SOURCE)),
            Fault.DRIVER: named(Fault.DRIVER, driver),
            Fault.JAVA: named(Fault.JAVA, running_as(self.mark, DRIVER_JAVA)),
            Fault.MEMBER: named(Fault.MEMBER, self._members() if alive else []),
            Fault.PRODUCER: named(Fault.PRODUCER, [each.pid for each in self._producers]),
        }
        if fault is not Fault.PAUSE:
            return found[fault]
        executors = [(one, "executor") for one in running_as(self.mark, EXECUTOR)]
        return [*executors, *(one for each in found.values() for one in each)]

    def _kill_worker(self, event: Event) -> bool:
        cluster = self._cluster
        name = WORKERS[int(event.choice * len(WORKERS))]
        if cluster is None or cluster.workers[name].poll() is not None:
            return False
        self._say(f"worker {name} is killed, for {event.lasts_seconds:.1f} s", event)
        cluster.kill_worker(name)
        self._later(event, lambda: cluster.start_worker(name), f"worker {name} is back")
        return True

    def _later(self, event: Event, mend: Callable[[], None], what: str) -> None:
        self._mendings.append(Mending(self._seconds + event.lasts_seconds, mend, what))

    def _mend_what_is_due(self) -> None:
        due = [mending for mending in self._mendings if mending.due <= self._seconds]
        self._mendings = [mending for mending in self._mendings if mending not in due]
        for mending in due:
            mending.mend()
            self._say(mending.what)

    # What is started, and started again

    def _start_what_ended(self) -> None:
        if self._driver is None or self._driver.poll() is not None:
            if self._driver is not None:
                self._say(f"the driver ended with {self._driver.returncode}, and is started again")
            self._start_driver()
        for place, producer in enumerate(self._producers):
            if producer.poll() == -signal.SIGKILL:
                self._producers[place] = self._new_producer(place)
            elif producer.poll():
                raise Wrong(f"a producer ended with {producer.returncode}; see producer.log")

    def _start_driver(self) -> None:
        (self._folder / "told").unlink(missing_ok=True)
        master = f"local[{DRIVER_SLOTS}]" if self._cluster is None else self._cluster.url
        self._driver = self._start("driver", str(self._folder), master, self._where)

    def _new_producer(self, place: int) -> subprocess.Popen[bytes]:
        return self._start("producer", str(self._folder), *self._producer_arguments(place))

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{program}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"{self.package}.{program}", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._folder / "tmp")},
            )

    # What is seen

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _members(self) -> list[int]:
        with contextlib.suppress(OSError):
            members: list[int] = json.loads((self._folder / "told").read_text())["members"]
            return members
        return []

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            told = json.loads((self._folder / "told").read_text())["batches"]
            for query, number in told.items():
                self.batches[query] = max(self.batches.get(query, -1), number)

    def _left(self) -> list[Running]:
        """Of what the driver and the producers have brought with them."""
        cluster = self._cluster
        own = [] if cluster is None else [each.pid for each in cluster.everybody]
        return [
            one for one in running(self.mark) if one.process not in own and not self._is_own(one)
        ]

    def _say(self, words: str, event: Event | None = None) -> None:
        if event is not None:
            self.done[event.fault] += 1
        sys.stdout.write(f"{self._seconds:6.1f} s  {words}\n")
        sys.stdout.flush()
