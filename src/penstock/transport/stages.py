"""Record batches of a stage, as Arrow IPC, with the schema sent once.

Each stage of a connection is one IPC stream, cut into frames: the first frame has the schema, a
frame has the dictionaries that changed, and every frame ends with one record batch. The encoder
hands out the batch's own buffers, so nothing is copied; the decoder's batches point into the
buffer that the carrier read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport.batch_messages import check_batch, check_messages
from penstock.transport.frames import (
    BATCH_BYTES_MAX,
    SCHEMAS_BYTES_MAX,
    STAGE_BYTES_MAX,
    STAGES_MAX,
    VnodeData,
)

if TYPE_CHECKING:
    Piece = bytes | pa.Buffer


DICTIONARIES_BYTES_MAX: Final = 4 * BATCH_BYTES_MAX
"""Of one connection: a receiver keeps them for the frames that follow, beside the window."""
CUT_BYTES_MIN: Final = 1024 * 1024
"""Halves of a batch that are no larger than this are small enough, whatever the whole was."""

_NOTHING: Final = pa.py_buffer(b"")
_PREFIX_BYTES: Final = 8
"""Of an IPC message: a mark, and the size of its metadata."""


class SchemaChangedError(LocalProtocolError):
    """A stage's batches must have one schema for as long as a connection lives. Use another stage
    name for batches of another shape. The stream to this peer was ended; others go on."""


def halves(message: VnodeData) -> tuple[VnodeData, VnodeData]:
    """A message that is too large for a frame, by rows."""
    rows = message.batch.num_rows
    if rows <= 1:
        raise ConfigurationError(
            f"one row has {pa.ipc.get_record_batch_size(message.batch):,} bytes; the transport "
            f"carries rows of at most {BATCH_BYTES_MAX:,}. Store large values elsewhere, and their "
            "addresses in the row"
        )
    parts = message.batch.slice(0, rows // 2), message.batch.slice(rows // 2)
    size = pa.ipc.get_record_batch_size(message.batch)
    if max(map(pa.ipc.get_record_batch_size, parts)) > max(size - size // 8, CUT_BYTES_MIN):
        raise ConfigurationError(
            f"a batch of {size:,} bytes cannot be cut by rows: Arrow writes all values of views "
            "and unions with every part of them. Cast such columns to plain ones, or send less"
        )
    first, second = (VnodeData(message.stage, message.vnode, part) for part in parts)
    return first, second


class BatchRefusedError(ConfigurationError):
    """Arrow cannot write this batch: nested too deeply, say. Nothing was sent; cast its columns to
    simpler ones. The stream goes on."""


class OutboundStage:
    """What a sender knows of a stage before it encodes: its schema, and whether that was queued."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.schema = schema
        self.schema_queued = False
        """With a batch that is in front of all others: callers wait for credit in any order."""
        self._name = name
        self._dictionaries = has_dictionaries(schema)
        self._schema_bytes = schema.serialize().size
        self._described_bytes = 0
        """What a batch takes beside its values. Zero: that is not known yet, or varies."""
        self._buffers = 0

    def size(self, batch: pa.RecordBatch, bound_bytes_max: int = 0) -> int:
        """What a frame's batch takes at most, encoded. Never less than it will: a queued frame
        without enough credit would hold up the barriers behind it, and the heartbeats. Dictionaries
        are counted whole, whether they have to be sent or not.

        It is exact, or a bound of up to `bound_bytes_max`: each buffer is no larger than all the
        memory that the batch refers to, which columns may share. To ask for that is quick; to ask
        Arrow for the exact size makes threads of an interpreter change places."""
        if self._described_bytes and self.schema_queued:
            bound = self._described_bytes + self._buffers * batch.get_total_buffer_size()
            if bound <= bound_bytes_max:
                return bound
        return self._exact_size(batch)

    def _exact_size(self, batch: pa.RecordBatch) -> int:
        try:
            if self._dictionaries:
                sink = pa.MockOutputStream()
                with pa.ipc.new_stream(cast(Any, sink), self.schema) as writer:
                    writer.write_batch(batch)
                return sink.size()
            size = pa.ipc.get_record_batch_size(batch)
        except pa.ArrowException as error:
            raise BatchRefusedError(
                f"a batch of stage {self._name!r} cannot be encoded: {error}"
            ) from error
        if not self._described_bytes and not _varies(self.schema):
            # Twice: what fills buffers up to multiples of eight is less than what describes them.
            self._described_bytes = 2 * pa.ipc.get_record_batch_size(batch.slice(0, 0))
            self._buffers = sum(len(column.buffers()) for column in batch.columns)
        return size if self.schema_queued else size + self._schema_bytes


