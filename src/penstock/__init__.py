"""Penstock: exactly-once, disk-backed, coordinated shuffled reads for PySpark."""

from penstock.errors import PenstockError
from penstock.journal import Collection, OpenStore, open_store

__all__ = ["open_store", "Collection", "OpenStore", "PenstockError"]
