"""What the Parquet sink has committed, as a DataFrame: the files that its manifests name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError
from penstock.sinks.parquet import committed_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_manifests(spark: SparkSession, path: str, query: str | None = None) -> DataFrame:
    """All batches committed by now, of every query that writes there or of one. What is committed
    later is not in the frame; read again for that."""
    files = committed_files(path, query)
    if not files:
        whose = "" if query is None else f" of query {query}"
        raise ConfigurationError(f"no batch{whose} was committed at {path}; correct the path")
    return spark.read.parquet(*files)
