"""A shuffle whose members are tasks of a Spark barrier job; the Session is in the driver's process.

When a member is lost, Spark ends the job, and the next session has another one, and other secrets:
tasks of the old one that live on for a moment are strangers to it, and a lock holds a new member
back until the old one has left the queue's folder. A session that ends in order leaves its tasks to
the next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import LocalProtocolError
from penstock.shuffle.crew import LOOPBACK, STEP_SECONDS_MAX, CrewShuffle
from penstock.shuffle.flights import reader_material
from penstock.shuffle.member_messages import Over
from penstock.shuffle.process_member import Given
from penstock.shuffle.resume import queue_generations
from penstock.shuffle.serving import Served
from penstock.shuffle.session.actor import EPOCH_SECONDS, MemberLostError
from penstock.spark.cluster.job import MemberJob, first_line
from penstock.spark.cluster.joining import Door, Ticket
from penstock.spark.cluster.places import cast_members, queue_folder
from penstock.spark.cluster.server import ClusterClosedError
from penstock.spark.cluster.slots import await_slots, is_local
from penstock.transport.security import Token

if TYPE_CHECKING:
    from pyspark import SparkContext

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.crew import Crew, Terms
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.finding import Finder
    from penstock.shuffle.member import Settings, Setup
    from penstock.shuffle.member_messages import MemberMessage
    from penstock.shuffle.process_member import Order
    from penstock.spark.cluster.joining import DriverWire, Joining
    from penstock.transport.certificates import Material

_LOOK_SECONDS: Final = 0.25


class SparkShuffle(CrewShuffle):
    """From `start` to `close`; a context."""

    on_spark = True

    def __init__(
        self,
        context: SparkContext,
        feed: Feed,
        store: ReadableStore,
        folder: Path,
        *,
        members: int,
        queues_beside: bool,
        finder: Finder,
        closing: threading.Event,
        settings: Settings | None = None,
        epoch_seconds: float = EPOCH_SECONDS,
        directory: str | None = None,
    ) -> None:
        """Queues are in `folder` too, with `queues_beside`; else in Spark's local directories. With
        `closing` set, nothing is begun any more."""
        self._local = is_local(context.master)
        super().__init__(
            feed,
            store,
            folder,
            members=members,
            settings=settings,
            epoch_seconds=epoch_seconds,
            host=driver_host(context),
            directory=directory,
        )
        self._context = context
        self._queues_beside = queues_beside
        self._finder = finder
        self._closing = closing
        self._job: MemberJob | None = None
        self._tasks: dict[int, Task] = {}
        """Of the job, by what they are or were."""
        self._reading: tuple[Material, str] | None = None
        """What readers connect with, and the token that they show."""

    @property
    def process_ids(self) -> dict[int, int]:
        """Of the members that run. They may be on other machines."""
        return {member: task.joining.process for member, task in self._tasks.items()}

    @property
    def machines(self) -> dict[int, str]:
        """Where members run."""
        return {member: task.joining.machine for member, task in self._tasks.items()}

    def queue_folder(self, member: int) -> Path:
        task = self._tasks.get(member)
        return super().queue_folder(member) if task is None else Path(task.folder)

    def served(self, member: int) -> Served | None:
        if self._crew is None or self._reading is None:
            raise LocalProtocolError("the shuffle is not started")
        location = self._crew.serving[member]
        machine = self._tasks[member].joining.machine
        return Served(member, machine, location, *self._reading, self._finder)

    def close(self) -> None:
        super().close()
        self._end_job(in_order=bool(self._tasks))

    def _muster(self, crew: Crew, terms: Terms) -> None:
        if not self._tasks:
            self._start_job(terms)
        read_token = Token.generate().secret
        self._reading = reader_material(terms.security), read_token
        for member, task in self._tasks.items():
            crew.add(member, TaskHost(member, task))
            given = Given(
                self._setup_on(task.joining.machine, terms.setup),
                terms.security.member_security(member),
                self._store.address,
                terms.meeting,
                str(self.folder / "cluster"),
                task.folder,
                task.joining.host,
                read_token=read_token,
            )
            with contextlib.suppress(OSError):  # it is gone already, which the crew finds out
                task.wire.send(given)

    def _setup_on(self, machine: str, setup: Setup) -> Setup:
        """With the queues that are handed over, as far as they are on that machine."""
        if setup.handover is None:
            return setup
        wanted = queue_generations(self._place, setup.epoch, setup.handover.before.members)
        held = [
            (task.joining.machine, member, one.folder)
            for task in self._tasks.values()
            for member, one in task.joining.held.items()
            if one.generation == wanted.get(member)
        ]
        queues = {member: folder for where, member, folder in held if where == machine}
        elsewhere = frozenset(member for _, member, _ in held) - queues.keys()
        return replace(setup, handover=replace(setup.handover, queues=queues, elsewhere=elsewhere))

    def _start_job(self, terms: Terms) -> None:
        taken = sum(job.members for job in MemberJob.running)
        await_slots(self._context, len(self.members), taken)
        door = Door(self._host, terms.security)
        try:
            ticket = Ticket(
                self._host,
                door.port,
                door.authority,
                door.token,
                self.folder.name,
                str(self.folder) if self._queues_beside else "",
                self._context.getConf().get("spark.local.dir", ""),
                self._local,
            )
            self._job = MemberJob(self._context, ticket, len(self.members))
            came = self._await_tasks(door, self._job)
        finally:
            door.close()
        handover = terms.setup.handover
        filled = self.members if handover is None else handover.before.members
        wanted = queue_generations(self._place, terms.setup.epoch, filled)
        held = [
            {
                member: one.folder
                for member, one in joining.held.items()
                if one.generation == wanted.get(member)
            }
            for _, joining in came
        ]
        cast = cast_members(self.members, held)
        for member, (wire, joining), found in zip(cast, came, held, strict=True):
            folder = found.get(member) or queue_folder(joining.folder, member)
            self._tasks[member] = Task(wire, joining, folder)

    def _await_tasks(self, door: Door, job: MemberJob) -> list[tuple[DriverWire, Joining]]:
        came: list[tuple[DriverWire, Joining]] = []
        deadline = time.monotonic() + STEP_SECONDS_MAX
        try:
            while len(came) < job.members:
                if self._closing.is_set():
                    raise ClusterClosedError(self.folder.name)
                if (found := door.wait(_LOOK_SECONDS)) is not None:
                    came.append(found)
                elif job.ended.is_set():
                    reason = "it ended" if job.failure is None else first_line(job.failure)
                    raise MemberLostError(f"Spark did not run the members: {reason}")
                elif time.monotonic() > deadline:
                    raise MemberLostError(
                        f"Spark has started {len(came)} of {job.members} members in "
                        f"{STEP_SECONDS_MAX:g} s: other jobs take its slots, or its executors "
                        f"cannot connect to {self._host}"
                    )
        except BaseException:
            for wire, _ in came:
                wire.cut()
            raise
        return came

    def _dismiss(self) -> None:
        if not all(task.is_free for task in self._tasks.values()):
            self._end_job(in_order=False)

    def _end_job(self, *, in_order: bool) -> None:
        tasks, self._tasks = self._tasks, {}
        job, self._job = self._job, None
        for task in tasks.values():
            with contextlib.suppress(OSError):
                task.wire.send(None)
        if job is not None:
            job.close(in_order=in_order)
        for task in tasks.values():
            task.wire.cut()


def driver_host(context: SparkContext) -> str:
    """By which executors reach this process."""
    if is_local(context.master):
        return LOOPBACK
    return str(context.getConf().get("spark.driver.host", LOOPBACK))


@dataclass(slots=True)
class Task:
    """A task of the job, and the connection to it."""

    wire: DriverWire
    joining: Joining
    folder: str
    """Of its queue."""
    is_free: bool = False
    """It was a member, which was closed in order."""


class TaskHost:
    """A task while it is a member."""

    def __init__(self, member: int, task: Task) -> None:
        self._member = member
        self._task = task
        self._ended = threading.Event()
        task.is_free = False

    def send(self, order: Order) -> None:
        self._task.wire.send(order)

    def receive(self) -> MemberMessage:
        try:
            found = self._task.wire.receive()
        except (EOFError, OSError):
            self._ended.set()
            raise
        if isinstance(found, Over):
            self._task.is_free = True
            self._ended.set()
            raise EOFError("the member was closed")
        return found

    def how_it_ended(self) -> str:
        joining = self._task.joining
        return (
            f"the task of member {self._member} is gone (process {joining.process} on "
            f"{joining.host}); Spark's log of that executor says why"
        )

    def wait_ended(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def kill(self) -> None:
        if not self._task.is_free:
            self._task.wire.cut()  # where it runs, it ends by itself

    def close(self) -> None:
        """The connection is the job's."""
