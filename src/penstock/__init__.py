"""Penstock: exactly-once, disk-backed, coordinated shuffled reads for PySpark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.journal import Collection, OpenStore, open_store

__all__ = ["open_store", "Collection", "OpenStore", "PenstockError"]

_LAZY: Final = ("open_store", "Collection", "OpenStore")
"""Loaded when used: with them come Arrow and NumPy, and `penstock --help` should not wait."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("penstock.journal"), name)
