"""What the Session and the members tell each other, as batches of the shuffle transport.

They go the same way as documents do: no second kind of connection, certificate or port. A message
is a row: its kind, its fields as JSON, and a frontier where it has one. A frontier that is too
large for a row goes before it, in rows of their own: the transport cuts batches by rows. For other
languages `proto/penstock/shuffle/v1/control.proto` has the same messages.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.frontier import (
    Frontier,
    JournalFrontier,
    ProducerFrontier,
    decode_chunks,
    encode_chunks,
)
from penstock.frontier.chunks import split_chunks
from penstock.ids import Producer
from penstock.journal.transaction_log import Marker
from penstock.shuffle.session.state import (
    AllReadsStarted,
    AskProgress,
    ListingAdded,
    ListingDone,
    ListingRemoved,
    Progressed,
    ReadEnded,
    RowsMissing,
    SliceOpened,
    SpansLeft,
    StartRead,
)
from penstock.shuffle.status import MemberStatus
from penstock.watch.encoding import made_of, plain
from penstock.watch.standing import Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STAGE: Final = "control"
SESSION: Final = 0
"""The Session's number among the members. It owns no vnode."""

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("kind", pa.string(), nullable=False),
    pa.field("fields", pa.string(), nullable=False),
    pa.field("frontier", pa.list_(pa.binary())),
]
SCHEMA: Final = pa.schema(_FIELDS)
PART_BYTES: Final = 1024 * 1024
"""Of a frontier in one row: small beside a frame and beside a window."""
PARTS_BYTES_MAX: Final = 4 * 1024**3
"""Of all parts that a stream may hold back: frontiers of a hundred million entries."""
ENTRIES_AS_JSON_MAX: Final = 1_000
"""More entries of a StartRead go as a frontier, which takes a third of the bytes."""
PART: Final = "Part"
_numbers: Final = itertools.count(1)
"""Of messages in parts. Threads send at the same time, so parts of several may be mixed."""


@dataclass(frozen=True, slots=True, eq=False)
class ConsumedThrough:
    """To a member: the consumer is done with everything up to this epoch."""

    epoch: int
    frontier: Frontier


@dataclass(frozen=True, slots=True)
class RoomNeeded:
    """From a member: its disk budget is used up. An epoch would let the consumer go on."""

    member: int


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """From a member: it cannot go on, and why."""

    member: int
    reason: str
    is_final: bool = False
    """To begin anew does not help."""


ToMember: TypeAlias = StartRead | AllReadsStarted | AskProgress | ConsumedThrough
FromMember: TypeAlias = (
    SliceOpened
    | ListingAdded
    | ListingDone
    | ListingRemoved
    | ReadEnded
    | RowsMissing
    | SpansLeft
    | Progressed
    | RoomNeeded
    | MemberFailed
    | MemberStatus
)
Message: TypeAlias = ToMember | FromMember

_Row: TypeAlias = tuple[str, dict[str, Any], list[bytes] | None]
"""Kind, fields, and the chunks of a frontier."""

_PLAIN: Final = {
    kind.__name__: kind
    for kind in (
        AllReadsStarted,
        AskProgress,
        ListingAdded,
        ListingDone,
        ListingRemoved,
        MemberFailed,
        ReadEnded,
        RoomNeeded,
        RowsMissing,
        SliceOpened,
        SpansLeft,
    )
}
"""Messages whose fields are JSON as they are."""


