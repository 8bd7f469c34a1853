"""Compression of what stays long: a consumer that is behind should not cost more disk than it must.

A sealed segment is written again beside itself, with LZ4 in the bodies of its parts, synced, and
renamed to its name. LSNs, order and metadata stay as they are. May run in a thread of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.disk import write_new_file
from penstock.shuffle.queue.block import EncodedPart, encode_block
from penstock.shuffle.queue.segment import (
    TEMPORARY_SUFFIX,
    OpenSegment,
    ReadIds,
    segment_of,
    segment_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.shuffle.queue.block import Piece
    from penstock.shuffle.queue.log import QueueLog
    from penstock.shuffle.queue.segment import Loaded

COMPRESS_AFTER_SECONDS: Final = 10.0
"""What is consumed as it comes is dropped before."""


def compress(log: QueueLog, now_seconds: float, after_seconds: float) -> int:
    """Compresses the segments that were last written so many seconds ago; gives the bytes that
    this freed. `now_seconds` is the time of the files' clock."""
    freed_bytes = 0
    for number in range(log.first_segment, segment_of(log.durable_lsn)):
        with contextlib.suppress(FileNotFoundError):  # dropped meanwhile
            modified = segment_path(log.folder, number).stat().st_mtime
            if modified <= now_seconds - after_seconds:
                freed_bytes += _compress_one(log, number)
    return freed_bytes


def _compress_one(log: QueueLog, number: int) -> int:
    segment = OpenSegment(log.folder, number, log.generation, ReadIds())
    if segment.header.compressed:
        return 0
    following = OpenSegment(log.folder, number + 1, log.generation, ReadIds())
    segment.load(following.header.blocks_before)
    try:
        return _rewrite(log, number, segment)
    finally:
        segment.release()  # else each of them would be open until Python next looks for cycles


def _rewrite(log: QueueLog, number: int, segment: OpenSegment) -> int:
    before_bytes = segment.path.stat().st_size
    temporary = segment.path.with_name(f".{segment.path.name}{TEMPORARY_SUFFIX}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # of a process that came to no end
    try:
        write_new_file(temporary, _pieces(segment))
        after_bytes = temporary.stat().st_size
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return before_bytes - after_bytes if log.replace(number, temporary) else 0


def _pieces(segment: OpenSegment) -> Iterator[Piece]:
    yield dataclasses.replace(segment.header, compressed=True).encode()
    for loaded in segment.loaded:
        block = loaded.block
        parts = [_compressed(loaded, index) for index in range(len(block.parts))]
        yield from encode_block(
            block.lsn,
            parts,
            loaded.order(),
            block.introduced,
            block.stands_for,
            gives=block.gives,
        )


def _compressed(loaded: Loaded, index: int) -> EncodedPart:
    part = loaded.block.parts[index]
    batch = loaded.decode(part)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_batch(batch.slice(0, 0))  # the schema goes before it
        begin = sink.tell()
        writer.write_batch(batch)
        end = sink.tell()
    message = sink.getvalue().slice(begin, end - begin)
    return EncodedPart.of(part.stage, part.rows, loaded.block.groups[part.groups], [message])
