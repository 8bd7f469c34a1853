"""Where each record of many begins: the one thing about records that is sequential.

A record begins with its length, so the next one is found only when this one is read. A loop of
Python does that at 200 ns a record. Instead we guess all beginnings at once and prove the guess:
records without headers end with a zero (their number of headers), and every record has a zero (its
attributes) one to three bytes behind its beginning. So a beginning lies between two zeros that are
two to four bytes apart. If each guessed record ends where the next one begins, from the first byte
to the last, then the guess is what the loop would have found. Otherwise the loop runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.journal.kafka.records.varints import unsigned

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIFTS_MAX: Final = 6
"""Values with zeros in them bring wrong guesses; each sift leaves a few of a hundred of those."""


class NotRecordsError(ValueError):
    """The bytes are not a sequence of records. `position` is where that shows."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def bodies(
    data: NDArray[np.uint8], size: int, records: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each record's fields begin, behind its length, and where the record ends. `data` is
    longer than `size` by zeros, as `varints` wants it; there is a record at least."""
    guess = _guessed(data, size, records)
    return guess if guess is not None else _walked(data, size, records)


def _guessed(
    data: NDArray[np.uint8], size: int, records: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    zeros = np.flatnonzero(data[:size] == 0)
    gaps = np.diff(zeros)
    between = zeros[:-1][(gaps >= 2) & (gaps <= 4)]
    begins = np.empty(len(between) + 1, dtype=np.int64)
    begins[0] = 0
    np.add(between, 1, out=begins[1:])
    for _ in range(SIFTS_MAX):
        lengths, fields = unsigned(data, begins)
        ends = fields + (lengths >> 1)
        if len(begins) < records:
            return None
        if len(begins) == records:
            is_chain = ends[-1] == size and np.array_equal(ends[:-1], begins[1:])
            has_negative = bool((lengths & 1).any())  # by zigzag
            return (fields, ends) if is_chain and not has_negative else None
        begins = _sifted(begins, ends, size)
    return None


def _sifted(begins: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The guesses that end where another begins, or at the end, and that begin where another
    ends, or at the beginning. A true one does both."""
    is_within = (ends > 0) & (ends <= size)
    begins, ends = begins[is_within], ends[is_within]
    is_begin, is_end = np.zeros((2, size + 1), dtype=np.bool_)
    is_begin[begins] = is_begin[size] = True
    is_end[ends] = is_end[0] = True
    return begins[is_begin[ends] & is_end[begins]]


def _walked(
    data: NDArray[np.uint8], size: int, records: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One record after the other."""
    octets = data[:size].tobytes()
    fields, ends = [0] * records, [0] * records
    position = 0
    try:
        for index in range(records):
            byte = octets[position]
            begin = position
            position += 1
            length = byte & 0x7F
            shift = 7
            while byte >= 0x80:
                byte = octets[position]
                position += 1
                length |= (byte & 0x7F) << shift
                shift += 7
            if length & 1 or shift > 35:
                raise NotRecordsError(begin)
            fields[index] = position
            position += length >> 1
            ends[index] = position
    except IndexError:
        raise NotRecordsError(size) from None
    if position != size:
        raise NotRecordsError(min(position, size))
    return np.array(fields, dtype=np.int64), np.array(ends, dtype=np.int64)
