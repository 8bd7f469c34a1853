"""The cluster: what members know of each other.

`penstock.cluster(spark, ...)` has the same name, and Python gives that name to this package as soon
as anything of it is imported. So the package can be called, too.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *given: Any, **named: Any) -> Any:
        return importlib.import_module("penstock.spark.cluster").cluster(*given, **named)


sys.modules[__name__].__class__ = _Callable
