"""Avro's binary encoding to columns, all rows at once.

Each row has a cursor. Reading a field moves the cursors of all rows over it in a few steps of
NumPy, whatever the number of rows: so the cost of Python is per field of the schema, not per value.
A row whose bytes are not what the schema says is marked with a reason, its cursor goes to its end,
and the others go on. Lengths are believed only within the bytes that are there.
"""

from __future__ import annotations

from typing import Any, Final, assert_never, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.avro_schema import (
    Entries,
    Enum,
    Fixed,
    Items,
    Node,
    Primitive,
    Record,
    Union,
    is_null,
)
from penstock.formats.buffers import (
    Column,
    Mask,
    Numbers,
    Octets,
    binary_array,
    offsets_and_octets,
    valid_rows,
)
from penstock.formats.decoded import Decoded, failures

_VARINT_BYTES_MAX: Final = 10
_DECIMAL_BYTES: Final = 16
_MILLIS_MAX: Final = (1 << 63) // 1000 - 1


def decode_records(values: pa.BinaryArray, record: Record) -> Decoded:
    """One row per value. Null values are rows of nulls."""
    offsets, octets = offsets_and_octets(values)
    present = np.flatnonzero(valid_rows(values))
    cursors = _Cursors(octets, offsets[:-1][present], offsets[1:][present], present, {})
    columns = [_read(member.node, cursors) for member in record.fields]
    cursors.fail(cursors.position < cursors.end, "bytes are left behind the record")
    places = np.full(len(values), -1, dtype=np.int64)
    places[present] = np.arange(len(present))
    places[list(cursors.reasons)] = -1
    if (places < 0).any():
        columns = [_placed(column, places) for column in columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=record.schema)
    return failures(record.schema, batch, cursors.reasons)


class _Cursors:
    """Where each of several items is read next, in one buffer. `rows` tells whose they are."""

    def __init__(
        self,
        octets: Octets,
        position: Numbers,
        end: Numbers,
        rows: Numbers,
        reasons: dict[int, str],
    ) -> None:
        self.octets, self.position, self.end, self.rows = octets, position, end, rows
        self.reasons = reasons

    def __len__(self) -> int:
        return len(self.position)

    def subset(self, chosen: Numbers) -> _Cursors:
        """Cursors of their own for the chosen items; `rejoin` takes them back."""
        return _Cursors(
            self.octets, self.position[chosen], self.end[chosen], self.rows[chosen], self.reasons
        )

    def rejoin(self, chosen: Numbers, subset: _Cursors) -> None:
        self.position[chosen] = subset.position

    def fail(self, chosen: Mask, reason: str) -> None:
        """Marks rows, with the first reason that is found, and leaves the rest of them unread."""
        if not chosen.any():
            return
        for row in self.rows[chosen].tolist():
            self.reasons.setdefault(row, reason)
        self.position[chosen] = self.end[chosen]

    def take_bytes(self, lengths: Numbers, what: str) -> tuple[Numbers, Numbers]:
        """Moves over so many bytes of each item: where they begin, and how many there are."""
        wrong = (lengths < 0) | (lengths > self.end - self.position)
        self.fail(wrong, f"{what} is longer than the value")
        lengths = np.where(wrong, 0, lengths)
        starts = self.position.copy()
        self.position = starts + lengths
        return starts, lengths

    def take_matrix(self, size: int, what: str) -> Octets:
        """`size` bytes of each item, one item a line; zeros where they are not there."""
        starts, lengths = self.take_bytes(np.full(len(self), size, dtype=np.int64), what)
        matrix = np.zeros((len(self), size), dtype=np.uint8)
        there = lengths == size
        matrix[there] = self.octets[starts[there, None] + np.arange(size)]
        return matrix

    def take_varints(self, what: str) -> Numbers:
        """A zigzag number of each item."""
        result = np.zeros(len(self), dtype=np.uint64)
        active = np.arange(len(self))
        for step in range(_VARINT_BYTES_MAX):
            there = self.position[active] < self.end[active]
            if not there.all():
                short = np.zeros(len(self), dtype=bool)
                short[active[~there]] = True
                self.fail(short, f"the value ends inside of {what}")
                active = active[there]
            octet = self.octets[self.position[active]]
            self.position[active] += 1
            result[active] |= (octet & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * step)
            active = active[octet >= 0x80]
            if len(active) == 0:
                break
        else:
            endless = np.zeros(len(self), dtype=bool)
            endless[active] = True
            self.fail(endless, f"{what} is a number without end")
        return (result >> np.uint64(1)).view(np.int64) ^ -(result & np.uint64(1)).view(np.int64)


