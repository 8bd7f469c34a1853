"""What a consumer of Kafka's topics should get. The clocks of a transaction's commits are where its
markers stand, one in each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ids import CLOCK_FLOOR
from penstock.journal.offset_identity import READER, clock_of
from tests.simulation.world import Violation
from tests.simulation_shuffle.kafka_topics import GAP, Topics
from tests.simulation_shuffle.oracle import Oracle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation_shuffle.kafka_topics import KafkaTransaction
    from tests.simulation_shuffle.oracle import Commits


class KafkaOracle(Oracle):
    def check_frontier(self, before: Commits, after: Commits) -> None:
        """Nothing goes back, and transactions are in it whole or not at all."""
        for source, clock in before.items():
            # If disks are lost, rows of open transactions are read again.
            is_reader = source[2] == READER.int64
            if clock > max(after.get(source, 0), CLOCK_FLOOR) and not is_reader:
                raise Violation(f"the frontier went back at {source}: from {clock}")
        assert isinstance(self._journals, Topics)
        for transaction in self._journals.committed:
            for cohort in set(self._plan.cohorts):
                self._check_whole(transaction, cohort, before, after)

    def _check_whole(
        self, transaction: KafkaTransaction, cohort: int, before: Commits, after: Commits
    ) -> None:
        reads = [
            (name, binding.place)
            for name in transaction.homes
            for binding in self._plan.bindings
            if binding.cohort == cohort
            and binding.collection == self._journals.all[name].collection
            and transaction.markers.get(name) not in self._lost.get((name, binding.place), ())
        ]

        def has(commits: Commits, read: tuple[str, int]) -> bool:
            marker = transaction.markers.get(read[0])
            last_commit = commits.get((*read, transaction.producer), 0)
            return marker is not None and clock_of(marker) <= last_commit

        now, then = ({read: has(each, read) for read in reads} for each in (after, before))
        is_late = any(then.values()) and any(now[read] > then[read] for read in reads)
        kept = {now[read] for read in reads if not self._journals.all[read[0]].is_gone}
        if len(kept) > 1 or is_late:
            raise Violation(f"a transaction is torn: {transaction} is in {now}")

    def check_recovered(
        self, consumed: Commits, newest: Commits, reads: Mapping[tuple[str, int], int]
    ) -> None:
        """How far a partition was read is no commit that was lost."""
        lost = {source: clock for source, clock in newest.items() if source[2] != READER.int64}
        super().check_recovered(
            consumed, lost, {read: self._behind_rows(read[0], end) for read, end in reads.items()}
        )

    def _behind_rows(self, name: str, end: int) -> int:
        """A reader that comes to a gap is beyond it at once."""
        rows = self._journals.all[name].rows
        while end and rows[end - 1] is GAP:
            end -= 1
        return end
