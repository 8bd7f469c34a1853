"""Records as rows of Spark's Kafka source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.records.columns import decode
from penstock.journal.kafka.rows import RAW_SCHEMA_WITH_HEADERS, raw_documents
from tests.unit.journal.kafka.record_bytes import Row, batch_of

ORDERS = Partition("orders", 0)


@pytest.mark.parametrize("begin", [0, 1, 4, 5, 6])
def test_headers_of_some_of_the_rows_are_those_of_these_rows(begin: int) -> None:
    """A fetch of many partitions is one table, of which each partition has a slice."""
    rows = [Row(n, 0, None, b"", (("h", b"%d" % n),) * (n % 3)) for n in range(6)]
    whole = decode(ORDERS, batch_of(rows), 0, with_headers=True)
    decoded = replace(whole, rows=whole.rows.slice(begin))
    found = raw_documents(ORDERS, decoded, RAW_SCHEMA_WITH_HEADERS, ["headers"])
    assert found.column("headers").to_pylist() == [
        [{"key": "h", "value": b"%d" % n}] * (n % 3) or None for n in range(begin, 6)
    ]
