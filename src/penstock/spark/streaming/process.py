"""The process that Spark keeps for the source of a query. Spark makes readers elsewhere too, in
processes in which users' functions may run; this one has nothing in it but the reader."""

from __future__ import annotations

import sys
from typing import Final

from penstock.shuffle.own_process import settle_own_process

_PROGRAM: Final = "pyspark.sql.streaming.python_streaming_source_runner"


def settle_process() -> None:
    """Before the first thing is done in it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _PROGRAM:
        settle_own_process()
