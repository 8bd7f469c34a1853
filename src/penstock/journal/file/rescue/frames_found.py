"""The whole frames of a damaged segment: what is between them is passed over.

A frame is believed by its checksums, as everywhere. After a bad one the next is looked for at each
multiple of eight: there its header must check, its payload too, and its rows must come later.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.segment import SegmentReader, list_segments, segment_path
from penstock.journal.frames import (
    FRAME_HEADER,
    FRAME_MAGIC,
    DamagedFrameError,
    check_payload,
    decode_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.frames import FrameHeader

_STEP_BYTES: Final = 8
"""Frames begin at multiples of it."""
_BLOCK_BYTES: Final = 4_096
"""What a disk loses at once."""


@dataclass(frozen=True, slots=True)
class WholeFrame:
    header: FrameHeader
    body: pa.Buffer
    is_last: bool
    """Whether nothing follows it in its segment, not even bytes that are no frame."""


def whole_frames(journal: str, folder: Path) -> Iterator[WholeFrame]:
    """Of all segments of a journal, in order. A frame begins behind the rows of the one before: if
    it does not begin right there, the rows between the two are missing."""
    offset = 0
    for first in list_segments(folder):
        offset = max(offset, first)
        for frame in _of_segment(journal, folder, first, offset):
            yield frame
            offset = frame.header.end_offset


def _of_segment(journal: str, folder: Path, first: int, offset: int) -> Iterator[WholeFrame]:
    data = _read_what_can_be_read(segment_path(folder, first))
    buffer = pa.py_buffer(data)
    at = _first_frame_at(journal, folder, first)
    while at + FRAME_HEADER.size <= len(data):
        frame = _frame_at(buffer, at, offset)
        if frame is None:
            at = _next_magic(data, at + _STEP_BYTES)
            continue
        yield frame
        offset = frame.header.end_offset
        at += frame.header.frame_bytes


def _first_frame_at(journal: str, folder: Path, first: int) -> int:
    """Behind the segment's header; if that is damaged, wherever one is found."""
    try:
        with SegmentReader(journal, folder, first) as reader:
            return reader.header()[1]
    except (CorruptJournalError, OSError):
        return 0


def _frame_at(data: pa.Buffer, at: int, offset: int) -> WholeFrame | None:
    try:
        header = decode_header(data.slice(at, FRAME_HEADER.size).to_pybytes())
        body = data.slice(at + FRAME_HEADER.size)
        body = body.slice(0, min(header.payload_bytes, body.size))
        check_payload(header, body)
    except DamagedFrameError:
        return None
    if header.first_offset < offset:
        return None
    return WholeFrame(header, body, is_last=at + header.frame_bytes == data.size)


def _next_magic(data: bytes, at: int) -> int:
    """Where a frame may begin, from a position on; the end of the data if nowhere."""
    while (at := data.find(FRAME_MAGIC, at)) >= 0:
        if at % _STEP_BYTES == 0:
            return at
        at += 1
    return len(data)


def _read_what_can_be_read(path: Path) -> bytes:
    """The file's bytes, zeros where the disk cannot read them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        try:
            data = os.pread(descriptor, size, 0)
            if len(data) == size:
                return data
        except OSError:
            pass
        blocks = bytearray(size)
        for at in range(0, size, _BLOCK_BYTES):
            try:
                found = os.pread(descriptor, _BLOCK_BYTES, at)
            except OSError:
                continue
            blocks[at : at + len(found)] = found
        return bytes(blocks)
    finally:
        os.close(descriptor)
