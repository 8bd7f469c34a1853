"""Varints of many records at once: seven bits a byte, lowest first; the high bit says "more"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTES_MAX: Final = 10
"""Of a 64-bit varint. What holds the bytes must go on with as many zeros behind its end, so that a
varint that is cut off ends there."""


def unsigned(
    data: NDArray[np.uint8], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The varints at these positions, and the positions behind them. Positions lie within the bytes
    or at their end: the caller has checked that."""
    octets = data.take(positions)
    values = octets.astype(np.int64)
    behind = positions + 1
    unfinished = np.flatnonzero(octets >= 0x80)
    if len(unfinished) == 0:
        return values, behind
    values &= 0x7F
    for shift in range(7, 7 * BYTES_MAX, 7):
        octets = data.take(behind[unfinished])
        values[unfinished] |= (octets & 0x7F).astype(np.int64) << shift
        behind[unfinished] += 1
        unfinished = unfinished[octets >= 0x80]
        if len(unfinished) == 0:
            break
    return values, behind


def signed(
    data: NDArray[np.uint8], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same with zigzag: 0, -1, 1, -2, 2 ... are 0, 1, 2, 3, 4 ..."""
    values, behind = unsigned(data, positions)
    # Shifted as unsigned: a 64-bit varint uses the sign bit.
    halves = (values.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return halves ^ -(values & 1), behind
