"""Whether Spark has room for members. A barrier job that does not fit waits for minutes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext

FOR_QUERIES: Final = 1
"""Slots that must be left, or no batch would ever be read."""
EXECUTORS_SECONDS_MAX: Final = 60.0
"""Until executors of a cluster have registered, or new ones have taken the place of lost ones."""
_LOOK_SECONDS: Final = 0.25

_LOG: Final = logging.getLogger("penstock.spark")


class SlotsMissingError(ConfigurationError):
    """Spark cannot run so many members at once. Give it more slots, or run fewer members."""

    def __init__(self, members: int, taken: int, slots: int, master: str) -> None:
        super().__init__(members, taken, slots, master)
        self.members, self.taken, self.slots, self.master = members, taken, slots, master

    @property
    def missing(self) -> int:
        return self.taken + self.members + FOR_QUERIES - self.slots

    def __str__(self) -> str:
        others = f", {self.taken} are taken by members of other feeds" if self.taken else ""
        if is_local(self.master):
            remedy = (
                f"start Spark with master local[{self.slots + self.missing}] (more slots than "
                "processors are fine: a member mostly waits)"
            )
        else:
            remedy = "give it more executors, or executors with more cores"
        return (
            f"{self.members} members need a slot each, and queries at least one more; Spark has "
            f"{self.slots} slots{others}: {self.missing} missing. Run fewer members, or {remedy}"
        )


def warn_of_few(context: SparkContext, members: int, splits: int) -> None:
    """Says so if a batch can fill all slots. In local mode that does no harm: all queues are on the
    tasks' own disk."""
    wanted = members + members * splits
    slots = count_slots(context)
    if not is_local(context.master) and slots < wanted:
        _LOG.warning(
            "Spark has %d slots, for %d members and %d tasks that read a batch: if members have "
            "to begin anew while tasks fill all slots and wait for them, the query fails. %d slots "
            "are enough, or fewer splits",
            slots,
            members,
            members * splits,
            wanted,
        )


def is_local(master: str | None) -> bool:
    """Whether tasks run in the driver's own process."""
    return master is not None and (master == "local" or master.startswith("local["))


def await_slots(context: SparkContext, members: int, taken: int) -> None:
    """Raises SlotsMissingError if Spark has too few, and will not have more soon."""
    deadline = time.monotonic() + (0.0 if is_local(context.master) else EXECUTORS_SECONDS_MAX)
    while (slots := count_slots(context)) < taken + members + FOR_QUERIES:
        if time.monotonic() >= deadline:
            raise SlotsMissingError(members, taken, slots, str(context.master))
        time.sleep(_LOOK_SECONDS)


def count_slots(context: SparkContext) -> int:
    """How many tasks Spark can run at once, busy or not, as it reckons itself for barrier jobs."""
    java = context._jsc.sc()  # noqa: SLF001 - there is no other way to ask
    profile = java.resourceProfileManager().defaultResourceProfile()
    return int(java.maxNumConcurrentTasks(profile))
