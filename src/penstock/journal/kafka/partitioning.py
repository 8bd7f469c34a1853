"""Which partition a row goes to: as Kafka's default partitioner has it. Pure.

A key's partition is murmur2 of its bytes, without the sign, modulo the number of partitions: rows
of a key meet those that Java's producers write. Rows without a key go to all partitions in turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from penstock.journal.kafka.records.encoding import bytes_of

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)


def partitions_of(keys: pa.Array[Any], count: int, first: int) -> NDArray[np.int32]:
    """The partition of each row, by its key (an array of binary) among `count` partitions. Those
    whose key is null are dealt out in runs, from partition `first` on: a run compresses better than
    single rows do, and makes fewer record batches."""
    positive = murmur2(keys) & _POSITIVE
    chosen = (positive % np.uint32(count)).astype(np.int32)
    if keys.null_count:
        without = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        run = -(-len(without) // count)
        chosen[without] = (first + np.arange(len(without)) // run) % count
    return chosen


def murmur2(keys: pa.Array[Any]) -> NDArray[np.uint32]:
    """Kafka's hash of each value of an array of binary. What it gives for null means nothing."""
    cuts, octets = bytes_of(keys)
    begins, lengths = cuts[:-1].astype(np.int64), np.diff(cuts).astype(np.int64)
    data = np.frombuffer(cast("Any", octets), np.uint8)
    hashes = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    active = np.flatnonzero(words > 0)
    place = 0
    while len(active):
        at = begins[active] + 4 * place
        word = data[at].astype(np.uint32)
        for octet in (1, 2, 3):
            word |= data[at + octet].astype(np.uint32) << np.uint32(8 * octet)
        word *= _FACTOR
        word ^= word >> np.uint32(24)
        word *= _FACTOR
        hashes[active] = (hashes[active] * _FACTOR) ^ word
        place += 1
        active = active[words[active] > place]
    rest = lengths % 4
    for octet in (2, 1, 0):
        longer = np.flatnonzero(rest > octet)
        tail = data[begins[longer] + 4 * words[longer] + octet].astype(np.uint32)
        hashes[longer] ^= tail << np.uint32(8 * octet)
    hashes[rest > 0] *= _FACTOR
    hashes ^= hashes >> np.uint32(13)
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint32(15)
    return hashes
