"""The identity of rows in logs that others write, as a function of the log alone. Pure.

Such a log gives its rows no clocks of ours. What it has, for ever and for all readers, are offsets:
a row's clock is its offset, and so is the clock of a commit, where its transaction marker stands.
Two clocks of different journals are not comparable; `shuffle/session/matching.py` says what is
committed together. Rows are ordered by time, which is another column.

Kafka's producer ids are 64 bits, handed out one by one; ours are six bytes. The first of the six
says what the producer is:

    00  id -1: a producer without an id. Its repetitions cannot be told
    02  idempotent: the broker has dropped its repetitions
    04  transactional: a row counts once a marker commits it
    fe  the reader itself: its "commit" is the offset up to which a journal was read
    80..bf  a producer that the user's own columns or headers name: 46 bits of a hash
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.ids import CLOCK_FLOOR, Producer

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_CLOCK: Final = 2
"""Of offset 0: a commit is above `CLOCK_FLOOR`."""
ROLLBACK_CLOCK: Final = CLOCK_FLOOR
"""Of a marker that aborts: never above the producer's last commit, so it forgets the open span."""
PRODUCER_ID_MAX: Final = 2**40 - 1
"""Brokers hand ids out in blocks of a thousand: a trillion of them is a long time."""

_PLAIN, _IDEMPOTENT, _TRANSACTIONAL, _READER, _NAMED = 0x00, 0x02, 0x04, 0xFE, 0x80
_KIND_SHIFT: Final = 56
_ID_SHIFT: Final = 16

READER: Final = Producer(bytes([_READER, 0, 0, 0, 0, 0]))
"""Its entries in a frontier say up to which offset a journal was read, whatever is open there."""
PLAIN: Final = Producer(bytes(6))


def clock_of(offset: int) -> int:
    return offset + FIRST_CLOCK


def offset_of(clock: int) -> int:
    """The inverse of `clock_of`."""
    return clock - FIRST_CLOCK


def clocks_of(offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    return offsets.astype(np.uint64) + np.uint64(FIRST_CLOCK)


def producers_of(ids: NDArray[np.int64], is_transactional: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Producers as int64, of Kafka's ids. The caller has checked that ids are in range."""
    kinds = np.where(is_transactional, _TRANSACTIONAL, _IDEMPOTENT).astype(np.int64)
    numbered = (kinds << _KIND_SHIFT) | (ids << _ID_SHIFT)
    return np.where(ids < 0, np.int64(PLAIN.int64), numbered)


def named_producers(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Producers that users name, by hashes of their names."""
    kept = (hashes >> np.uint64(18)) << np.uint64(_ID_SHIFT)
    marked: Any = kept | (np.uint64(_NAMED) << np.uint64(_KIND_SHIFT))
    return marked.view(np.int64)  # type: ignore[no-any-return]


def producer_id(producer: int) -> int | None:
    """Kafka's id of a producer, if it has one."""
    if producer >> _KIND_SHIFT not in (_IDEMPOTENT, _TRANSACTIONAL):
        return None
    return (producer >> _ID_SHIFT) & PRODUCER_ID_MAX


def are_transactional(producers: NDArray[np.int64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (producers >> _KIND_SHIFT) == _TRANSACTIONAL
    return found


def transactional(producer: int) -> int:
    """A transactional producer, by Kafka's id."""
    return (_TRANSACTIONAL << _KIND_SHIFT) | (producer << _ID_SHIFT)
