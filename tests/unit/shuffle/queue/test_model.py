"""A queue on disk against a queue that is a list: any rows, rollbacks, epochs, cuts, reclaims, and
vnodes that are given away."""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shuffle.queue.compress import compress
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.reader import QueueReader
from penstock.shuffle.queue.reclaim import reclaim
from tests.unit.shuffle.queue.queues import (
    Commits,
    Entry,
    Model,
    Rollback,
    Row,
    Source,
    append,
    check_columns,
    frontier,
    producer,
    read,
)

READS = [(0, "orders/000"), (0, "orders/001"), (1, "orders/001"), (1, "payments/000")]
SOURCES: list[Source] = [(*name, producer(number)) for name in READS for number in range(3)]


@dataclass(frozen=True, slots=True)
class Epoch:
    commits: Commits
    lsn: int


@dataclass
class Story:
    """Producers write, commit and roll back; epochs are taken; the consumer follows."""

    folder: Path
    random: random.Random
    segment_bytes_max: int
    faithful: bool
    """Whether rollbacks are those of the protocol, or any at all."""
    model: Model = field(default_factory=Model)
    commits: Commits = field(default_factory=dict)
    clocks: Commits = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=lambda: [Epoch({}, 0)])
    consumed: int = 0
    """The consumer is done with the epoch of this index."""
    next_id: int = 0
    dropped: int = 0
    survivors: int = 0

    def __post_init__(self) -> None:
        self.numbers = {name: number for number, name in enumerate(READS, 5)}
        self.log = QueueLog.open(self.folder, 0, segment_bytes_max=self.segment_bytes_max)
        self.reader = QueueReader(self.folder)

    def write(self) -> None:
        count = self.random.choice([1, 2, 5, 30])
        sources = self.random.sample(SOURCES, self.random.choice([1, 2, len(SOURCES)]))
        entries = [self._entry(self.random.choice(sources)) for _ in range(count)]
        parts = self.random.choice([1, 1, 2, 4])
        part_of = [self.random.randrange(parts) for _ in entries]
        if self.random.random() < 0.3:
            part_of.sort()
        lsn = append(self.log, entries, self.numbers, part_of)
        assert lsn == self.log.last_lsn
        self.model.blocks.append((lsn, entries))

    def _entry(self, source: Source) -> Entry:
        last, clock = self.commits.get(source, 0), self.clocks.get(source, 0)
        if self.random.random() < 0.15:
            if self.faithful:
                self.clocks[source] = last  # the same clocks come again
                return Rollback(*source, last, clock)
            after = self.random.randrange(12)
            return Rollback(*source, after, after + self.random.randrange(12))
        if self.faithful:
            clock += self.random.choice([1, 1, 3])
        else:
            clock = self.random.randrange(1, 20)
        self.clocks[source] = max(clock, self.clocks.get(source, 0))
        self.next_id += 1
        return Row(*source, clock, self.next_id, self.random.choice([1, 2]))

    def give(self) -> None:
        vnodes = frozenset(self.random.sample(range(256), self.random.choice([20, 128, 256])))
        lsn = self.log.append((), None, {}, gives=sorted(vnodes))
        self.model.given.append((lsn, vnodes))

    def commit(self) -> None:
        for source in self.random.sample(SOURCES, self.random.randrange(len(SOURCES))):
            self.commits[source] = max(self.clocks.get(source, 0), self.commits.get(source, 0))

    def epoch(self) -> None:
        assert self.log.sync() == self.log.last_lsn == self.log.durable_lsn
        if self.log.last_lsn:
            self.epochs.append(Epoch(dict(self.commits), self.log.last_lsn))

    def read(self) -> None:
        """Any two epochs that a consumer may ask for."""
        first = self.random.randrange(self.consumed, len(self.epochs))
        last = self.random.randrange(first, len(self.epochs))
        start, end = self.epochs[first], self.epochs[last]
        lsn = self.random.choice([end.lsn, self.log.last_lsn])
        expected = self.model.visible(start.commits, end.commits, lsn)
        assert read(self.reader, start.commits, end.commits, lsn) == expected
        check_columns(self.reader, start.commits, end.commits, lsn)

    def consume(self) -> None:
        self.consumed = self.random.randrange(self.consumed, len(self.epochs))
        epoch = self.epochs[self.consumed]
        before = self.log.size_bytes
        result = reclaim(self.log, frontier(epoch.commits), epoch.lsn)
        self.dropped += len(result.segments)
        if result.survivors_lsn is not None:
            self.survivors += result.survivors_rows
            assert result.survivors_lsn == self.log.last_lsn
        else:
            assert self.log.size_bytes == before - result.freed_bytes
        assert self.log.size_bytes == sum(f.stat().st_size for f in self.folder.glob("*.queue"))

    def compress(self) -> None:
        before = self.log.size_bytes
        assert before - compress(self.log, time.time() + 1, 0) == self.log.size_bytes

    def cut(self) -> None:
        """A restart at an epoch that the consumer is not beyond."""
        kept = self.random.randrange(self.consumed, len(self.epochs))
        epoch = self.epochs[kept]
        del self.epochs[kept + 1 :]
        self.log.close()
        self.reader.close()
        self.log = QueueLog.open(
            self.folder, epoch.lsn, discard=True, segment_bytes_max=self.segment_bytes_max
        )
        self.reader = QueueReader(self.folder)
        self.model.cut(epoch.lsn)
        self.commits = dict(epoch.commits)
        if self.random.random() < 0.5:
            numbers = list(self.numbers.values())
            self.random.shuffle(numbers)
            self.numbers = dict(zip(READS, numbers, strict=True))

    def finish(self) -> None:
        """Everything is committed and read, from where the consumer is."""
        self.commits = dict.fromkeys(SOURCES, 10**6)
        self.write()
        self.epoch()
        start, end = self.epochs[self.consumed], self.epochs[-1]
        expected = self.model.visible(start.commits, end.commits, end.lsn)
        assert read(QueueReader(self.folder), start.commits, end.commits, end.lsn) == expected
        self.log.close()


def tell(story: Story, steps: int) -> None:
    actions = [
        *[story.write] * 8,
        *[story.commit] * 2,
        *[story.epoch] * 3,
        *[story.read] * 3,
        *[story.consume] * 2,
        story.compress,
        story.cut,
        story.give,
    ]
    for _ in range(steps):
        story.random.choice(actions)()
    story.finish()


@pytest.mark.slow
@settings(max_examples=60)
@given(
    randomness=st.randoms(use_true_random=False),
    steps=st.integers(1, 40),
    segment_bytes_max=st.sampled_from([1, 2_000, 6_000, 30_000]),
    faithful=st.booleans(),
)
def test_a_queue_is_as_good_as_a_list(
    randomness: random.Random, steps: int, segment_bytes_max: int, faithful: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tell(Story(Path(folder), randomness, segment_bytes_max, faithful), steps)


@pytest.mark.parametrize("faithful", [True, False])
@pytest.mark.parametrize("segment_bytes_max", [1, 3_000, 6_000])
def test_long_stories(tmp_path: Path, segment_bytes_max: int, faithful: bool) -> None:
    dropped = survivors = 0
    for seed in range(3):
        folder = tmp_path / str(seed)
        story = Story(folder, random.Random(seed), segment_bytes_max, faithful)
        tell(story, 200)
        dropped, survivors = dropped + story.dropped, survivors + story.survivors
    assert dropped > 10, "segments were dropped on the way"
    assert survivors > 10, "and rows survived them"
