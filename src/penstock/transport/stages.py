"""Record batches of a stage, as Arrow IPC, with the schema sent once.

Each stage of a connection is one IPC stream, cut into frames: the first frame has the schema, a
frame has the dictionaries that changed, and every frame ends with one record batch. The encoder
hands out the batch's own buffers, so nothing is copied; the decoder's batches point into the
buffer that the carrier read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from penstock.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from penstock.transport.frames import (
    BATCH_BYTES_MAX,
    SCHEMAS_BYTES_MAX,
    STAGE_BYTES_MAX,
    STAGES_MAX,
    VnodeData,
)

if TYPE_CHECKING:
    Piece = bytes | pa.Buffer


GUESS_BYTES_MAX: Final = 1024 * 1024
"""The size of larger batches is worth an exact answer."""

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
    if max(map(pa.ipc.get_record_batch_size, parts)) > max(size - size // 8, GUESS_BYTES_MAX):
        raise ConfigurationError(
            f"a batch of {size:,} bytes cannot be cut by rows: Arrow writes all values of views "
            "and unions with every part of them. Cast such columns to plain ones, or send less"
        )
    first, second = (VnodeData(message.stage, message.vnode, part) for part in parts)
    return first, second


class OutboundStage:
    """What a sender knows of a stage before it encodes: its schema, and what a frame takes beside
    its values."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._dictionaries = has_dictionaries(schema)
        self._fixed_bytes: int | None = None

    def size(self, batch: pa.RecordBatch, guess_bytes_max: int, caution: float) -> int:
        """Of the batch, encoded: at least that. Small batches are taken for as large as the memory
        they refer to, times `caution` (some use memory twice): to ask Arrow for the size would cost
        more than to be wrong for a moment, since that makes threads of an interpreter change
        places. Dictionaries are counted whole, whether they have to be sent or not."""
        memory_bytes = batch.get_total_buffer_size()
        if self._fixed_bytes is not None:
            guess = self._fixed_bytes + int(memory_bytes * caution)
            if guess <= min(guess_bytes_max, GUESS_BYTES_MAX):
                return guess
        size = pa.ipc.get_record_batch_size(batch)
        if self._dictionaries:
            # The schema once, and for each dictionary what describes it, which is no longer.
            return size + memory_bytes + 4 * self.schema.serialize().size
        if self._fixed_bytes is None:
            # Twice: what fills buffers up to multiples of eight is less than what describes them.
            self._fixed_bytes = 2 * pa.ipc.get_record_batch_size(batch.slice(0, 0))
            size += self.schema.serialize().size
        return size


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
            known = self._stages[stage] = OutboundStage(schema)
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
    """All stages of one connection, from bytes to batches. Bytes that no checksum vouches for are
    looked at one by one: no later step must read past the end of a buffer."""

    def __init__(self, *, checksummed: bool = False) -> None:
        self._checksummed = checksummed
        self._stages: dict[str, _StageDecoder] = {}
        self._schema_bytes = 0

    def decode(self, stage: str, body: pa.Buffer) -> pa.RecordBatch:
        decoder = self._stages.get(stage)
        try:
            if decoder is None:
                _check_name(stage)
                if len(self._stages) == STAGES_MAX:
                    raise RemoteProtocolError(f"a connection has at most {STAGES_MAX} stages")
                decoder = self._stages[stage] = _StageDecoder()
            is_first = decoder.received_bytes == 0
            batch = decoder.decode(body)
            if is_first:
                self._schema_bytes += batch.schema.serialize().size
                if self._schema_bytes > SCHEMAS_BYTES_MAX:
                    raise RemoteProtocolError(
                        f"the schemas of a connection's stages take more than "
                        f"{SCHEMAS_BYTES_MAX:,} bytes"
                    )
            batch.validate(full=not self._checksummed)
        except (pa.ArrowException, OSError, EOFError, ValueError, StopIteration) as error:
            raise RemoteProtocolError(
                f"stage {stage!r}: the bytes are not a record batch of this stage ({error})"
            ) from error
        return batch


class _StageDecoder:
    def __init__(self) -> None:
        self._source = _Source()
        self._reader: pa.RecordBatchStreamReader | None = None
        self._plain_schema: pa.Schema | None = None
        self.received_bytes = 0

    def decode(self, body: pa.Buffer) -> pa.RecordBatch:
        if self._plain_schema is not None:
            # A frame without dictionaries is a single message. This way is three times as fast.
            message = pa.ipc.read_message(body)
            message_bytes = message.body.size if message.body is not None else 0
            if _PREFIX_BYTES + message.metadata.size + message_bytes != body.size:
                raise ValueError("more than one message")
            batch = pa.ipc.read_record_batch(message, self._plain_schema)
        else:
            batch = self._decode_next(body)
        # Dictionaries may have come before. Nothing else is in a batch but what came.
        known_bytes = body.size if self._plain_schema is not None else self.received_bytes
        if batch.get_total_buffer_size() > known_bytes:
            raise ValueError("it takes more memory than its frames: compressed")
        return batch

    def _decode_next(self, body: pa.Buffer) -> pa.RecordBatch:
        self._source.feed(body)
        if self._reader is None:
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._source), mode="r"))
        batch = self._reader.read_next_batch()
        if self._source.unread_bytes:
            raise ValueError(f"{self._source.unread_bytes} bytes follow the batch")
        self._source.feed(_NOTHING)  # the frame's memory now belongs to its batch alone
        self.received_bytes += body.size
        if not has_dictionaries(batch.schema):
            self._plain_schema = batch.schema
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


def _short(schema: pa.Schema) -> str:
    text = ", ".join(f"{column.name}: {column.type}" for column in schema)
    return text if len(text) <= 200 else text[:200] + "..."
