"""Sequencing a batch: the vectorised form beside the row by row oracle.

Both carry on from states in which all producers are known, as every batch but the first does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.report import Line, compare
from penstock.ids import CLOCK_TICK, Producer, clock_from_unix
from penstock.sequence import ProducerState, sequence_batch, sequence_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ROWS: Final = 8_192
PRODUCERS: Final = tuple(Producer.from_hex(f"0{digit}a7c3e1904f").int64 for digit in (1, 3, 5, 7))
BEGIN: Final = clock_from_unix(1_750_000_000)
TRANSACTION_DOCUMENTS: Final = 100

Columns = tuple[
    "NDArray[np.int64]",
    "NDArray[np.int64]",
    "NDArray[np.int64]",
    "NDArray[np.uint64]",
    "NDArray[np.uint16]",
]


def columns(transaction_documents: int) -> Columns:
    """Four producers taking turns; 0 documents per transaction writes all of them outside."""
    row = np.arange(ROWS)
    turn = row // len(PRODUCERS)
    flags = np.zeros(ROWS, np.uint16)
    if transaction_documents > 0:
        flags[:] = np.where(turn % (transaction_documents + 1) == transaction_documents, 2, 1)
    return (
        row.astype(np.int64),
        row.astype(np.int64) + 1,
        np.array(PRODUCERS, np.int64)[row % len(PRODUCERS)],
        (BEGIN + CLOCK_TICK * (1 + row)).astype(np.uint64),
        flags,
    )


def run() -> Iterator[Line]:
    states = {producer: ProducerState(BEGIN, 0, -1) for producer in PRODUCERS}
    outside, transactions = columns(0), columns(TRANSACTION_DOCUMENTS)
    for name, batch in (("outside", outside), ("transactions", transactions)):
        ours = partial(sequence_batch, *batch, states)
        peer = partial(sequence_rows, *batch, states)
        yield compare(f"sequence.{name}", ours, peer, ROWS, "rows/s")
    ours = partial(sequence_batch, *outside, states)
    yield compare("sequence.outside_vs_numpy", ours, partial(bare_numpy, *outside), ROWS, "rows/s")


def bare_numpy(
    _offsets: NDArray[np.int64],
    _ends: NDArray[np.int64],
    producers: NDArray[np.int64],
    clocks: NDArray[np.uint64],
    _flags: NDArray[np.uint16],
) -> NDArray[np.bool_]:
    """The least that must be done for documents outside of transactions, without states or
    results: bring producers together, and tell which clocks are above all before them.
    """
    order = np.argsort(producers, kind="stable")
    grouped = clocks[order]
    return grouped[1:] > np.maximum.accumulate(grouped)[:-1]
