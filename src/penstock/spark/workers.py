"""Spark's Python workers: tasks, plans of batches and commits run in them, one after the other."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle_worker() -> None:
    """In the first call of ours. Spark collects garbage after each call, and looks at all there is:
    60 ms of a processor, nearly all of it for modules, which are never garbage. What is there now
    is not looked at again."""
    gc.freeze()
