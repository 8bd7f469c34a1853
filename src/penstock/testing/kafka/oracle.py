"""What a reader of Kafka's topics has to deliver, said in Spark SQL over raw logs (`raw.py`).

    raw = dump(kafka.bootstrap_servers, ["debits", "credits"])
    verdict = judge(spark, raw, delivered)   # topic, partition, offset, batch
    assert not verdict.faults, verdict

This knows nothing of `penstock.journal` and `penstock.shuffle`, and says the rules once more:

    span          the records of one producer in one partition, up to and with the next marker
    committed     a span that ends with COMMIT, and every record outside of transactions
    transaction   of a span: the entry of the transaction log that decided it. Within a producer's
                  epoch, the n-th marker in a partition from the end is of the n-th decision from
                  the end that names the partition. In version 2 every transaction has an epoch of
                  its own, and n is 1.
    written twice a coordinator that is killed leaves its markers to another, which writes them
                  all: an empty span whose marker is like the one before it, if there are more
                  markers than decisions.

Both are counted from the end, because compaction and retention take what is oldest.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.kafka.raw import RawLogs

SHOWN_MAX: Final = 5
"""Examples of each fault."""

_ROWS: Final = """
WITH counted AS (
    SELECT *, count_if(is_control) OVER (
        PARTITION BY topic, partition, producer_id ORDER BY offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS span
    FROM {records} WHERE is_transactional OR is_control
), markers AS (
    SELECT topic, partition, producer_id, span,
        max(offset) FILTER (WHERE is_control) AS marker,
        max(producer_epoch) FILTER (WHERE is_control) AS epoch,
        max(control_type) FILTER (WHERE is_control) AS control_type,
        count_if(NOT is_control) AS rows
    FROM counted GROUP BY topic, partition, producer_id, span
    HAVING marker IS NOT NULL
), decided AS (
    SELECT log_partition, log_offset, producer_id, producer_epoch AS epoch,
        if(status = 'PrepareCommit', 'COMMIT', 'ABORT') AS control_type,
        reached.topic AS topic, reached.partition AS partition,
        row_number() OVER (
            PARTITION BY producer_id, producer_epoch, reached.topic, reached.partition
            ORDER BY log_offset DESC
        ) AS from_end,
        count(*) OVER (
            PARTITION BY producer_id, producer_epoch, reached.topic, reached.partition
        ) AS decisions
    FROM {entries} LATERAL VIEW explode(partitions) AS reached
    WHERE status IN ('PrepareCommit', 'PrepareAbort')
), compared AS (
    SELECT markers.*,
        coalesce(rows = 0
            AND epoch = lag(epoch) OVER producer
            AND control_type = lag(control_type) OVER producer, false) AS is_like_the_last,
        count(*) OVER (PARTITION BY topic, partition, producer_id, epoch) AS count,
        coalesce(decisions, 0) AS decisions
    FROM markers LEFT JOIN (
        SELECT producer_id, epoch, topic, partition, max(decisions) AS decisions
        FROM decided GROUP BY producer_id, epoch, topic, partition
    ) USING (producer_id, epoch, topic, partition)
    WINDOW producer AS (PARTITION BY topic, partition, producer_id ORDER BY marker)
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY topic, partition, producer_id, epoch ORDER BY marker DESC
    ) AS from_end
    FROM compared WHERE NOT (is_like_the_last AND count > decisions)
), spans AS (
    SELECT ranked.topic, ranked.partition, ranked.producer_id, ranked.span, ranked.control_type,
        concat(log_partition, ':', log_offset) AS transaction,
        decided.control_type <> ranked.control_type AS is_contradicted
    FROM ranked LEFT JOIN decided USING (producer_id, epoch, topic, partition, from_end)
)
SELECT records.topic, records.partition, records.offset, records.key, records.value,
    records.timestamp,
    CASE WHEN counted.span IS NULL THEN 'plain' WHEN spans.control_type IS NULL THEN 'open'
        WHEN spans.control_type = 'COMMIT' THEN 'committed' ELSE 'aborted' END AS state,
    spans.transaction, coalesce(spans.is_contradicted, false) AS is_contradicted
FROM {records} AS records
LEFT JOIN counted USING (topic, partition, offset)
LEFT JOIN spans ON spans.topic = records.topic AND spans.partition = records.partition
    AND spans.producer_id = records.producer_id AND spans.span = counted.span
