"""Have all members answered? Pure: it looks at what is in their slots now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.checkpoint.watermark import cluster_minimum
from penstock.epoch.announcements import Acknowledgement, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Reached:
    """Everybody is as far as was asked."""

    watermark: int | None
    """The least of those reported. None if nobody reported one."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Somebody did not answer in time."""

    answered: tuple[int, ...]
    missing: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"no answer from {_listed(self.missing)} in time; "
            f"{_listed(self.answered) if self.answered else 'nobody'} answered"
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """Somebody cannot take part. There is no use in waiting for the others."""

    errors: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"member {member}: {error}" for member, error in self.errors)


Outcome: TypeAlias = Reached | TimedOut | Failed


def weigh(
    expected: Iterable[int],
    stage: Stage,
    epoch: int,
    term: int,
    acknowledgements: Mapping[int, Acknowledgement],
    *,
    overdue: bool = False,
) -> Outcome | None:
    """None: wait on. Answers of strangers, to other epochs and to other leaders do not count. Who
    has prepared has captured."""
    members = sorted(set(expected))
    answers = {
        member: acknowledgements[member]
        for member in members
        if member in acknowledgements
        and (acknowledgements[member].term, acknowledgements[member].epoch) == (term, epoch)
    }
    errors = tuple(
        (member, answer.error) for member, answer in answers.items() if answer.stage is Stage.FAILED
    )
    if errors:
        return Failed(errors)
    enough = (stage, Stage.PREPARED)
    answered = tuple(member for member, answer in answers.items() if answer.stage in enough)
    if len(answered) == len(members):
        return Reached(cluster_minimum(answer.watermark for answer in answers.values()))
    if overdue:
        missing = tuple(member for member in members if member not in answered)
        return TimedOut(answered, missing)
    return None


def missing_from(
    expected: Iterable[int],
    stage: Stage,
    epoch: int,
    term: int,
    acknowledgements: Mapping[int, Acknowledgement],
) -> tuple[int, ...]:
    """Who has not come so far, as `weigh` sees it."""

    def has(member: int) -> bool:
        answer = acknowledgements.get(member)
        return (
            answer is not None
            and (answer.term, answer.epoch) == (term, epoch)
            and answer.stage in (stage, Stage.PREPARED)
        )

    return tuple(member for member in sorted(set(expected)) if not has(member))


def _listed(members: tuple[int, ...]) -> str:
    kind = "member" if len(members) == 1 else "members"
    return f"{kind} {', '.join(map(str, members))}"
