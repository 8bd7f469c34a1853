"""Spark looks for packages called `pyspark_...` and registers their `DefaultSource` by itself."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
