"""The barrier job whose tasks are the members: Spark starts all of them, or none."""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from typing import TYPE_CHECKING, Final

from pyspark import InheritableThread

from penstock.spark.cluster.task import run_task

if TYPE_CHECKING:
    from pyspark import SparkContext

    from penstock.spark.cluster.joining import Ticket

END_SECONDS_MAX: Final = 10.0


class MemberJob:
    """From its making to `close`."""

    running: Final[set[MemberJob]] = set()
    """Those of this process, which has one Spark."""

    def __init__(self, context: SparkContext, ticket: Ticket, members: int) -> None:
        self.members: Final = members
        self.failure: BaseException | None = None
        self.ended: Final = threading.Event()
        self._context = context
        self._ticket = ticket
        self._group: Final = f"penstock-{uuid.uuid4().hex}"
        self._thread = InheritableThread(target=self._run, name="penstock job", daemon=True)
        self.running.add(self)
        self._thread.start()

    def close(self, *, in_order: bool) -> None:
        """Ends what still runs, in order after a moment, if the tasks were told to end. Spark takes
        some seconds until their processes are gone."""
        if in_order:
            self.ended.wait(END_SECONDS_MAX)
        if not self.ended.is_set():
            with contextlib.suppress(Exception):  # Spark may be over already
                self._context.cancelJobGroup(self._group)
        self.ended.wait(END_SECONDS_MAX)
        self.running.discard(self)

    def _run(self) -> None:
        try:
            self._context.setJobGroup(
                self._group, f"penstock: members of {self._ticket.feed}", interruptOnCancel=True
            )
            tasks = self._context.parallelize(range(self.members), self.members).barrier()
            tasks.mapPartitions(functools.partial(run_task, self._ticket)).collect()
        except BaseException as error:  # noqa: BLE001 - whoever waits for members is told
            self.failure = error
        finally:
            self.ended.set()


def first_line(error: BaseException) -> str:
    """Of what Spark says: the rest is Java's stack."""
    return str(error).strip().partition("\n")[0]
