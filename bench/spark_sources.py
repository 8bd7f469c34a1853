"""Python sources that do next to nothing: what Spark itself takes for a batch, and for rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEMA = "id BIGINT, shard STRING, body BINARY"
BATCH_ROWS = 8_192
BODY_BYTES = 112


class Prebuilt(DataSource):
    """Gives one batch, built beforehand, again and again: `rows` in all, in two partitions."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802, ARG002
        return _PrebuiltReader(int(self.options["rows"]))


class _Share(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class _PrebuiltReader(DataSourceStreamReader):
    """All of it in one batch of Spark's, and nothing after it."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802, ARG002
        return {"rows": self._rows}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        return [_Share(rows // 2), _Share(rows - rows // 2)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        batch = prebuilt(BATCH_ROWS)
        for begin in range(0, partition.rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, partition.rows - begin))


def prebuilt(rows: int) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.array(range(rows), pa.int64()),
        pa.repeat("0", rows),
        pa.repeat(pa.scalar(bytes(BODY_BYTES), pa.binary()), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["id", "shard", "body"])


class Ticking(DataSource):
    """Has ten rows more whenever it is asked: every batch is a small one."""

    @classmethod
    def name(cls) -> str:
        return "ticking"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802, ARG002
        return _TickingReader()


class _TickingReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802, ARG002
        self._at += 1
        return {"at": self._at}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:  # noqa: ARG002
        return [_Share(5), _Share(5)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        yield prebuilt(partition.rows)