def encode_messages(messages: Iterable[Message]) -> pa.RecordBatch:
    rows = [row for message in messages for row in _in_parts(*_encode(message))]
    columns: list[pa.Array[Any]] = [
        pa.array([kind for kind, _, _ in rows], pa.string()),
        pa.array([json.dumps(fields) for _, fields, _ in rows], pa.string()),
        pa.array([chunks for _, _, chunks in rows], pa.list_(pa.binary())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _in_parts(kind: str, fields: dict[str, Any], chunks: list[bytes] | None) -> Iterator[_Row]:
    """The rows of a message: one, unless its frontier is too large for that."""
    if chunks is None or sum(map(len, chunks)) <= PART_BYTES:
        yield kind, fields, chunks
        return
    number, data = next(_numbers), b"".join(chunks)
    for begin in range(0, len(data), PART_BYTES):
        yield PART, {"message": number}, [data[begin : begin + PART_BYTES]]
    yield kind, {**fields, "parts": number}, []


def decode_messages(batch: pa.RecordBatch) -> Iterator[Message]:
    """Of a batch that has all of its messages."""
    return MessageDecoder().decode(batch)


class MessageDecoder:
    """The messages of one stream. Keeps the parts of those that are not whole yet."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {}
        self._held_bytes = 0

    def decode(self, batch: pa.RecordBatch) -> Iterator[Message]:
        if batch.schema != SCHEMA:
            raise RemoteProtocolError(
                f"control messages do not have the columns {batch.schema.names}"
            )
        for row in batch.to_pylist():
            try:
                fields, chunks = json.loads(row["fields"]), row["frontier"]
                if row["kind"] == PART:
                    self._hold(int(fields["message"]), *chunks)
                    continue
                if "parts" in fields:
                    chunks = self._whole(int(fields.pop("parts")))
                yield _decode(row["kind"], fields, chunks)
            except (KeyError, TypeError, ValueError) as error:
                raise RemoteProtocolError(
                    f"a control message of kind {row['kind']!r} is not valid: {error!r}"
                ) from error

    def _hold(self, number: int, part: bytes) -> None:
        self._held_bytes += len(part)
        if self._held_bytes > PARTS_BYTES_MAX:
            raise RemoteProtocolError(
                f"parts of control messages take {self._held_bytes:,} bytes, more than "
                f"{PARTS_BYTES_MAX:,}: a peer sends what it does not finish"
            )
        self._parts.setdefault(number, []).append(part)

    def _whole(self, number: int) -> list[bytes]:
        data = b"".join(self._parts.pop(number))
        self._held_bytes -= len(data)
        return list(split_chunks(data))


def _encode(message: Message) -> _Row:
    kind = type(message).__name__
    fields = {name: getattr(message, name) for name in message.__slots__}
    chunks = None
    match message:
        case Progressed():
            chunks = list(encode_chunks(fields.pop("delta")))
            fields["markers"] = [asdict(marker) for marker in message.markers]
        case ConsumedThrough():
            chunks = list(encode_chunks(fields.pop("frontier")))
        case MemberStatus(waits=waits):
            fields = plain({**fields, "waits": [wait.to_json() for wait in waits]})
        case StartRead(entries=entries) if len(entries) > ENTRIES_AS_JSON_MAX:
            ordered = tuple(sorted(fields.pop("entries"), key=lambda entry: entry.producer))
            journal = JournalFrontier(message.journal, message.binding, ordered)
            chunks = list(encode_chunks(Frontier.of([journal])))
        case StartRead():
            fields["entries"] = [
                {name: getattr(entry, name) for name in ProducerFrontier.__slots__}
                | {"producer": str(entry.producer)}
                for entry in message.entries
            ]
        case _:
            pass
    return kind, fields, chunks


def _decode(kind: str, fields: dict[str, Any], chunks: list[bytes] | None) -> Message:
    if kind in _PLAIN:
        message: Message = _PLAIN[kind](**fields)
        return message
    if kind == "MemberStatus":
        waits = tuple(Seen.from_json(wait) for wait in fields.pop("waits"))
        status: MemberStatus = made_of(MemberStatus, {**fields, "waits": []})
        return replace(status, waits=waits)
    if kind == "StartRead" and chunks is not None:
        (known,) = decode_chunks(chunks).journals()
        return StartRead(**fields, entries=known.producers)
    if kind == "StartRead":
        entries = tuple(
            ProducerFrontier(**{**entry, "producer": Producer.from_hex(entry["producer"])})
            for entry in fields.pop("entries")
        )
        return StartRead(**fields, entries=entries)
    if chunks is None:
        raise ValueError("there is no such kind, or its frontier is missing")
    frontier = decode_chunks(chunks)
    if kind == "Progressed":
        markers = tuple(Marker(**marker) for marker in fields.pop("markers", ()))
        return Progressed(**fields, delta=frontier, markers=markers)
    if kind == "ConsumedThrough":
        return ConsumedThrough(**fields, frontier=frontier)
    raise ValueError("there is no such kind")
