"""The shuffle, from journals to durable queues: two members in processes of their own, over tcp.

Documents are of 128 bytes; one in twenty is written twice, and one in ten is in a transaction;
shuffle_data.py makes them. A run begins with members that wait and a backlog in the journals, and
is over when an epoch with all of it is committed. That every document came once is checked.

`spark`: documents per second beside plain Spark, which drops duplicates (RocksDB), repartitions and
sorts, otherwise as it comes; `spark_tuned`: the same with as many partitions as cores, and
changelogs. Both sides get the small backlog, Spark from Parquet files. It has been warmed up; our
members have not read anything before.

`copy`: bytes per second beside reading the same bytes, summing them up, writing and syncing them.

`processor.*`: the same, per second of processor time instead of the clock's. Where others work
on the machine, these are the ones to look at.

The other lines are no rates, and less is better. `memory`: the most that the members took, in MB;
"ours" with the whole backlog, "peer" with a tenth of it. `restart`: milliseconds from the start of
a shuffle that was closed, and whose queues hold so much, until its next epoch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import shuffle_peers as peers
from bench.report import Line
from bench.shuffle_data import COLLECTION, make_store, write_documents
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.processes import ProcessShuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.shuffle_peers import Took
    from penstock.journal import OpenStore

FEED: Final = Feed("bench", (Binding(COLLECTION),))
EPOCH_SECONDS: Final = 0.5
"""The end of a run is the end of an epoch, and should not depend on when the last one began. With
less, a run on a busy machine would come to more epochs than a consumer may lag by."""
WARM_FILES: Final = 2
RUN_SECONDS_MAX: Final = 600.0
TELL_SECONDS_MAX: Final = 10.0
AFTER_RESTART: Final = 10_000
"""Documents that the first epoch after a restart is about."""


@dataclass(frozen=True, slots=True)
class Sizes:
    documents: int = 2_000_000
    """Fewer would not fill what members read ahead."""
    growth: int = 10
    """How many times as many the whole backlog has."""
    rounds: int = 2
    restarts: int = 3


def run(sizes: Sizes | None = None) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=Path.cwd())
        )
        yield from _Run(stack, Path(folder), sizes or Sizes()).lines()


class _Run:
    def __init__(self, stack: contextlib.ExitStack, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._small = Backlog(stack, folder, "small", sizes.documents)
        self._large = Backlog(stack, folder, "large", sizes.documents * sizes.growth)
        self._parquet = folder / "parquet"
        peers.write_parquet(self._small.store, self._parquet)
        self._spark = peers.Spark()
        stack.callback(self._spark.close)
        self._count = 0

    def lines(self) -> Iterator[Line]:
        small, large = self._small, self._large
        self._warm_up()
        rounds = [
            (
                large.run(),
                peers.copy(large.journals, self._place()),
                small.run(),
                self._run_spark(peers.AS_IT_COMES),
                self._run_spark(peers.TUNED),
            )
            for _ in range(self._sizes.rounds)
        ]
        of_large, copies, of_small, as_it_comes, tuned = zip(*rounds, strict=True)
        size_mb = peers.size_of(large.journals) / 1e6
        for kind, name in (("seconds", "shuffle"), ("processor_seconds", "shuffle.processor")):
            for spark, took_spark in (("spark", as_it_comes), ("spark_tuned", tuned)):
                yield Line.of_rounds(
                    f"{name}.{spark}",
                    [small.documents / getattr(took, kind) for took in of_small],
                    [small.documents / getattr(took, kind) for took in took_spark],
                    "documents/s",
                )
            yield Line.of_rounds(
                f"{name}.copy",
                [size_mb / getattr(took, kind) for took in of_large],
                [size_mb / getattr(took, kind) for took in copies],
                "MB/s",
            )
        yield Line.of("shuffle.memory", large.memory_mb, small.memory_mb, "MB")
        # In turns, because the machine has slow spells.
        restarts = [(large.restart_ms(), small.restart_ms()) for _ in range(self._sizes.restarts)]
        many, few = (list(side) for side in zip(*restarts, strict=True))
        yield Line.of_rounds("shuffle.restart", many, few, "ms")

    def _warm_up(self) -> None:
        some = self._folder / "parquet-warm"
        some.mkdir()
        for path in sorted(self._parquet.iterdir())[:WARM_FILES]:
            os.link(path, some / path.name)
        self._spark.run(some, self._place(), peers.TUNED)

    def _run_spark(self, settings: dict[str, str]) -> Took:
        place = self._place()
        took = self._spark.run(self._parquet, place, settings)
        if (count := self._spark.count(place)) != self._small.documents:
            raise RuntimeError(f"Spark made {count} out of {self._small.documents} documents")
        return took

    def _place(self) -> Path:
        self._count += 1
        return self._folder / f"peer-{self._count}"


class Backlog:
    """A store with documents, and the shuffle that reads them, each time from the beginning."""

    def __init__(
        self, stack: contextlib.ExitStack, folder: Path, name: str, documents: int
    ) -> None:
        self.documents = documents
        self.memory_mb = 0.0
        self.journals = folder / name
        self.store: OpenStore = stack.enter_context(make_store(self.journals))
        write_documents(self.store, documents)
        self._places = (folder / f"{name}-shuffle-{number}" for number in range(1_000))
        self._place: Path | None = None
        self._rows = documents

    def run(self) -> Took:
        self._place = next(self._places)
        with self._shuffle(self._place) as shuffle:
            processes = shuffle.process_ids.values()
            watch = peers.Watch([*processes, os.getpid()])
            if not shuffle.session.wait_caught_up(RUN_SECONDS_MAX):
                raise RuntimeError(f"it is not done after {RUN_SECONDS_MAX:g} s")
            took = watch.took()
            self.memory_mb = max(self.memory_mb, sum(map(_peak_mb, processes)))
            self._check(shuffle)
        return took

    def _check(self, shuffle: ProcessShuffle) -> None:
        """Members tell how many rows they have a little later."""
        deadline = time.monotonic() + TELL_SECONDS_MAX
        while (rows := sum(queue.rows for queue in shuffle.session.queues.values())) != (
            self.documents
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{rows} rows came of {self.documents} documents")
            time.sleep(0.1)

    def restart_ms(self) -> float:
        """Of the shuffle of the last run, which goes on with some more documents."""
        if self._place is None:
            raise RuntimeError("there was no run")
        write_documents(self.store, AFTER_RESTART, first=self._rows)
        self._rows += AFTER_RESTART
        begin = time.monotonic()
        with self._shuffle(self._place) as shuffle:
            newest = shuffle.session.newest.number
            if shuffle.session.wait_epoch(newest, RUN_SECONDS_MAX) is None:
                raise RuntimeError(f"there is no epoch after {RUN_SECONDS_MAX:g} s")
            return (time.monotonic() - begin) * 1000

    def _shuffle(self, place: Path) -> ProcessShuffle:
        return ProcessShuffle(FEED, self.store, place, epoch_seconds=EPOCH_SECONDS)


def _peak_mb(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"the system does not tell what process {process} takes")
