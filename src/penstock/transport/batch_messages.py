"""What Arrow IPC messages say of themselves, checked before Arrow makes a batch of them.

A peer may be taken over. Its messages are well-formed flatbuffers, which Arrow verifies when it
opens them, but what they ask for need not be in proportion to their bytes: a compressed body of
100 kB may ask for gigabytes; so may the number of rows of a column without buffers, or a thousand
columns that all show the same buffer. No sender of ours compresses, shares buffers, adds to
dictionaries, or sends more rows than `BATCH_ROWS_MAX`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.transport.frames import BATCH_ROWS_MAX, BODY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES_MAX: Final = 8 * BODY_BYTES_MAX
"""Of one column, or of one within it: a bit is the least that a value takes."""

_SCHEMA: Final = 1
_DICTIONARY: Final = 2
_BATCH: Final = 3
"""Kinds of messages, as Arrow's Message.fbs numbers them. Fields are numbered in its order, too."""


def check_batch(message: pa.Message) -> None:
    """Of a message that must be a record batch. Raises ValueError."""
    kind, header = _header(memoryview(message.metadata))
    if kind != _BATCH:
        raise ValueError(f"it is a {message.type}, where a record batch has to come")
    _check_columns(header, message)


def check_messages(body: pa.Buffer) -> dict[int, int]:
    """Of all that one frame has. Returns the bytes of the dictionaries in it, by their ids. Raises
    ValueError."""
    dictionaries: dict[int, int] = {}
    for message in _messages(body):
        kind, header = _header(memoryview(message.metadata))
        if kind == _BATCH:
            _check_columns(header, message)
        elif kind == _DICTIONARY:
            if header.flag(2):
                raise ValueError("it adds to a dictionary; a changed one has to come whole")
            _check_columns(header.table(1), message)
            dictionaries[header.number(0)] = message.metadata.size + _body_bytes(message)
        elif kind != _SCHEMA:
            raise ValueError(f"it has a {message.type}, which is no part of a batch")
    return dictionaries


def _messages(body: pa.Buffer) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(body))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _body_bytes(message: pa.Message) -> int:
    return 0 if message.body is None else message.body.size


def _check_columns(batch: _Table, message: pa.Message) -> None:
    """Of a RecordBatch table: length, nodes, buffers, compression."""
    rows = batch.number(0)
    if not 0 <= rows <= BATCH_ROWS_MAX:
        raise ValueError(f"it has {rows} rows; a frame has at most {BATCH_ROWS_MAX}")
    if batch.has(3):
        raise ValueError("it is compressed, which no member's batches are")
    values = max(batch.pairs(1)[::2], default=0)
    if values > VALUES_MAX:
        raise ValueError(f"a column has {values} values; a frame has room for {VALUES_MAX}")
    buffers_bytes = sum(batch.pairs(2)[1::2])
    if buffers_bytes > _body_bytes(message):
        raise ValueError(
            f"its buffers have {buffers_bytes} bytes in a body of {_body_bytes(message)}"
        )


def _header(metadata: memoryview) -> tuple[int, _Table]:
    """A message's kind and the table of that kind."""
    (root,) = _U32.unpack_from(metadata)
    message = _Table(metadata, root)
    return message.byte(1), message.table(2)


_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")


class _Table:
    """A flatbuffers table that was verified. Fields that are absent have their defaults."""

    __slots__ = ("_begin", "_data", "_places", "_places_end")

    def __init__(self, data: memoryview, begin: int) -> None:
        self._data = data
        self._begin = begin
        self._places = begin - _I32.unpack_from(data, begin)[0]
        if self._places < 0:
            raise ValueError("its metadata is damaged")
        self._places_end = self._places + _U16.unpack_from(data, self._places)[0]

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def number(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else int(_I64.unpack_from(self._data, place)[0])

    def byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else self._data[place]

    def flag(self, field: int) -> bool:
        return bool(self.byte(field))

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if place is None:
            raise ValueError("its metadata has no header")
        return _Table(self._data, place + _U32.unpack_from(self._data, place)[0])

    def pairs(self, field: int) -> tuple[int, ...]:
        """A vector of pairs: length and nulls of columns, offset and length of buffers."""
        place = self._place(field)
        if place is None:
            return ()
        begin = place + _U32.unpack_from(self._data, place)[0]
        (count,) = _U32.unpack_from(self._data, begin)
        return struct.unpack_from(f"<{2 * count}q", self._data, begin + 4)

    def _place(self, field: int) -> int | None:
        at = self._places + 4 + 2 * field
        if at >= self._places_end:
            return None
        offset: int = _U16.unpack_from(self._data, at)[0]
        return self._begin + offset if offset else None
