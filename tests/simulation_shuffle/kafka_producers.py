"""Producers of Kafka's, and the coordinators of their transactions, in small steps.

A coordinator decides in its log, then writes markers one by one, in any order and in its own time,
and then says in the log that all are written. Producers are fenced, time out, expire, and use up
their epochs. Rows outside of transactions come in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.ids import Kind
from penstock.journal.kafka.transaction_log import Status
from penstock.journal.offset_identity import PLAIN, ROLLBACK_CLOCK, transactional
from tests.simulation.choices import Menu, OptionT, evenly, seldom
from tests.simulation_shuffle.clocks import LIARS, LIES
from tests.simulation_shuffle.journals import clock_at
from tests.simulation_shuffle.kafka_topics import KafkaRow, KafkaTransaction, topic_of

if TYPE_CHECKING:
    from tests.simulation.world import World
    from tests.simulation_shuffle.kafka_topics import Topics

PARTITION_SECONDS: Final = 0.15
EPOCH_MAX: Final = 6
"""Of a producer id; then the transactional id gets another. Kafka's is 32767."""
_ACTIONS: Final = Menu(
    (40, "row"),
    (20, "commit"),
    (8, "plain"),
    (8, "abort"),
    (3, "fence"),
    (2, "time out"),
    (2, "expire"),
    (15, "nothing"),
)
_MARKS: Final = Menu((3, "one"), (2, "all"), (1, "none"))
_PAUSES: Final = evenly(0.12, 0.03, 0.4)
_COUNTS: Final = evenly(1, 2, 4)
_SIZES: Final = Menu((6, 8), (3, 200), (1, 900))
_GAPS: Final = Menu((6, 0), (1, 1), (1, 5))
_SKEWS: Final = Menu((4, 0.0), (1, -0.4), (1, 0.15))
_VERSIONS: Final = evenly(1, 2)
_WITHOUT_ROWS: Final = seldom(60)
_MARKED_AGAIN: Final = seldom(100)
_ORDERS: Final = evenly(0, 1, 2)


