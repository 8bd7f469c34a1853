"""Penstock on Spark: `spark.read.format("penstock")`, and the same documents by Spark SQL.

Nothing here is imported with `penstock` itself, and Spark only when one of these names is used.
Read in this order: options.py (what a reader asks for), columns.py (what it gets), plan.py (what
each task reads), rows.py and buckets.py (what a task does), source.py (Spark's
interface to all that), sql.py (the second reader), session.py (a Spark for one machine); writing.py
(how Spark writes through a two-phase sink), manifests.py (what the Parquet sink has committed);
pipeline.py (programs for `penstock run`), progress.py (how their queries go).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.spark.manifests import read_manifests
    from penstock.spark.session import local_session
    from penstock.spark.sql import documents
    from penstock.spark.writing import SinkStreamWriter

__all__ = [
    "documents",
    "local_session",
    "read_manifests",
    "SinkStreamWriter",
    "SparkMissingError",
]

_HOMES: Final = {
    "documents": "penstock.spark.sql",
    "local_session": "penstock.spark.session",
    "read_manifests": "penstock.spark.manifests",
    "SinkStreamWriter": "penstock.spark.writing",
}


class SparkMissingError(ConfigurationError):
    """PySpark is not installed beside Penstock. Install it as the message says."""

    def __str__(self) -> str:
        return "this needs PySpark, which is not installed; run: pip install 'penstock[spark]'"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "pyspark":
            raise SparkMissingError from None
        raise
