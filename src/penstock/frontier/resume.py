"""Where the read of a journal starts again, and what it already knows there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.ids import CLOCK_FLOOR, CLOCK_NONE, Producer
from penstock.sequence import ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.frontier.table import ProducerFrontier


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The start of a read that goes on where a frontier ends."""

    offset: int
    """Where to read from: the cut floor. Every close below it is known."""
    states: dict[int, ProducerState]
    """Where producers stand there, by `Producer.int64`, as sequencing takes it."""
    gapped: dict[Producer, int]
    """Producers with a span that is open across the cut floor, and where that span begins.

    Sequencing sees them as `max_continue == last_commit`: their first newer document makes the
    reader go back for the span.
    """
    hinted: dict[Producer, int]
    """Commits that this journal is said to hold and that were not read."""


def resolve_checkpoint(entries: Iterable[ProducerFrontier]) -> ResumePoint:
    """The resume point of one journal from its entries in a checkpoint."""
    given = list(entries)
    offset = max((abs(entry.offset) for entry in given), default=0)
    states: dict[int, ProducerState] = {}
    gapped: dict[Producer, int] = {}
    hinted: dict[Producer, int] = {}
    for entry in given:
        if entry.is_unresolved:
            hinted[entry.producer] = entry.hinted_commit
        if entry.last_commit == CLOCK_NONE and entry.offset == 0:
            continue  # nothing but a hint: the producer was not read here
        # An open span proves that the producer was read, whatever an older writer recorded.
        last_commit = max(entry.last_commit, CLOCK_FLOOR)
        # Offset 0 is a begin only where nothing was ever committed; a commit that was resolved
        # from a hint in a journal not read yet leaves a 0 too.
        is_gapped = 0 < entry.offset < offset or (
            entry.offset == 0 and entry.last_commit == CLOCK_FLOOR and offset > 0
        )
        if is_gapped:
            gapped[entry.producer] = entry.offset
        states[entry.producer.int64] = ProducerState(
            last_commit=last_commit,
            max_continue=last_commit if is_gapped else 0,
            offset=entry.offset,
        )
    return ResumePoint(offset, states, gapped, hinted)
