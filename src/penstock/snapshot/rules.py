"""Which snapshot of an epoch counts, which are kept, and which files go. No files here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.snapshot.names import parse_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.snapshot.names import Attempt
    from penstock.storage import Entry


def counting_attempts(
    finished: Iterable[Attempt], committed: Iterable[Attempt]
) -> dict[int, Attempt]:
    """One attempt for each epoch: the committed one, else the latest that was finished. The others
    are of processes that died or were fenced off: they cut the streams elsewhere, and stand in for
    nothing."""
    counting: dict[int, Attempt] = {}
    for attempts in (finished, committed):
        newest = {attempt.epoch: attempt for attempt in sorted(attempts)}
        counting |= newest
    return counting


def oldest_kept(epochs: Collection[int], keep: int) -> int | None:
    """The oldest of the newest `keep` epochs. None if there are fewer: then nothing goes."""
    return sorted(epochs)[-keep] if len(epochs) >= keep else None


def outlived(
    attempts: Iterable[Attempt], oldest: int | None, protect: Collection[int]
) -> list[Attempt]:
    """What is older than the oldest kept epoch, oldest first: cut short, newer ones remain."""
    if oldest is None:
        return []
    return sorted(
        attempt for attempt in attempts if attempt.epoch < oldest and attempt.epoch not in protect
    )


def orphans(
    parts: Iterable[Entry],
    referred: Collection[str],
    oldest: int | None,
    modified_before_seconds: float,
) -> list[Entry]:
    """Parts to which nothing refers, and to which nothing will: their attempt is of an epoch that
    is over, or has been silent for so long that its process is dead."""
    found = []
    for part in parts:
        attempt = parse_part(part.name)
        if attempt is None or part.name in referred:
            continue
        is_over = oldest is not None and attempt.epoch < oldest
        if is_over or part.modified_seconds < modified_before_seconds:
            found.append(part)
    return found
