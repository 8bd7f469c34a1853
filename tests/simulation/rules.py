"""What must hold in every run, looked at whenever something durable or public changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.epoch.announcements import Announcement, Phase
from penstock.epoch.decisions import Decision
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.records import Call
    from tests.simulation.world import Process, World

_DECISIONS: Final = "decisions/"

PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"


@dataclass(slots=True)
class Part:
    """What a participant has on its disk of an epoch."""

    status: str
    watermark: int | None
    owner: str
    born_at: float
    """When the process that prepared it was started."""


@dataclass(slots=True)
class Disk:
    """Of one participant. It outlives processes."""

    member: int
    name: str
    parts: dict[int, Part] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"participant {self.name} of member {self.member}"

    def prepare(self, epoch: int, part: Part) -> None:
        before = self.parts.get(epoch)
        if before is not None:
            raise Violation(f"{self} prepares epoch {epoch} again: it is {before.status} there")
        self.parts[epoch] = part

    def in_doubt(self) -> list[int]:
        return [epoch for epoch, part in self.parts.items() if part.status == PREPARED]


class Rules:
    """Raises a Violation at the first rule that is broken."""

    def __init__(self, world: World, disks: dict[int, list[Disk]]) -> None:
        self._world = world
        self._disks = disks
        self.decided: dict[int, Decision] = {}
        """Every decision ever made, those too whose record is deleted by now."""
        self.newest = 0
        self.newest_commit = 0
        self._term = 0
        """The greatest that is on record."""
        self._leading = 0
        """The greatest under which an epoch was begun."""
        self._watermark: int | None = None
        self._prepare_announced_at: dict[int, float] = {}
        self._finished: dict[str, int] = {}

    def records_changed(self, process: Process, call: Call, changed: bool) -> None:
        """Called before a record is deleted, and after one was created or was not."""
        if not changed or not call.name.startswith(_DECISIONS):
            return
        epoch = int(call.name.removeprefix(_DECISIONS))
        if call.kind == "create":
            self._created(process, epoch, Decision.from_bytes(call.value))
        else:
            self._deleted(epoch)

    def announced(self, announcement: Announcement) -> None:
        """A leader has written this into its slot."""
        epoch, phase = announcement.epoch, announcement.phase
        if phase is Phase.PREPARE:
            self._prepare_announced_at.setdefault(epoch, self._world.now)
            self._leading = max(self._leading, announcement.term)
        elif phase in (Phase.COMMIT, Phase.ABORT):
            decision = self.decided.get(epoch)
            if decision is None:
                raise Violation(f"{phase} of epoch {epoch} is announced before it is on record")
            if decision.is_commit is not (phase is Phase.COMMIT):
                raise Violation(f"{phase} of epoch {epoch} is announced, its record says otherwise")

    def finishing(self, disk: Disk, epoch: int, commit: bool) -> None:
        """A participant is about to commit or abort an epoch."""
        decision = self.decided.get(epoch)
        part = disk.parts.get(epoch)
        if commit:
            if decision is None or not decision.is_commit:
                raise Violation(f"{disk} commits epoch {epoch}, which no record says")
            if part is None or part.status == ABORTED:
                raise Violation(f"{disk} commits epoch {epoch}, of which it has nothing")
            part.status = COMMITTED
            return
        if decision is not None and decision.is_commit:
            raise Violation(f"{disk} aborts epoch {epoch}, which is committed on record")
        if part is None:
            disk.parts[epoch] = Part(ABORTED, None, "", 0.0)
            return
        if decision is None and part.status == PREPARED and not self._failed_elsewhere(disk, epoch):
            raise Violation(f"{disk} aborts epoch {epoch}, which it had prepared, without a record")
        part.status = ABORTED

    def finished(self, process: Process, epoch: int) -> None:
        """What a follower says it is done with."""
        before = self._finished.get(process.name, 0)
        if epoch < before:
            raise Violation(f"{process} had finished epoch {before}, and now only {epoch}")
        self._finished[process.name] = epoch
        for disk in self._disks[process.member]:
            doubts = [doubt for doubt in disk.in_doubt() if doubt <= epoch]
            if doubts and not process.replaced:
                raise Violation(
                    f"{process} has finished epoch {epoch}; {disk} is in doubt of {doubts}"
                )

    def resolved(self, disk: Disk, until: int) -> bool:
        """Whether a participant has done all that was decided up to an epoch."""
        return all(epoch > until for epoch in disk.in_doubt()) and all(
            epoch in disk.parts and disk.parts[epoch].status == COMMITTED
            for epoch, decision in self.decided.items()
            if decision.is_commit and epoch <= until
        )

    def _created(self, process: Process, epoch: int, decision: Decision) -> None:
        before = self.decided.get(epoch)
        if before is not None and process.replaced and not decision.is_commit:
            # Known, and harmless: it had looked before the record was pruned, and slept until now.
            # Nobody reads the record of an epoch that all members have finished.
            self._world.counts["records: made again by a replaced process"] += 1
            return
        if before is not None:
            raise Violation(
                f"epoch {epoch} is decided again: {_short(before)} before, {_short(decision)} now"
            )
        if epoch != self.newest + 1:
            raise Violation(f"epoch {epoch} is decided after epoch {self.newest}")
        self.decided[epoch] = decision
        self.newest = epoch
        counts = self._world.counts
        counts[f"epochs: {decision.verdict}"] += 1
        if decision.is_commit:
            self._committed(epoch, decision)
            self.newest_commit = epoch
        elif decision.reason.endswith("heard of no decision"):
            counts["epochs: aborted by a follower"] += 1
        if decision.term > self._term:
            self._term = decision.term
            counts["leaders: took over"] += 1

    def _committed(self, epoch: int, decision: Decision) -> None:
        if decision.term < self._term:
            raise Violation(
                f"the leader of term {decision.term} commits epoch {epoch}, after the first "
                f"record of the leader of term {self._term}"
            )
        if decision.term < self._leading:
            raise Violation(
                f"the leader of term {decision.term} commits epoch {epoch}, when the leader of "
                f"term {self._leading} has begun an epoch"
            )
        if set(decision.members) != set(self._disks):
            raise Violation(f"epoch {epoch} is committed for members {decision.members} only")
        reported = []
        for disks in self._disks.values():
            for disk in disks:
                part = disk.parts.get(epoch)
                if part is None or part.status != PREPARED:
                    status = "missing" if part is None else part.status
                    raise Violation(f"epoch {epoch} is committed: {disk} has its part {status}")
                if part.born_at > self._prepare_announced_at.get(epoch, 0.0):
                    raise Violation(
                        f"epoch {epoch} is committed with a part of {disk} that {part.owner} drew, "
                        "which was started when the epoch was under way"
                    )
                if part.watermark is not None:
                    reported.append(part.watermark)
        least = min(reported, default=None)
        known = [clock for clock in (least, self._watermark) if clock is not None]
        if decision.watermark != max(known, default=None):
            raise Violation(
                f"epoch {epoch} is committed with watermark {decision.watermark}: members have "
                f"{reported}, and it was {self._watermark} before"
            )
        self._watermark = decision.watermark

    def _deleted(self, epoch: int) -> None:
        self._world.counts["records: pruned"] += 1
        if epoch == self.newest_commit:
            raise Violation(f"the record of epoch {epoch} is deleted, the newest that committed")
        for disks in self._disks.values():
            for disk in disks:
                if epoch in disk.parts and disk.parts[epoch].status == PREPARED:
                    raise Violation(f"the record of epoch {epoch} is deleted, which {disk} needs")

    def _failed_elsewhere(self, disk: Disk, epoch: int) -> bool:
        """Whether a part of the same member was not prepared: then nobody can commit."""
        return any(
            epoch not in other.parts or other.parts[epoch].status == ABORTED
            for other in self._disks[disk.member]
        )


def _short(decision: Decision) -> str:
    return f"{decision.verdict} by member {decision.decider} under term {decision.term}"
