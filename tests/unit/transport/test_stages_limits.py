"""A connection has room for the stages of the largest feed, and a limit on what they take."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import RemoteProtocolError
from penstock.shuffle.feed import BINDINGS_MAX
from penstock.transport import stages
from penstock.transport.frames import STAGES_MAX
from penstock.transport.stages import StageDecoders, StageEncoders


def encoded(stage: str, batch: pa.RecordBatch) -> pa.Buffer:
    pieces = StageEncoders().encode(stage, batch)
    return pa.py_buffer(b"".join(bytes(piece) for piece in pieces))


def test_every_binding_has_room_for_rollbacks_and_several_schemas() -> None:
    assert BINDINGS_MAX * (1 + 8) + 2 <= STAGES_MAX


def test_schemas_of_all_stages_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({f"column {number}": [1] for number in range(20)})
    schema_bytes = batch.schema.serialize().size
    monkeypatch.setattr(stages, "SCHEMAS_BYTES_MAX", 3 * schema_bytes)
    decoders = StageDecoders()
    for number in range(3):
        decoders.decode(f"s{number}", encoded(f"s{number}", batch))
    with pytest.raises(RemoteProtocolError, match="schemas"):
        decoders.decode("s3", encoded("s3", batch))
