"""Arithmetic on columns of 64-bit words: the mixer, and numbers modulo a prime.

Decimals of one value have many forms (1.5 is 15 tenths and 150 hundredths). Modulo a prime, where
tenths are whole numbers too, they have one; and no digit needs to be looked at to find it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

UInt64Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

BLOCK_ROWS: Final = 8_192
"""So many rows at once: what is computed on the way stays in the processor's caches, and below the
size from which on C libraries fetch and return memory for every array."""
PRIME: Final = 2**61 - 1
"""A multiple of 2**61 is 1 modulo this, so that shifts do the work of divisions."""

_PRIME: Final = np.uint64(PRIME)
_PRIME_BITS: Final = 61
_LOW_31: Final = np.uint64(2**31 - 1)
_LOW_30: Final = np.uint64(2**30 - 1)
_BITS_61, _BITS_31, _BITS_30, _BITS_27 = (np.uint64(bits) for bits in (_PRIME_BITS, 31, 30, 27))
_FACTOR_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2: Final = np.uint64(0x94D049BB133111EB)


def mix(words: UInt64Array) -> UInt64Array:
    """Spreads every bit over all bits; different words stay different."""
    mixed = np.empty(len(words), np.uint64)
    for start in range(0, len(words), BLOCK_ROWS):
        block = words[start : start + BLOCK_ROWS]
        block = block ^ (block >> _BITS_30)
        block *= _FACTOR_1
        block ^= block >> _BITS_27
        block *= _FACTOR_2
        np.bitwise_xor(block, block >> _BITS_31, out=mixed[start : start + BLOCK_ROWS])
    return mixed


def residue(limbs: UInt64Array) -> UInt64Array:
    """Numbers modulo the prime. A row of `limbs` is one of them: its 64-bit words in two's
    complement, the lowest first, and at most four of them."""
    count = limbs.shape[1]
    # 2**64 is 8 modulo the prime: each limb counts eight times the one before. A negative number's
    # limbs are too large by the limb that would come next.
    negative = limbs[:, -1] >> np.uint64(63)
    total = _PRIME - negative * np.uint64(8**count)
    for place in range(count):
        total += _rotated(_reduced(limbs[:, place]), 3 * place)
    return _reduced(total)


def scaled_residue(residues: UInt64Array, scale: int) -> UInt64Array:
    """Numbers modulo the prime, divided by 10**scale."""
    factor = pow(10, -scale, PRIME)
    if factor == 1:
        return residues
    # Schoolbook multiplication in halves of 31 and 30 bits, where no sum reaches 2**64. Behind the
    # brackets: 2**62 is 2 modulo the prime, and 2**61 is 1.
    high, low = residues >> _BITS_31, residues & _LOW_31
    factor_high, factor_low = np.uint64(factor >> 31), np.uint64(factor) & _LOW_31
    middle = high * factor_low + low * factor_high
    total = (high * factor_high) << np.uint64(1)
    total += low * factor_low
    total += middle >> _BITS_30
    total += (middle & _LOW_30) << _BITS_31
    return _reduced(total)


def _reduced(words: UInt64Array) -> UInt64Array:
    """Any words modulo the prime."""
    folded = (words & _PRIME) + (words >> _BITS_61)
    return np.where(folded >= _PRIME, folded - _PRIME, folded)


def _rotated(residues: UInt64Array, bits: int) -> UInt64Array:
    """Residues times 2**bits."""
    if bits == 0:
        return residues
    return (residues << np.uint64(bits)) & _PRIME | residues >> np.uint64(_PRIME_BITS - bits)
