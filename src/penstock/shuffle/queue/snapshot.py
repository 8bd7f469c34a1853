"""A Queue's part of a snapshot, as bytes: a table of contents in JSON, then the batches it names.

The member's snapshot has a checksum over all of it, so nothing is checked twice here.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

import pyarrow as pa

from penstock.columns import KEY
from penstock.errors import CorruptStorageError, LocalProtocolError
from penstock.ids import CLOCK_MAX
from penstock.shuffle.marks import Mark, MarkKind
from penstock.shuffle.parcels import Stage
from penstock.shuffle.queue.events import (
    FlushAsked,
    Item,
    Part,
    QueueState,
    ReadNames,
    StreamState,
    WaitingPart,
)

VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_KEY_FIELD: Final = pa.field(KEY, pa.uint64(), nullable=False)
"""The last column of a part that waited for the merge: the keys its rows had reached."""


def encode_state(state: QueueState) -> list[pa.Buffer | bytes]:
    batches: list[pa.Buffer | bytes] = []

    def keep(batch: pa.RecordBatch) -> int:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        batches.append(sink.getvalue())
        return len(batches[-1])

    contents = {
        "version": VERSION,
        "lsn": state.lsn,
        "names": _names_to_json(state.names),
        "streams": [
            {
                "mark": _mark_to_json(stream.mark),
                "greatest": stream.greatest,
                "reached": sorted(stream.reached.items()),
                "waiting": [
                    {
                        "stage": str(part.stage),
                        "bytes": keep(part.batch.append_column(_KEY_FIELD, pa.array(part.keys))),
                    }
                    for part in stream.waiting
                ],
                "in_flight": [_item_to_json(item, keep) for item in stream.in_flight],
                "cap": stream.cap,
            }
            for stream in state.streams
        ],
    }
    text = json.dumps(contents, separators=(",", ":")).encode()
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *batches]


def decode_state(data: pa.Buffer) -> QueueState:
    """What `encode_state` wrote. The batches point into the data."""
    text_bytes = int.from_bytes(data.slice(0, _LENGTH_BYTES).to_pybytes(), "little")
    contents = json.loads(data.slice(_LENGTH_BYTES, text_bytes).to_pybytes())
    if contents["version"] != VERSION:
        raise CorruptStorageError(
            f"a queue's snapshot has version {contents['version']}; this release reads {VERSION}"
        )
    position = _LENGTH_BYTES + text_bytes

    def found(size_bytes: int) -> pa.RecordBatch:
        nonlocal position
        with pa.ipc.open_stream(data.slice(position, size_bytes)) as reader:
            position += size_bytes
            return reader.read_next_batch()

    def waiting(kept: dict[str, Any]) -> WaitingPart:
        batch = found(kept["bytes"])
        keys = batch.column(batch.num_columns - 1).to_numpy()
        stage = Stage.parse(kept["stage"])
        return WaitingPart(stage, batch.remove_column(batch.num_columns - 1), keys)

    def item(kept: dict[str, Any]) -> Item:
        match kept["kind"]:
            case "part":
                batch = found(kept["bytes"])
                return Part(Stage.parse(kept["stage"]), batch, batch.nbytes)
            case "names":
                return ReadNames(_names_from_json(kept["names"]))
            case "mark":
                return _mark_from_json(kept["mark"])
            case "flush":
                return FlushAsked(kept["cycle"])
            case other:
                raise CorruptStorageError(f"a queue's snapshot has an item of kind {other!r}")

    return QueueState(
        contents["lsn"],
        _names_from_json(contents["names"]),
        tuple(
            StreamState(
                _mark_from_json(stream["mark"]),
                stream["greatest"],
                dict(stream["reached"]),
                tuple(waiting(kept) for kept in stream["waiting"]),
                tuple(item(kept) for kept in stream["in_flight"]),
                stream.get("cap", CLOCK_MAX),
            )
            for stream in contents["streams"]
        ),
    )


def _item_to_json(item: Item, keep: Any) -> dict[str, Any]:
    match item:
        case Part():
            return {"kind": "part", "stage": str(item.stage), "bytes": keep(item.batch)}
        case ReadNames():
            return {"kind": "names", "names": _names_to_json(item.names)}
        case Mark():
            return {"kind": "mark", "mark": _mark_to_json(item)}
        case FlushAsked():
            return {"kind": "flush", "cycle": item.cycle}
        case _:
            raise LocalProtocolError(f"no stream delivers {item!r}")


def _mark_to_json(mark: Mark) -> list[int]:
    return [mark.kind, mark.key]


def _mark_from_json(value: list[int]) -> Mark:
    return Mark(MarkKind(value[0]), value[1])


def _names_to_json(names: Any) -> list[list[Any]]:
    return [[read, *name] for read, name in sorted(names.items())]


def _names_from_json(value: list[list[Any]]) -> dict[int, tuple[int, str]]:
    return {read: (binding, cast(str, journal)) for read, binding, journal in value}