def _placed(column: Column, places: Numbers) -> Column:
    """The column's values at other places; -1 is null."""
    return column.take(cast(Any, pa.array(places, mask=places < 0)))


def _read(node: Node, cursors: _Cursors) -> Column:
    match node:
        case Primitive():
            return _read_primitive(node, cursors)
        case Fixed():
            matrix = cursors.take_matrix(node.size, "a fixed")
            if isinstance(node.column, pa.Decimal128Type):
                starts = np.arange(len(cursors)) * node.size
                lengths = np.full(len(cursors), node.size)
                return _decimals(matrix.ravel(), starts, lengths, node.column, cursors)
            return binary_array(np.arange(len(cursors) + 1) * node.size, matrix.ravel())
        case Enum():
            numbers = cursors.take_varints("an enum")
            wrong = (numbers < 0) | (numbers >= len(node.symbols))
            cursors.fail(wrong, f"an enum has no such symbol; it has {len(node.symbols)}")
            return pa.array(node.symbols, pa.string()).take(np.where(wrong, 0, numbers))
        case Items():
            counts, elements = _read_repeated(cursors, lambda items: [_read(node.element, items)])
            column = elements[0] if elements else pa.array([], node.element.column)
            return pa.ListArray.from_arrays(
                _starts(counts), cast(Any, column), type=cast(Any, node.column)
            )
        case Entries():
            counts, entries = _read_repeated(
                cursors, lambda items: [_read_text(items), _read(node.value, items)]
            )
            if not entries:
                entries = [pa.array([], pa.string()), pa.array([], node.value.column)]
            names, items = entries
            return pa.MapArray.from_arrays(_starts(counts), names, items).cast(node.column)
        case Union():
            return _read_union(node, cursors)
        case Record():
            parts = [_read(member.node, cursors) for member in node.fields]
            if not parts:
                return pa.array([{}] * len(cursors), node.column)
            return pa.StructArray.from_arrays(parts, fields=list(cast(Any, node.column)))
        case _:
            assert_never(node)


def _read_primitive(node: Primitive, cursors: _Cursors) -> Column:
    match node.name:
        case "null":
            return pa.nulls(len(cursors), cast(Any, node.column))
        case "boolean":
            octets = cursors.take_matrix(1, "a boolean").ravel()
            cursors.fail(octets > 1, "a boolean is neither 0 nor 1")
            return pa.array(octets == 1)
        case "float" | "double":
            kind = np.dtype("<f4" if node.name == "float" else "<f8")
            matrix = cursors.take_matrix(kind.itemsize, f"a {node.name}")
            return pa.array(matrix.view(kind).ravel())
        case "int":
            numbers = cursors.take_varints("an int")
            wrong = (numbers < -(1 << 31)) | (numbers >= 1 << 31)
            cursors.fail(wrong, "an int is too large")
            return pa.array(np.where(wrong, 0, numbers).astype(np.int32)).view(node.column)
        case "long":
            numbers = cursors.take_varints("a long")
            if node.logical.endswith("millis"):
                wrong = (numbers > _MILLIS_MAX) | (numbers < -_MILLIS_MAX)
                cursors.fail(wrong, "a timestamp is too large")
                numbers = np.where(wrong, 0, numbers) * 1000
            return pa.array(numbers).view(node.column)
        case "string":
            return _read_text(cursors)
        case _:
            starts, lengths = cursors.take_bytes(cursors.take_varints("a length"), "bytes")
            if isinstance(node.column, pa.Decimal128Type):
                return _decimals(cursors.octets, starts, lengths, node.column, cursors)
            return _gathered(cursors.octets, starts, lengths)


def _read_text(cursors: _Cursors) -> Column:
    starts, lengths = cursors.take_bytes(cursors.take_varints("a length"), "a string")
    raw = _gathered(cursors.octets, starts, lengths)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    wrong = np.array([not _is_utf8(value) for value in raw.to_pylist()])
    cursors.fail(wrong, "a string is not UTF-8")
    return _gathered(cursors.octets, starts, np.where(wrong, 0, lengths)).cast(pa.string())


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _gathered(octets: Octets, starts: Numbers, lengths: Numbers) -> pa.BinaryArray:
    """The bytes at `starts`, one behind the other."""
    ends = np.cumsum(lengths)
    begins = np.concatenate(([0], ends))
    total = int(begins[-1])
    places = np.repeat(starts - begins[:-1], lengths) + np.arange(total)
    return binary_array(begins, octets[places])


