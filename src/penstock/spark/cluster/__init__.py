"""`penstock.cluster(spark, ...)`: members of a shuffle as tasks of Spark.

Read in this order: context.py (what a user has), private.py (its folder), slots.py (whether Spark
has room for the members), shuffle.py (the shuffle whose members are tasks), job.py (the barrier
job), joining.py (how a task comes to be a member), task.py (what it does), places.py (where its
queue is); server.py and remote.py (how Spark's source process draws from a shuffle that the
driver's process has).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.spark.cluster.context import Cluster, cluster

__all__ = ["cluster", "Cluster"]

_HOME: Final = "penstock.spark.cluster.context"
"""Loaded when used: tasks and source processes have no use for it."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME), name)
