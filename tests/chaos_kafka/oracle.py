"""A program that judges the batches by Kafka's raw logs, in Spark SQL: a process of its own, which
takes its Java with it. It ends with 1 if something is wrong, and says what."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from penstock.spark.session import local_session
from penstock.testing.kafka.oracle import judge
from penstock.testing.kafka.raw import dump
from tests.chaos_kafka.world import BATCHES, ROW, TOPICS, delivered


def main(folder: Path, servers: str) -> int:
    rows = [(*row, batch) for batch, each in delivered(folder / BATCHES).items() for row in each]
    columns = zip(*rows, strict=True) if rows else [()] * (len(ROW) + 1)
    table = pa.table(dict(zip((*ROW, "batch"), map(pa.array, columns), strict=True)))
    spark = local_session("penstock-chaos-oracle")
    try:
        verdict = judge(spark, dump(servers, TOPICS.names), table)
    finally:
        spark.stop()
    sys.stdout.write(
        "\n".join(verdict.faults or [f"{verdict.transactions} transactions are whole"])
    )
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