def _decimals(
    octets: Octets,
    starts: Numbers,
    lengths: Numbers,
    kind: pa.Decimal128Type,
    cursors: _Cursors,
) -> Column:
    """Two's complement, the highest byte first, becomes 16 bytes with the lowest first."""
    long = lengths > _DECIMAL_BYTES
    cursors.fail(long, f"a decimal is too large for {kind}")
    lengths = np.where(long, 0, lengths)
    column = np.arange(_DECIMAL_BYTES)
    places = starts[:, None] + lengths[:, None] - 1 - column
    inside = column < lengths[:, None]
    matrix = np.zeros((len(starts), _DECIMAL_BYTES), dtype=np.uint8)
    matrix[inside] = octets[places[inside]]
    filled = np.flatnonzero(lengths > 0)
    negative = np.zeros(len(starts), dtype=bool)
    negative[filled] = octets[starts[filled]] >= 0x80
    matrix[~inside & negative[:, None]] = 0xFF
    buffer = pa.py_buffer(cast(Any, matrix.ravel()))
    decimals = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(starts), [None, buffer])
    limit = pa.scalar(10**kind.precision, pa.decimal256(40, 0))
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(starts), [None, buffer])
    size = cast(Any, pc.abs(unscaled.cast(pa.decimal256(40, 0))))
    wrong = np.asarray(pc.greater_equal(size, limit).to_numpy(zero_copy_only=False), dtype=bool)
    if wrong.any():
        cursors.fail(wrong, f"a decimal is too large for {kind}")
        matrix[wrong] = 0
        buffer = pa.py_buffer(cast(Any, matrix.ravel()))
    return pa.Array.from_buffers(kind, len(decimals), [None, buffer])


def _starts(counts: Numbers) -> Column:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))


def _read_repeated(cursors: _Cursors, read_items: Any) -> tuple[Numbers, list[Column]]:
    """Arrays and maps come in blocks, each with a count before it, and a count of 0 at the end. The
    first items of all rows are read together, then the second ones, and so on."""
    counts = np.zeros(len(cursors), dtype=np.int64)
    pieces: list[list[Column]] = []
    owners: list[Numbers] = []
    open_items = np.arange(len(cursors))
    while len(open_items):
        blocks = cursors.subset(open_items)
        left = _block_counts(blocks)
        cursors.rejoin(open_items, blocks)
        open_items, left = open_items[left > 0], left[left > 0]
        counts[open_items] += left
        owner, remaining = open_items, left
        while len(owner):
            items = cursors.subset(owner)
            pieces.append(read_items(items))
            cursors.rejoin(owner, items)
            owners.append(owner)
            owner, remaining = owner[remaining > 1], remaining[remaining > 1] - 1
    if not pieces:
        return counts, []
    order = np.argsort(np.concatenate(owners), kind="stable")
    return counts, [pa.concat_arrays(list(part)).take(order) for part in zip(*pieces, strict=True)]


def _block_counts(blocks: _Cursors) -> Numbers:
    counts = blocks.take_varints("a count")
    sized = np.flatnonzero(counts < 0)
    if len(sized):
        sizes = blocks.subset(sized)
        sizes.take_varints("a block's size")
        blocks.rejoin(sized, sizes)
        counts = np.abs(counts)
    # Every item takes a byte at least; those of nothing but null would be as many as anybody likes.
    wrong = (counts < 0) | (counts > blocks.end - blocks.position)
    blocks.fail(wrong, "there are fewer items than counted")
    return np.where(wrong, 0, counts)


def _read_union(node: Union, cursors: _Cursors) -> Column:
    branches = cursors.take_varints("a union")
    wrong = (branches < 0) | (branches >= len(node.branches))
    cursors.fail(wrong, f"a union has no such branch; it has {len(node.branches)}")
    branches = np.where(wrong, -1, branches)
    parts = []
    for number in node.members:
        chosen = np.flatnonzero(branches == number)
        items = cursors.subset(chosen)
        part = _read(node.branches[number], items)
        cursors.rejoin(chosen, items)
        if len(chosen) < len(cursors):
            places = np.full(len(cursors), -1, dtype=np.int64)
            places[chosen] = np.arange(len(chosen))
            part = _placed(part, places)
        parts.append(part)
    if not parts:
        return pa.nulls(len(cursors), cast(Any, node.column))
    if len(parts) == 1:
        return parts[0]
    if not isinstance(node.column, pa.StructType):  # int and long, float and double
        return cast(Any, pc.coalesce(*[part.cast(node.column) for part in parts]))
    absent = (branches < 0) | np.isin(
        branches, [i for i, branch in enumerate(node.branches) if is_null(branch)]
    )
    return pa.StructArray.from_arrays(parts, fields=list(node.column), mask=pa.array(absent))
