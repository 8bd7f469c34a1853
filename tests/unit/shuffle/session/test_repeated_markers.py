"""Coordinators that take over, and write markers again that are there already."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.unit.shuffle.session import test_matching as stories
from tests.unit.shuffle.session.test_matching import (
    PLAIN_PRODUCER,
    Kafka,
    Row,
    Slices,
    check_whole,
)

if TYPE_CHECKING:
    from random import Random

    import pytest

    from penstock.frontier import Frontier
    from penstock.journal.transaction_log import Marker

SEEDS = 60
"""Some of them tear a transaction where empty markers are counted."""
TAKEN_OVER_ONE_IN = 4
"""Steps of a writer whose markers are being written."""


class TakenOver(Kafka):
    """Some transactions get all their markers anew in the middle of it."""

    def __init__(self, random: Random, journals: list[str], writers: int) -> None:
        super().__init__(random, journals, writers)
        self.repeats_markers = True
        self.taken_over: set[int] = set()

    def step(self) -> None:
        for writer in self.writers:
            if not writer.unmarked or writer.transaction in self.taken_over:
                continue
            if self.random.randrange(TAKEN_OVER_ONE_IN) == 0:
                self.taken_over.add(writer.transaction)
                writer.unmarked = list(writer.touched)
        super().step()


class Telling(Slices):
    """As real Slices do, it tells which markers commit no rows."""

    def markers(self, key: tuple[str, int], begin: int, end: int) -> list[Marker]:
        return [
            replace(one, is_empty=self._is_empty(one)) for one in super().markers(key, begin, end)
        ]

    def _is_empty(self, marker: Marker) -> bool:
        rows = self.kafka.rows[marker.journal][: marker.offset]
        own = [row for row in rows if row.producer == marker.producer]
        return marker.is_commit and (not own or own[-1].is_marker)


def check_whole_by_first_markers(
    kafka: Kafka, frontier: Frontier, cohorts: tuple[int, ...]
) -> set[int]:
    """A repetition changes nothing: to who checks, it is a row of somebody else."""
    seen = copy(kafka)
    seen.rows = {}
    for journal, rows in kafka.rows.items():
        marked: set[int] = set()
        seen.rows[journal] = []
        for row in rows:
            is_repeated = row.is_marker and row.transaction in marked
            seen.rows[journal].append(Row(PLAIN_PRODUCER, 0) if is_repeated else row)
            if row.is_marker:
                marked.add(row.transaction)
    return check_whole(seen, frontier, cohorts)


def test_transactions_are_whole_though_markers_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stories, "Kafka", TakenOver)
    monkeypatch.setattr(stories, "Slices", Telling)
    monkeypatch.setattr(stories, "check_whole", check_whole_by_first_markers)
    assert sum(map(stories.play, range(SEEDS))) > SEEDS
