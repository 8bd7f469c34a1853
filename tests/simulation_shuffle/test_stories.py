"""Named stories of the shuffle: nothing is left to chance, and somebody writes by hand."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.errors import LocalProtocolError
from penstock.ids import CLOCK_FLOOR, CLOCK_TICK, Kind, Producer
from penstock.journal.names import name_of
from penstock.shuffle.feed import Binding
from tests.simulation.choices import Choices
from tests.simulation.world import Violation, World
from tests.simulation_shuffle.broken import BROKEN
from tests.simulation_shuffle.cluster import Cluster, Parts
from tests.simulation_shuffle.journals import Row, Transaction, clock_at
from tests.simulation_shuffle.oracle import commits_of
from tests.simulation_shuffle.run import advance, come_round, patched
from tests.simulation_shuffle.setting import SCARCE, make_setting, small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.simulation.choices import Script
    from tests.simulation_shuffle.setting import Setting

A0, A1 = "a/part=0/000", "a/part=1/000"
B0, B1 = "b/part=0/000", "b/part=1/000"


class Pen:
    """A producer, led by hand."""

    values = 0

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self.producer = Producer(bytes([1, 0, 0, 0, 0, number])).int64
        self._clock = 0

    def write(self, name: str, *sizes: int, kind: Kind = Kind.OUTSIDE) -> None:
        for size_bytes in sizes:
            Pen.values += 1
            self._append(name, Row(self.producer, self._tick(), kind, Pen.values, size_bytes))

    def span(self, name: str, *sizes: int) -> None:
        self.write(name, *sizes, kind=Kind.CONTINUE)

    def decide(self, *names: str) -> Transaction:
        journals = self._cluster.setting.journals
        homes = tuple(journals.by_name[name].known_as for name in names)
        decided = Transaction(self.producer, self._tick(), names, homes)
        journals.transactions.append(decided)
        return decided

    def acknowledge(self, decided: Transaction, name: str) -> None:
        others = tuple(other for other in decided.journals if other != name)
        self._append(name, Row(self.producer, decided.clock, Kind.ACK, hints=others))

    def roll_back(self, name: str) -> None:
        """All that it has written so far."""
        self._append(name, Row(self.producer, CLOCK_FLOOR, Kind.ACK))

    def _tick(self) -> int:
        self._clock = max(self._clock + CLOCK_TICK, clock_at(self._cluster.world.now))
        return self._clock

    def _append(self, name: str, row: Row) -> None:
        journal = self._cluster.setting.journals.append(name, [row])
        journal.head = len(journal.rows)


@contextmanager
def told(
    setting: Setting,
    folder: Path | None = None,
    script: Script | None = None,
    parts: Parts | None = None,
) -> Iterator[Cluster]:
    world = World(Choices(0, script or {}))
    with small(setting):
        cluster = Cluster(world, setting, parts or Parts(), folder)
        yield cluster
        for disk in cluster.disks.values():
            disk.close()


def crash(cluster: Cluster, *, lost: bool = False) -> None:
    cluster.process.kill()
    for disk in cluster.disks.values():
        disk.crash()
        if lost:
            disk.lose()
    cluster.start()


def pass_time(cluster: Cluster, seconds: float) -> None:
    advance(cluster, cluster.world.now + seconds)


def test_a_budget_below_one_open_transaction_ends_well_even_in_recovery(tmp_path: Path) -> None:
    setting = make_setting(
        2,
        Binding("a", priority=1),
        Binding("b"),
        journals=2,
        budget_bytes=2000,
        window_bytes=8 * 1024,
    )
    with told(setting, tmp_path) as cluster:
        pen, other = Pen(cluster, 1), Pen(cluster, 2)
        for _ in range(10):
            for name in (A0, A1, B0):
                pen.span(name, 200, 200)
            other.write(B0, 50)
            pass_time(cluster, 0.3)
        assert cluster.world.counts["overdrawn"]
        decided = pen.decide(A0, A1, B0)
        pen.acknowledge(decided, A0)
        pass_time(cluster, 2)
        assert cluster.consumer.documents == 10, "of the other"
        pen.acknowledge(decided, A1)
        pen.acknowledge(decided, B0)
        epoch = cluster.committed[-1].number
        known = setting.journals.by_name[A1].known_as
        while (
            commits_of(cluster.committed[-1].record.frontier).get((known, 0, pen.producer), 0) < 2
        ):
            pass_time(cluster, 0.01)
        crash(cluster, lost=True)
        assert cluster.leader.is_recovering
        other.write(A0, 300, 300)
        come_round(cluster)
        assert cluster.committed[-1].number > epoch
        assert cluster.consumer.documents == 10 * 7 + 2


def test_a_span_that_stays_open_for_ever_costs_a_few_times_its_size(tmp_path: Path) -> None:
    setting = make_setting(1, Binding("a"), journals=2)
    with told(setting, tmp_path) as cluster:
        left, pen = Pen(cluster, 1), Pen(cluster, 2)
        left.span(A0, *[300] * 10)
        sizes = []
        for number in range(120):
            pen.write((A0, A1)[number % 2], *[300] * 4)
            pass_time(cluster, 0.3)
            sizes.append(cluster.disks[1].size_bytes)
        come_round(cluster)
        assert cluster.consumer.documents == 120 * 4
        assert cluster.world.counts["survivors written"]
        assert max(sizes) < 40_000, "of 150,000 that passed by"
        assert max(sizes[60:]) <= max(sizes[:60]) * 1.2, "it does not grow"


def test_an_open_transaction_delays_its_own_cohort_only() -> None:
    setting = make_setting(2, Binding("a"), Binding("b", read_delay_seconds=0.1), journals=2)
    with told(setting) as cluster:
        pen, other = Pen(cluster, 1), Pen(cluster, 2)
        pen.span(A0, 8, 8)
        pen.span(A1, 8)
        decided = pen.decide(A0, A1)
        pen.acknowledge(decided, A0)
        pass_time(cluster, 1)
        for _ in range(5):
            other.write(A0, 8)
            other.write(B0, 8)
            pass_time(cluster, 1)
        assert cluster.consumer.documents == 5, "those of b, and none of a"
        (waiting,) = cluster.session.waiting
        assert [name_of(awaited.journal) for awaited in waiting.awaited] == [A1]
        pen.acknowledge(decided, A1)
        come_round(cluster)
        assert cluster.consumer.documents == 13


def test_what_was_lost_is_fetched_and_an_open_span_with_it(tmp_path: Path) -> None:
    setting = make_setting(2, Binding("a"), journals=2)
    with told(setting, tmp_path) as cluster:
        pen, other = Pen(cluster, 1), Pen(cluster, 2)
        pen.span(A0, 8, 8)
        other.write(A0, 8, 8)
        pass_time(cluster, 1)
        other.write(A0, 8)
        while len(cluster.committed) < 2:
            pass_time(cluster, 0.01)
        crash(cluster, lost=True)
        pass_time(cluster, 2)
        pen.acknowledge(pen.decide(A0), A0)
        come_round(cluster)
        assert cluster.world.counts["recoveries"] == 1
        assert cluster.world.counts["replays"] == 1
        assert cluster.consumer.documents == 5


@pytest.mark.parametrize("broken", [False, True])
def test_a_journal_is_found_while_an_epoch_is_under_way(broken: bool) -> None:
    """Its read's number is in the snapshot, and is not given to another after a restart."""
    setting = make_setting(1, Binding("a"), Binding("b", priority=1), journals=2)
    # The higher lane looks long at a journal, and so the rows of the lower one wait in the Queue.
    slow = {("s1.0 probe takes", number): 2 for number in range(100)}
    slow |= {(f"s1.{lane} announced", number): 2 for number in range(100) for lane in (0, 1)}
    with told(setting, script=slow, parts=Parts(numbers_reads_again=broken)) as cluster:
        pen = Pen(cluster, 1)
        pen.write(A0, 8)
        pen.write(B0, 8)
        pass_time(cluster, 3)
        pen.write(A0, 8)
        begun = cluster.epochs_begun
        while cluster.epochs_begun == begun:
            pass_time(cluster, 0.01)
        pen.write(A1, 8, 8)
        pen.write(B1, 8, 8)
        while cluster.committed[-1].number == begun:
            pass_time(cluster, 0.01)
        waiting = [stream.waiting for stream in cluster.committed[-1].queues[1].streams]
        assert any(waiting)
        crash(cluster)
        _comes_round(cluster, broken=broken)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_a_crash_in_recovery_leaves_a_queue_that_is_not_the_epochs(
    real: bool, broken: bool, tmp_path: Path
) -> None:
    """It has blocks with the same LSNs, of other rows."""
    setting = make_setting(1, Binding("a"))
    parts = Parts(forgets_generations=broken)
    # What was one block comes row by row the second time.
    script = {("s1.0 rows", number): 1 for number in range(1, 100)}
    with told(setting, tmp_path if real else None, script, parts) as cluster:
        pen = Pen(cluster, 1)
        pen.write(A0, 8, 8, 8, 8)
        while not cluster.committed:
            pass_time(cluster, 0.01)
        crash(cluster, lost=True)
        lsn = cluster.committed[-1].queues[1].lsn
        while cluster.disks[1].durable_lsn < lsn:
            pass_time(cluster, 0.002)
        assert cluster.leader.is_recovering
        assert len(cluster.committed) == 1
        crash(cluster)
        _comes_round(cluster, broken=broken)


