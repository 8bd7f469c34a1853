"""Both readers against the scalar rule, over many random journals in one store.

Rows are written by hand: few producers, clocks that collide, any order of kinds but faults, small
segments, and some journals without their front. `PENSTOCK_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import penstock as ps
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier, to_json
from penstock.ids import Kind, Producer
from penstock.journal.frames import Ack, Payload, encode_ack, encode_documents
from penstock.journal.rows import conform
from penstock.sequence import Outcome, SequenceFaultError, sequence, sequence_rows
from penstock.spark import documents

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

JOURNALS = 40
ROWS_PER_JOURNAL = 90
CLOCK_MAX = 60

Document = tuple[str, int, str, int, int, int]
"""Journal, offset, producer, clock, commit clock, id."""


def test_readers_agree_with_the_rule(spark: SparkSession, tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    sys.stdout.write(f"PENSTOCK_SEED={seed}\n")
    chance = random.Random(seed)
    store = ps.open_store(tmp_path / "store", durability="buffered", segment_bytes_max=9_000)
    store.create(ps.Collection.define("c", "id BIGINT, part INT", "id", "part"))
    ledgers = [store.open_ledger(None) for _ in range(4)]
    producers = [ledger.producer for ledger in ledgers]
    for part in range(JOURNALS):
        write_journal(store, chance, part, producers)

    journals = [journal.name for journal in store.journals("c")]
    expected = [document for journal in journals for document in by_rule(store, journal)]
    segments = sum(len(store.ranges(journal, 0, ROWS_PER_JOURNAL)) for journal in journals)
    assert segments > 3 * JOURNALS
    assert len(expected) > JOURNALS * ROWS_PER_JOURNAL // 20
    check_both(spark, store, expected)

    frontier = random_frontier(chance, journals, producers)
    limits = {
        (journal.journal, str(entry.producer)): entry.last_commit
        for journal in frontier.journals()
        for entry in journal.producers
    }
    within = [one for one in expected if one[4] <= limits.get((one[0], one[2]), 0)]
    assert 0 < len(within) < len(expected)
    check_both(spark, store, within, as_of=to_json(frontier))

    for journal in chance.sample(journals, JOURNALS // 2):
        store.drop_before(journal, chance.randrange(ROWS_PER_JOURNAL))
    first_kept = {journal: store.probe(journal).first_kept for journal in journals}
    kept = [one for one in expected if one[1] >= first_kept[one[0]]]
    assert 0 < len(kept) < len(expected)
    check_both(spark, store, kept)
    check_both(spark, store, kept, shuffle_key="id", shuffle_partitions="2", order="clock")


def write_journal(
    store: ps.OpenStore, chance: random.Random, part: int, producers: list[Producer]
) -> None:
    """Random rows that are no fault where they stand."""
    spec = store.collection("c")
    weights = chance.choice([[2, 2, 1], [1, 9, 1], [1, 20, 2], [1, 1, 1]])
    states = dict.fromkeys(producers, (1, 0))
    payloads: list[Payload] = []
    journal = f"c/part=%_{part}/000"
    written = 0
    while written < ROWS_PER_JOURNAL:
        producer = chance.choice(producers)
        (flags,) = chance.choices([Kind.OUTSIDE, chance.choice([1, 1, 1, 3]), Kind.ACK], weights)
        last_commit, max_continue = states[producer]
        # Near where the producer stands, so that every branch of the rule is met.
        near = chance.choice([last_commit, max_continue, written // 2])
        clock = min(max(1, near + chance.randint(-2, 3)), CLOCK_MAX)
        try:
            _, *after = sequence(flags, clock, last_commit, max_continue)
        except SequenceFaultError:
            continue
        states[producer] = (after[0], after[1])
        if flags == Kind.ACK:
            payloads.append(encode_ack(1, Ack(producer, clock)))
        else:
            batch = conform(spec, [{"id": part * 1000 + written, "part": part}])
            clocks = np.array([clock], np.uint64)
            kind: Any = flags
            payloads += encode_documents(1, batch, producer, clocks, kind)
        written += 1
        if chance.random() < 0.2 or written == ROWS_PER_JOURNAL:
            store.append(journal, payloads, None)
            payloads = []
    store.sync(journal, written)


def by_rule(store: ps.OpenStore, journal: str) -> list[Document]:
    """The committed documents of a whole journal, one row after the other."""
    found: list[Document] = []
    spans: dict[int, list[tuple[Any, ...]]] = {}
    states: dict[int, Any] = {}
    for batch in store.read(journal, 0):
        result = sequence_rows(
            batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags, states
        )
        assert result.fault is None
        states = result.states
        ids: list[Any] = batch.documents.column("id").to_pylist()
        for row, outcome in enumerate(result.outcomes.tolist()):
            producer, clock = int(batch.producers[row]), int(batch.clocks[row])
            name = str(Producer.from_int64(producer))
            place = (journal, int(batch.offsets[row]), name, clock)
            if outcome == Outcome.OUTSIDE_COMMIT:
                found.append((*place, clock, ids[row]))
            elif outcome in (Outcome.CONTINUE_BEGIN, Outcome.CONTINUE_EXTEND):
                spans.setdefault(producer, []).append((*place, ids[row]))
            elif outcome == Outcome.ACK_COMMIT:
                for *begun, number in spans.pop(producer):
                    found.append((*begun, clock, number))
            elif outcome in (Outcome.ACK_CLEAN_ROLLBACK, Outcome.ACK_DEEP_ROLLBACK):
                spans.pop(producer)
    return found


def random_frontier(
    chance: random.Random, journals: list[str], producers: list[Producer]
) -> Frontier:
    """Any commits of any producers; some producers and journals not at all."""
    return Frontier.of(
        JournalFrontier(
            journal,
            0,
            tuple(
                ProducerFrontier(producer, chance.randint(1, CLOCK_MAX))
                for producer in sorted(chance.sample(producers, chance.randint(0, 4)))
            ),
        )
        for journal in sorted(chance.sample(journals, len(journals) - 5))
    )


def check_both(
    spark: SparkSession, store: ps.OpenStore, expected: list[Document], **options: Any
) -> None:
    reader = spark.read.format("penstock").option("store", store.url).option("collection", "c")
    source = found_in(reader.options(**options).load())
    by_sql = found_in(documents(spark, store=store.url, collection="c", **options))
    assert_same(source, Counter(expected))
    assert_same(by_sql, Counter(expected))


def found_in(frame: DataFrame) -> Counter[Document]:
    fields = ("journal", "offset", "producer", "clock_raw", "commit_clock_raw")
    chosen = frame.selectExpr(*(f"_meta.{field}" for field in fields), "id")
    return Counter(tuple(row) for row in chosen.collect())


def assert_same(found: Counter[Document], expected: Counter[Document]) -> None:
    missing, surplus = expected - found, found - expected
    assert not missing, f"missing {sum(missing.values())}, first {min(missing)}"
    assert not surplus, f"surplus {sum(surplus.values())}, first {min(surplus)}"