class OutboundStages:
    """All stages of one connection, with the check that a sender makes before it queues a batch."""

    def __init__(self) -> None:
        self._stages: dict[str, OutboundStage] = {}

    def check(self, stage: str, schema: pa.Schema) -> OutboundStage:
        known = self._stages.get(stage)
        if known is None:
            _check_name(stage)
            if len(self._stages) == STAGES_MAX:
                raise LocalProtocolError(
                    f"a connection has at most {STAGES_MAX} stages; {stage!r} is one more"
                )
            known = self._stages[stage] = OutboundStage(stage, schema)
        elif known.schema is not schema and not known.schema.equals(schema, check_metadata=True):
            raise SchemaChangedError(
                f"stage {stage!r} changed its schema from ({_short(known.schema)}) to "
                f"({_short(schema)})"
            )
        return known


class StageEncoders:
    """All stages of one connection, from batches to pieces of bytes."""

    def __init__(self) -> None:
        self._writers: dict[str, pa.RecordBatchStreamWriter] = {}
        self._sink = _Sink()
        self._file = pa.PythonFile(cast(Any, self._sink), mode="w")

    def encode(self, stage: str, batch: pa.RecordBatch) -> list[Piece]:
        writer = self._writers.get(stage)
        if writer is None:
            writer = pa.ipc.new_stream(cast(Any, self._file), batch.schema)
            self._writers[stage] = writer
        writer.write_batch(batch)
        return self._sink.take()


class StageDecoders:
    """All stages of one connection, from bytes to batches. The peer is another process, which may
    be taken over: no checksum vouches for what it says. So the metadata is looked at before Arrow
    allocates anything, and every value afterwards, once for each frame: no later step reads past
    the end of a buffer."""

    def __init__(self) -> None:
        self._stages: dict[str, _StageDecoder] = {}
        self._schema_bytes = 0

    def decode(self, stage: str, body: pa.Buffer) -> pa.RecordBatch:
        decoder = self._stages.get(stage)
        is_first = decoder is None
        try:
            if decoder is None:
                _check_name(stage)
                if len(self._stages) == STAGES_MAX:
                    raise RemoteProtocolError(f"a connection has at most {STAGES_MAX} stages")
                decoder = self._stages[stage] = _StageDecoder()
            if decoder.plain_schema is not None:
                batch = decoder.decode_plain(body)
            else:
                self._admit(decoder, body)
                batch = decoder.decode_next(body)
                if is_first:
                    self._count_schema(batch.schema)
            batch.validate(full=True)
        except (
            pa.ArrowException,
            OSError,
            EOFError,
            ValueError,
            StopIteration,
            struct.error,
        ) as error:
            raise RemoteProtocolError(
                f"stage {stage!r}: the bytes are not a record batch of this stage ({error})"
            ) from error
        return batch

    def _admit(self, decoder: _StageDecoder, body: pa.Buffer) -> None:
        dictionaries = check_messages(body)
        if dictionaries:
            decoder.dictionaries |= dictionaries
            kept = sum(sum(each.dictionaries.values()) for each in self._stages.values())
            if kept > DICTIONARIES_BYTES_MAX:
                raise ValueError(
                    f"a connection's dictionaries have at most {DICTIONARIES_BYTES_MAX:,} bytes, "
                    f"these {kept:,}"
                )

    def _count_schema(self, schema: pa.Schema) -> None:
        self._schema_bytes += schema.serialize().size
        if self._schema_bytes > SCHEMAS_BYTES_MAX:
            raise ValueError(
                f"the schemas of a connection's stages take more than {SCHEMAS_BYTES_MAX:,} bytes"
            )


