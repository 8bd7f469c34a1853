"""The hash of a key, and the vnode it falls into: the same in every process, for ever.

A key is one or more columns. Every value has a digest of 64 bits (`digests.py`), and a row's hash
folds the digests of its columns, in order. `docs/format.md` has the definition in full, and
`tests/unit/routing/vectors.json` has values to hold another implementation against. None of it
may ever change: documents that are stored lie where it put them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.errors import LocalProtocolError
from penstock.routing.arithmetic import UInt64Array, mix
from penstock.routing.digests import Array, digests

if TYPE_CHECKING:
    from collections.abc import Sequence

VNODES: Final = 256
"""In every cluster, whatever its size: many more than members, so that shares are even, and few
enough to sort by as bytes. A power of two, and a part of the format."""

UInt16Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint16]]

_KEY: Final = np.uint64(0x9E3779B97F4A7C15)
"""Of the golden ratio, as the constants of `digests.py` are of other numbers."""


def hash_keys(columns: Sequence[Array]) -> UInt64Array:
    """Each row's hash. The columns are of one length, and their order matters."""
    if not columns:
        raise LocalProtocolError("a key has at least one column, and none was given")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise LocalProtocolError(f"the columns of a key are of one length, not of {lengths}")
    hashes = mix(digests(columns[0]) ^ _KEY)
    for column in columns[1:]:
        hashes = mix(digests(column) ^ hashes)
    return hashes


def vnodes_of(columns: Sequence[Array]) -> UInt16Array:
    """Each row's vnode, its hash modulo `VNODES`; of the type that goes over the wire."""
    return (hash_keys(columns) & np.uint64(VNODES - 1)).astype(np.uint16)
