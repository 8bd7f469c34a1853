"""Penstock: exactly-once, disk-backed, coordinated shuffled reads for PySpark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.journal import Collection, OpenStore, open_kafka, open_store
    from penstock.spark.cluster import cluster
    from penstock.spark.pipeline import Pipeline, pipeline

__all__ = [
    "open_store",
    "open_kafka",
    "Collection",
    "OpenStore",
    "cluster",
    "pipeline",
    "Pipeline",
    "PenstockError",
]

_HOMES: Final = {
    "open_store": "penstock.journal",
    "open_kafka": "penstock.journal",
    "Collection": "penstock.journal",
    "OpenStore": "penstock.journal",
    "cluster": "penstock.spark.cluster",
    "pipeline": "penstock.spark.pipeline",
    "Pipeline": "penstock.spark.pipeline",
}
"""Loaded when used: with them come Arrow and Spark, and `penstock --help` should not wait."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