def _comes_round(cluster: Cluster, *, broken: bool) -> None:
    if broken:
        with pytest.raises((Violation, LocalProtocolError)):
            come_round(cluster)
    else:
        come_round(cluster)


@pytest.mark.parametrize("broken", [False, True])
def test_a_span_that_was_rolled_back_among_missing_rows_is_never_seen(broken: bool) -> None:
    setting = make_setting(1, Binding("a"))
    parts = BROKEN["forgets no spans"] if broken else Parts()
    with patched(parts), told(setting, parts=parts) as cluster:
        pen, other = Pen(cluster, 1), Pen(cluster, 2)
        pen.span(A0, 8, 8)
        other.write(A0, 8)
        pass_time(cluster, 2)
        assert cluster.consumer.documents == 1
        cluster.process.kill()
        for disk in cluster.disks.values():
            disk.crash()
        pen.roll_back(A0)
        pen.write(A0, 8)
        setting.journals.by_name[A0].suspend()
        pen.write(A0, 8)
        cluster.start()
        _comes_round(cluster, broken=broken)
        assert cluster.consumer.documents == 2 or broken


def test_a_round_that_is_more_than_its_credit() -> None:
    setting = make_setting(1, Binding("a"), Binding("a"), window_bytes=SCARCE)
    with told(setting) as cluster:
        # The rows of a batch count with their average, and the first ones are the largest.
        Pen(cluster, 1).write(A0, 900, 900, 900, *[8] * 15)
        come_round(cluster)


def test_a_barrier_behind_a_row_without_credit_on_a_full_disk() -> None:
    setting = make_setting(1, Binding("a"), window_bytes=SCARCE, budget_bytes=400)
    with told(setting) as cluster:
        pen = Pen(cluster, 1)
        for _ in range(12):
            pen.write(A0, 700)
            pass_time(cluster, 0.05)
        come_round(cluster)