WHERE NOT records.is_control
"""

_JUDGED: Final = """
WITH judged AS (
    SELECT coalesce(rows.state, 'unknown') AS state, rows.transaction,
        coalesce(rows.is_contradicted, false) AS is_contradicted,
        coalesce(cohorts.cohort, 0) AS cohort,
        coalesce(found.times, 0) AS times, found.batches,
        coalesce(found.values = array_compact(array(rows.value)), true) AS is_unaltered,
        concat(topic, '-', partition, '@', offset, ' of ',
            coalesce(rows.transaction, rows.state, 'nothing')) AS row
    FROM {rows} AS rows
    FULL OUTER JOIN (
        SELECT topic, partition, offset, count(*) AS times, collect_set(batch) AS batches,
            $values AS values
        FROM {delivered} GROUP BY topic, partition, offset
    ) AS found USING (topic, partition, offset)
    LEFT JOIN {cohorts} AS cohorts USING (topic)
), by_transaction AS (
    SELECT transaction, count_if(state IN ('plain', 'committed')) AS committed, $lists,
        array_sort(array_distinct(flatten(collect_list(batches)))) AS batches
    FROM judged GROUP BY transaction, cohort
)
SELECT sum(committed) AS committed,
    count(DISTINCT if(committed > 0, transaction, NULL)) AS transactions,
    sum(size(unmatched)) AS unmatched, $flattened,
    collect_list(if(transaction IS NOT NULL AND size(batches) > 1,
        concat(transaction, ' in ', to_json(batches)), NULL)) AS torn
FROM by_transaction
"""

_FAULTS: Final = {
    "missing": "state IN ('plain', 'committed') AND times = 0",
    "repeated": "times > 1",
    "not committed": "state IN ('open', 'aborted') AND times > 0",
    "not in the logs": "state = 'unknown'",
    "altered": "state <> 'unknown' AND NOT is_unaltered",
    "decided otherwise by the transaction log": "is_contradicted",
}
"""Of a row that was delivered, or should have been."""
_UNMATCHED: Final = {"unmatched": "state = 'committed' AND transaction IS NULL"}


@dataclass(frozen=True, slots=True)
class Verdict:
    committed: int
    """Rows that are committed, in transactions or by themselves."""
    transactions: int
    """Committed ones, of which the transaction log still knows."""
    unmatched: int
    """Committed rows whose transaction the log does not have any more: it is compacted. Whether
    these are whole nobody can say."""
    faults: tuple[str, ...]
    """Empty, if every committed row was delivered once, nothing else was, and no batch has a part
    of a transaction. Each names its first rows, or transactions."""


def rows_of(spark: SparkSession, raw: RawLogs) -> DataFrame:
    """Every row of the topics: `topic`, `partition`, `offset`, `key`, `value`, `timestamp`, its
    `state` (plain, committed, aborted, open), and its `transaction`: the place of the decision in
    the transaction log, or null."""
    return spark.sql(
        _ROWS,
        records=spark.createDataFrame(raw.records),
        entries=spark.createDataFrame(raw.entries),
    )


def judge(
    spark: SparkSession,
    raw: RawLogs,
    delivered: pa.Table | DataFrame,
    cohorts: Mapping[str, int] | None = None,
) -> Verdict:
    """Whether a query delivered what it had to.

    `delivered` has a row for each row that the query delivered: `topic`, `partition`, `offset`, and
    `batch`, which may be of any type that compares; with a column `value` values are compared too.
    Deliver until everything is there: a committed row that is not in it is a fault. Without
    `cohorts` all topics are read in one; with it, topics of one number are.
    """
    found = spark.createDataFrame(delivered) if isinstance(delivered, pa.Table) else delivered
    numbers = pa.table(
        {
            "topic": pa.array(list(cohorts or ()), pa.string()),
            "cohort": pa.array(list((cohorts or {}).values()), pa.int64()),
        }
    )
    lists = ", ".join(
        f"collect_list(if({condition}, row, NULL)) AS `{what}`"
        for what, condition in (_FAULTS | _UNMATCHED).items()
    )
    query = Template(_JUDGED).substitute(
        values="collect_set(value)" if "value" in found.columns else "CAST(NULL AS ARRAY<BINARY>)",
        lists=lists,
        flattened=", ".join(f"flatten(collect_list(`{what}`)) AS `{what}`" for what in _FAULTS),
    )
    named = spark.createDataFrame(numbers)
    (judged,) = spark.sql(query, rows=rows_of(spark, raw), delivered=found, cohorts=named).collect()
    faults = {what: sorted(judged[what]) for what in (*_FAULTS, "torn")}
    return Verdict(
        judged["committed"] or 0,
        judged["transactions"],
        judged["unmatched"] or 0,
        tuple(
            f"{what}: {len(which)}, like {which[:SHOWN_MAX]}"
            for what, which in faults.items()
            if which
        ),
    )
