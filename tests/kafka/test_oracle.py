"""The oracle finds every fault that it is there for, in logs that are written down by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.testing.kafka.oracle import judge
from penstock.testing.kafka.raw import ENTRIES, RECORDS, RawLogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PLAIN = -1


class Logs:
    """Two partitions, `a` and `b` of the topic `t`, and a log of one partition."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self._ends = {"a": 0, "b": 0}

    def row(self, where: str, producer: int = PLAIN, epoch: int = 0, marker: str = "") -> None:
        self.records.append(
            {
                "topic": "t",
                "partition": "ab".index(where),
                "offset": self._ends[where],
                "producer_id": producer,
                "producer_epoch": epoch,
                "is_transactional": producer != PLAIN,
                "is_control": bool(marker),
                "control_type": marker or None,
                "value": b"%s%d" % (where.encode(), self._ends[where]),
                "timestamp": 0,
            }
        )
        self._ends[where] += 1

    def decide(self, where: str, producer: int, epoch: int = 0, marker: str = "COMMIT") -> None:
        for status, reached in (
            (f"Prepare{marker.title()}", where),
            (f"Complete{marker.title()}", ""),
        ):
            self.entries.append(
                {
                    "log_partition": 0,
                    "log_offset": len(self.entries),
                    "transactional_id": f"id-{producer}",
                    "producer_id": producer,
                    "producer_epoch": epoch,
                    "status": status,
                    "partitions": [{"topic": "t", "partition": "ab".index(n)} for n in reached],
                }
            )

    def transaction(self, where: str, producer: int, epoch: int = 0, marker: str = "COMMIT") -> int:
        """A row and a marker in each partition. The transaction's place in the log."""
        for each in where:
            self.row(each, producer, epoch)
        self.decide(where, producer, epoch, marker)
        for each in where:
            self.row(each, producer, epoch, marker)
        return len(self.entries) - 2

    def raw(self, compacted: int = 0) -> RawLogs:
        return RawLogs(
            pa.Table.from_pylist(self.records, RECORDS),
            pa.Table.from_pylist(self.entries[compacted:], ENTRIES),
        )


def delivered(*batches: str) -> pa.Table:
    """Batch by batch, rows like `a0 b3`."""
    return pa.Table.from_pylist(
        [
            {
                "topic": "t",
                "partition": "ab".index(name[0]),
                "offset": int(name[1:]),
                "batch": number,
                "value": name.encode(),
            }
            for number, batch in enumerate(batches)
            for name in batch.split()
        ],
        pa.schema(
            [  # type: ignore[arg-type]
                pa.field("topic", pa.string()),
                pa.field("partition", pa.int32()),
                pa.field("offset", pa.int64()),
                pa.field("batch", pa.int64()),
                pa.field("value", pa.binary()),
            ]
        ),
    )


def some_logs() -> Logs:
    """Plain rows at a0 and b0; committed are a1 b1 and a5 b5; a3 b3 is aborted, a7 is open."""
    logs = Logs()
    logs.row("a")
    logs.row("b")
    logs.transaction("ab", 1)
    logs.transaction("ab", 1, marker="ABORT")
    logs.transaction("ab", 1)
    logs.row("a", 2)
    return logs


def test_what_is_right_has_no_fault(spark: SparkSession) -> None:
    verdict = judge(spark, some_logs().raw(), delivered("a0", "a1 b1 b0", "a5 b5"))
    assert verdict.faults == ()
    assert (verdict.committed, verdict.transactions, verdict.unmatched) == (6, 2, 0)


def test_faults_are_found_and_named(spark: SparkSession) -> None:
    found = delivered("a0 b0 a1 a5", "b1 b5 b3 a7 a9", "a5")
    values = pa.array([b"?", *found.column("value").to_pylist()[1:]], pa.binary())
    assert judge(spark, some_logs().raw(), found.set_column(4, "value", values)).faults == (
        "repeated: 1, like ['t-0@5 of 0:4']",
        "not committed: 2, like ['t-0@7 of open', 't-1@3 of 0:2']",
        "not in the logs: 1, like ['t-0@9 of nothing']",
        "altered: 1, like ['t-0@0 of plain']",
        "torn: 2, like ['0:0 in [0,1]', '0:4 in [0,1,2]']",
    )
    (missing,) = judge(spark, some_logs().raw(), found.slice(0, 0).drop_columns(["value"])).faults
    assert missing.startswith("missing: 6, like ['t-0@0 of plain', 't-0@1 of 0:0',")


def test_markers_out_of_step_belong_to_their_decisions(spark: SparkSession) -> None:
    """Of version 1 and 2, and of a coordinator that was killed; counts in a and b differ."""
    logs = Logs()
    logs.transaction("a", 1)
    logs.transaction("ab", 1)
    logs.transaction("a", 2, epoch=1)
    logs.transaction("ab", 2, epoch=2)
    logs.transaction("a", 3)
    logs.row("a", 3, marker="COMMIT")  # by another coordinator, once more
    logs.transaction("ab", 3)
    batches = ("a0", "a2 b0 a4", "a6 b2", "a8", "a11 b4")
    assert judge(spark, logs.raw(), delivered(*batches)).faults == ()
    torn = delivered("a0 b0", "a2 a4", "a6", "b2", "a8 b4", "a11")
    (fault,) = judge(spark, logs.raw(), torn).faults
    assert fault == "torn: 3, like ['0:10 in [4,5]', '0:2 in [0,1]', '0:6 in [2,3]']"


def test_what_a_compacted_log_does_not_know_is_told(spark: SparkSession) -> None:
    verdict = judge(spark, some_logs().raw(compacted=2), delivered("a0 b0 a1", "b1 a5 b5"))
    assert verdict.faults == (), "nobody can say that the first transaction is torn"
    assert (verdict.transactions, verdict.unmatched) == (1, 2)


def test_a_log_that_says_otherwise_is_a_fault(spark: SparkSession) -> None:
    logs = some_logs()
    logs.entries[0]["status"] = "PrepareAbort"
    (fault,) = judge(spark, logs.raw(), delivered("a0 b0 a1 b1 a5 b5")).faults
    assert fault.startswith("decided otherwise by the transaction log: 2")


def test_cohorts_are_judged_each_by_itself(spark: SparkSession) -> None:
    logs = some_logs()
    for record in logs.records:
        record["topic"] = "ta" if record["partition"] == 0 else "tb"
    for entry in logs.entries:
        for each in entry["partitions"]:
            each["topic"] = "ta" if each["partition"] == 0 else "tb"
    found = delivered("a0 a1 a5", "b0 b1 b5")
    names = ["ta" if number == 0 else "tb" for number in found.column("partition").to_pylist()]
    found = found.set_column(0, "topic", pa.array(names, pa.string()))
    assert judge(spark, logs.raw(), found, {"ta": 0, "tb": 1}).faults == ()
    assert judge(spark, logs.raw(), found, {"ta": 1, "tb": 1}).faults != ()