class KafkaProducer:
    """One transactional id, of version 1 or 2, and its coordinator."""

    def __init__(self, world: World, topics: Topics, name: str, places: list[str]) -> None:
        self.name = name
        self._world, self._topics = world, topics
        self._places = evenly(*places)
        self._version = self._choose("version", _VERSIONS)
        self._skew = self._choose("skew", _SKEWS)
        self._lies = self._choose("lies", LIARS)
        self._stopped = False
        self._reached: list[str] = []
        """By the open transaction, or the one that is being marked."""
        self._unmarked: list[str] = []
        self._is_commit = False
        self._transaction: KafkaTransaction | None = None
        self._new_id()
        self._wait()

    def act(self) -> None:
        """One step of the producer, or of its coordinator."""
        if self._unmarked:
            marks = self._choose("marks", _MARKS)
            for _ in range({"one": 1, "all": len(self._unmarked), "none": 0}[marks]):
                self._mark()
            return
        match self._choose("actions", _ACTIONS):
            case "row":
                self._write_rows()
            case "plain":
                self._put(self._place(), KafkaRow(PLAIN.int64, 0, Kind.OUTSIDE, *self._document()))
            case "commit" if self._transaction is not None:
                self._decide(commit=True)
            case "abort" if self._transaction is not None:
                self._decide(commit=False)
            case "fence" | "time out" as why:
                self._fence(why)
            case "expire" if self._transaction is None:
                self._world.counts["ids expired"] += 1
                self._log(None)
                self._new_id()
            case _:
                pass

    def calm(self) -> None:
        """Commits what is open, and writes no more."""
        self._stopped = True
        while self._unmarked:
            self._mark()
        if self._transaction is not None:
            self._decide(commit=True)
        while self._unmarked:
            self._mark()

    def _choose(self, what: str, menu: Menu[OptionT]) -> OptionT:
        return self._world.choices.choose(f"{self.name} {what}", menu)

    def _wait(self) -> None:
        def go_on() -> None:
            if not self._stopped:
                self.act()
                self._wait()

        self._world.post(self._choose("pauses", _PAUSES), go_on)

    def _new_id(self) -> None:
        self._world.counts["producers"] += 1
        self._producer_id, self._epoch = self._world.counts["producers"], 0
        self._log(Status.EMPTY)

    def _log(self, status: Status | None, **more: int) -> None:
        partitions = () if status is None else tuple(map(topic_of, self._reached))
        self._topics.log.write(
            self.name, self._producer_id, self._epoch, status, partitions, **more
        )
        self._world.tell(self.name, f"{self._producer_id}/{self._epoch} logs {status!r}")

    def _place(self) -> str:
        """Partitions come to be one after another."""
        name = self._choose("places", self._places)
        known = 1 + int(self._world.now / PARTITION_SECONDS)
        return self._places.options[self._places.options.index(name) % known]

    def _document(self) -> tuple[int, int]:
        self._world.counts["documents"] += 1
        return self._world.counts["documents"], self._choose("sizes", _SIZES)

    def _put(self, name: str, row: KafkaRow) -> tuple[str, int]:
        skew = self._choose("lie", LIES) if self._lies else self._skew
        time = 0 if row.kind is Kind.ACK else clock_at(self._world.now + skew)
        row = KafkaRow(
            row.producer, row.clock, row.kind, row.value, row.size_bytes, time=time, epoch=row.epoch
        )
        journal, offset = self._topics.put(name, row, self._choose("gaps", _GAPS))
        shown = f"{row.kind.name} {row.value} of {row.producer >> 16 & 255}"
        self._world.tell(self.name, f"writes {journal.known_as} at {offset}: {shown}")
        return journal.known_as, offset

    def _write_rows(self) -> None:
        if self._transaction is None:
            self._transaction = KafkaTransaction(transactional(self._producer_id))
        name = self._place()
        if name not in self._reached:
            self._reached.append(name)
            self._log(Status.ONGOING)
        if self._choose("without rows", _WITHOUT_ROWS):
            return  # the partition is in the transaction, and the client has got no further
        for _ in range(self._choose("counts", _COUNTS)):
            row = KafkaRow(self._transaction.producer, 0, Kind.CONTINUE, *self._document())
            known, offset = self._put(name, row)
            if offset >= 0:
                self._transaction.homes.add(known)

    def _decide(self, *, commit: bool, bumps: bool = False) -> None:
        transaction = self._transaction
        assert transaction is not None
        self._world.counts["transactions" if commit else "aborts"] += 1
        self._epoch += bumps or self._version == 2
        self._is_commit = commit
        self._log(Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT)
        self._unmarked = list(self._reached)
        if commit:
            self._topics.committed.append(transaction)
        if not self._unmarked:
            self._complete()

    def _mark(self) -> None:
        place = self._choose("order", _ORDERS) % len(self._unmarked)
        name = self._unmarked.pop(place)
        assert self._transaction is not None
        clock = 0 if self._is_commit else ROLLBACK_CLOCK
        row = KafkaRow(self._transaction.producer, clock, Kind.ACK, epoch=self._epoch)
        known, offset = self._put(name, row)
        if offset >= 0:
            self._transaction.markers.setdefault(known, offset)
        if not self._unmarked:
            self._complete()

    def _complete(self) -> None:
        done = Status.COMPLETE_COMMIT if self._is_commit else Status.COMPLETE_ABORT
        self._transaction, self._reached = None, []
        if self._epoch < EPOCH_MAX:
            self._log(done)
            return
        self._world.counts["epochs used up"] += 1
        previous = self._producer_id
        self._world.counts["producers"] += 1
        self._producer_id, self._epoch = self._world.counts["producers"], 0
        self._log(done, previous_producer_id=previous)

    def _fence(self, why: str) -> None:
        """Another process takes the id over, or the coordinator ends what takes too long."""
        if self._transaction is not None:
            self._world.counts[f"transactions that {why}"] += 1
            self._log(Status.PREPARE_EPOCH_FENCE)
            self._decide(commit=False, bumps=self._version == 1)
        elif why == "fence" and self._epoch < EPOCH_MAX:
            self._epoch += 1
            self._log(Status.EMPTY)
