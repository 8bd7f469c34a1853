"""A streaming read, killed at each of its steps and started again, has every document once."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import penstock as ps
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.spark.source import PenstockSource
from penstock.spark.streaming import steps
from penstock.spark.streaming.options import StreamOptions
from penstock.spark.streaming.reader import PenstockStreamReader
from penstock.spark.streaming.steps import Step
from tests import crashing
from tests.crashing import arm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.slow

WAIT_SECONDS_MAX = 180
ONCE_IN_A_LIFE = (Step.DRAWN, Step.NOTED)
NOT_IN_THE_FIRST_RUN = (Step.FREED,)
CASES = [
    *((step, "first") for step in Step if step not in NOT_IN_THE_FIRST_RUN),
    *((step, "later") for step in Step if step not in ONCE_IN_A_LIFE),
]


class CrashingReader(PenstockStreamReader):
    """Is armed wherever Spark sends it, before anything is done there."""

    plan: str

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        arm(self.plan, steps)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arm(self.plan, steps)
        return super().read(partition)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        arm(self.plan, steps)
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        arm(self.plan, steps)
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        arm(self.plan, steps)
        return super().partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        arm(self.plan, steps)
        super().commit(end)


class CrashingSource(PenstockSource):
    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._plan = given.pop("plan")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "crashing_source"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reader = super().streamReader(schema)
        reader.__class__ = CrashingReader
        reader.plan = self._plan
        return reader
