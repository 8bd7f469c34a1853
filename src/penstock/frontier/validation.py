"""What every frontier must be: columns of one form, and rows in strictly ascending order."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import LocalProtocolError
from penstock.ids import CLOCK_MAX, Producer

if TYPE_CHECKING:
    from penstock.frontier.table import Frontier

BINDING_MAX: Final = 0xFFFF
OFFSET_MAX: Final = 2**63 - 1
"""Offsets carry a sign, so the lowest int64, which has no opposite, is not one."""
LSN_MAX: Final = 2**64 - 1


ARRAY_TYPES: Final = {
    "bindings": np.uint16,
    "bytes_read_delta": np.int64,
    "bytes_behind_delta": np.int64,
    "producer_starts": np.int64,
    "producers": np.int64,
    "last_commits": np.uint64,
    "hinted_commits": np.uint64,
    "offsets": np.int64,
    "flushed_lsn": np.uint64,
}
CLOCK_MAPS: Final = ("backfill_begin", "backfill_complete", "gap_floor")


class FrontierColumnError(LocalProtocolError):
    """A column given to a frontier is not of its form. Fix the code that builds it."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(column, problem)
        self.column = column
        self.problem = problem

    def __str__(self) -> str:
        return f"frontier column {self.column}: {self.problem}"


class JournalOrderError(LocalProtocolError):
    """Journals of a frontier do not ascend by (journal, binding). Sort or merge them first."""

    complaint = "is not ordered"

    def __init__(self, index: int, journal: str, binding: int) -> None:
        super().__init__(index, journal, binding)
        self.index = index
        self.journal = journal
        self.binding = binding

    def __str__(self) -> str:
        return (
            f"frontier journal {self.index} ({self.journal!r}, binding {self.binding}) "
            f"{self.complaint}"
        )


class JournalRepeatedError(JournalOrderError):
    """A (journal, binding) stands in a frontier twice. Merge the two first."""

    complaint = "is not unique"


class ProducerOrderError(LocalProtocolError):
    """Producers of a journal do not ascend by their bytes. Sort or merge them first."""

    complaint = "is not ordered"

    def __init__(self, index: int, journal: str, binding: int, producer: str) -> None:
        super().__init__(index, journal, binding, producer)
        self.index = index
        self.journal = journal
        self.binding = binding
        self.producer = producer

    def __str__(self) -> str:
        return (
            f"frontier producer {self.index} ({self.producer}) of journal {self.journal!r}, "
            f"binding {self.binding} {self.complaint}"
        )


class ProducerRepeatedError(ProducerOrderError):
    """A producer stands in a journal twice. Merge the two first."""

    complaint = "is not unique"


def freeze_columns(frontier: Frontier) -> None:
    for name, dtype in ARRAY_TYPES.items():
        array = getattr(frontier, name)
        if array.dtype != dtype or array.ndim != 1:
            problem = f"must be flat and of type {np.dtype(dtype)}, not {array.dtype}"
            raise FrontierColumnError(name, problem)
        frozen = array.view()
        frozen.flags.writeable = False
        object.__setattr__(frontier, name, frozen)
    for name in CLOCK_MAPS:
        clocks = dict(getattr(frontier, name))
        for binding, clock in clocks.items():
            if not (0 <= binding <= BINDING_MAX and 0 <= clock <= CLOCK_MAX):
                raise FrontierColumnError(name, f"binding {binding} at clock {clock} is no pair")
        object.__setattr__(frontier, name, MappingProxyType(clocks))


def check_journals(frontier: Frontier) -> None:
    names, bindings = frontier.journal_names, frontier.bindings
    if names.type != pa.string() or names.null_count:
        raise FrontierColumnError("journal_names", "must be strings, none of them null")
    for name in ("bindings", "bytes_read_delta", "bytes_behind_delta"):
        if len(getattr(frontier, name)) != len(names):
            problem = f"has {len(getattr(frontier, name))} rows for {len(names)} journals"
            raise FrontierColumnError(name, problem)
    if len(names) < 2:
        return
    before, after = names.slice(0, len(names) - 1), names.slice(1)
    same = pc.equal(before, after).to_numpy(zero_copy_only=False)
    ascending = pc.less(before, after).to_numpy(zero_copy_only=False)
    ascending |= same & (bindings[:-1] < bindings[1:])
    if ascending.all():
        return
    index = int(np.argmin(ascending)) + 1
    repeated = same[index - 1] and bindings[index - 1] == bindings[index]
    error = JournalRepeatedError if repeated else JournalOrderError
    raise error(index, names[index].as_py(), int(bindings[index]))


def check_entries(frontier: Frontier) -> None:
    starts, producers = frontier.producer_starts, frontier.producer_bytes
    count = len(producers)
    if (
        len(starts) != frontier.journal_count + 1
        or starts[0] != 0
        or starts[-1] != count
        or (starts[:-1] > starts[1:]).any()
    ):
        problem = f"must ascend from 0 to {count} in {frontier.journal_count + 1} rows"
        raise FrontierColumnError("producer_starts", problem)
    for name in ("last_commits", "hinted_commits", "offsets"):
        if len(getattr(frontier, name)) != count:
            problem = f"has {len(getattr(frontier, name))} rows for {count} entries"
            raise FrontierColumnError(name, problem)
    if (frontier.offsets < -OFFSET_MAX).any():
        raise FrontierColumnError("offsets", f"is below {-OFFSET_MAX}, which has no opposite")
    if (producers & np.uint64(0xFFFF)).any():
        raise FrontierColumnError("producers", "has a number whose two low bytes are not zero")
    if count < 2:
        return
    ascending = producers[:-1] < producers[1:]
    firsts = starts[1:-1]
    # The first producer of a journal follows on the last of another, in any order.
    ascending[firsts[(firsts > 0) & (firsts < count)] - 1] = True
    if ascending.all():
        return
    row = int(np.argmin(ascending)) + 1
    journal = int(np.searchsorted(starts, row, side="right")) - 1
    repeated = producers[row] == producers[row - 1]
    order_error = ProducerRepeatedError if repeated else ProducerOrderError
    raise order_error(
        row - int(starts[journal]),
        frontier.journal_names[journal].as_py(),
        int(frontier.bindings[journal]),
        str(Producer.from_int64(int(frontier.producers[row]))),
    )