class _StageDecoder:
    def __init__(self) -> None:
        self.plain_schema: pa.Schema | None = None
        """Once it is known that frames of this stage have no dictionaries."""
        self.dictionaries: dict[int, int] = {}
        """The bytes of those that are kept, by their ids."""
        self._source = _Source()
        self._reader: pa.RecordBatchStreamReader | None = None

    def decode_plain(self, body: pa.Buffer) -> pa.RecordBatch:
        """A frame without dictionaries is a single message. This way is three times as fast."""
        message = pa.ipc.read_message(body)
        message_bytes = message.body.size if message.body is not None else 0
        if _PREFIX_BYTES + message.metadata.size + message_bytes != body.size:
            raise ValueError("more than one message")
        check_batch(message)
        return pa.ipc.read_record_batch(message, cast(pa.Schema, self.plain_schema))

    def decode_next(self, body: pa.Buffer) -> pa.RecordBatch:
        self._source.feed(body)
        if self._reader is None:
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._source), mode="r"))
        batch = self._reader.read_next_batch()
        if self._source.unread_bytes:
            raise ValueError(f"{self._source.unread_bytes} bytes follow the batch")
        self._source.feed(_NOTHING)  # the frame's memory now belongs to its batch alone
        if not has_dictionaries(batch.schema):
            self.plain_schema = batch.schema
            self._reader = None
        return batch


class _Sink:
    """Collects what Arrow writes. Buffers of the batch come as they are, not copied."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.write = self._pieces.append  # Arrow does not ask how much was written

    def take(self) -> list[Piece]:
        pieces = self._pieces.copy()
        self._pieces.clear()
        return pieces

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Source:
    """Gives Arrow the bytes of the frame at hand, as slices of its buffer."""

    closed = False

    def __init__(self) -> None:
        self._body = _NOTHING
        self._position = 0

    def feed(self, body: pa.Buffer) -> None:
        self._body = body
        self._position = 0

    @property
    def unread_bytes(self) -> int:
        return self._body.size - self._position

    def read_buffer(self, size: int) -> pa.Buffer:
        piece = self._body.slice(self._position, min(size, self.unread_bytes))
        self._position += piece.size
        return piece

    def read(self, size: int = -1) -> bytes:
        return self.read_buffer(self.unread_bytes if size < 0 else size).to_pybytes()

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _check_name(stage: str) -> None:
    try:
        stage_bytes = len(stage.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a stage's name is not text: {error}") from error
    if not 0 < stage_bytes <= STAGE_BYTES_MAX:
        raise LocalProtocolError(
            f"a stage's name has 1 to {STAGE_BYTES_MAX} bytes; {stage[:40]!r} has {stage_bytes}"
        )


def has_dictionaries(schema: pa.Schema) -> bool:
    """Whether a column, or anything within one, is dictionary-encoded."""
    kinds: list[pa.DataType] = list(schema.types)
    while kinds:
        kind = kinds.pop()
        if pa.types.is_dictionary(kind):
            return True
        if isinstance(kind, pa.BaseExtensionType):
            kinds.append(kind.storage_type)
        elif pa.types.is_run_end_encoded(kind):
            kinds.append(kind.value_type)
        else:
            kinds += [kind.field(index).type for index in range(kind.num_fields)]
    return False


def _varies(schema: pa.Schema) -> bool:
    """Whether its batches may have more buffers than the first: views refer to any number."""
    return "view" in str(schema.types)


def _short(schema: pa.Schema) -> str:
    text = ", ".join(f"{column.name}: {column.type}" for column in schema)
    return text if len(text) <= 200 else text[:200] + "..."
