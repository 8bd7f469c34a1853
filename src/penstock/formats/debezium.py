"""Debezium's envelopes: a change of a database's row becomes the row, and what was done to it.

    {"before": {...}, "after": {...}, "op": "u", "source": {...}, "transaction": {...}}

1. A value is parsed as JSON, with the connector's schema around it or without.
2. The columns are those of the table: of the row as the change left it, and of a deleted row what
   the database tells of it (PostgreSQL: its replica identity).
3. Beside them stand what was done, and where the database's own log has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl import schema_from_ddl
from penstock.formats.decoded import Decoded, failures, nullable, nulls
from penstock.formats.errors import SchemaError
from penstock.formats.json_format import JsonFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

OPERATION: Final = "_op"
TRANSACTION: Final = "_transaction"
ORDER: Final = "_order"
SEQUENCE: Final = "_sequence"
COMMITTED: Final = "_committed"
ADDED: Final = schema_from_ddl(
    f"{OPERATION} STRING, {TRANSACTION} BIGINT, {ORDER} BIGINT, {SEQUENCE} STRING, "
    f"{COMMITTED} TIMESTAMP"
)
"""Beside the table's own columns. Debezium calls them `op`, `source.txId`,
`transaction.total_order`, `source.sequence` and `source.ts_us`."""
CONNECTOR: Final = "postgresql"
_ENVELOPE: Final = schema_from_ddl(
    "op STRING, "
    "source STRUCT<connector: STRING, txId: BIGINT, sequence: STRING, ts_us: BIGINT>, "
    "transaction STRUCT<total_order: BIGINT>"
)
_DELETED: Final = "d"
_PAYLOAD: Final = "payload"


class DebeziumFormat:
    """Envelopes of one table. A value that is none fails, as one that is no JSON does."""

    def __init__(self, table: pa.Schema) -> None:
        """`table` has the columns, of the types that the connector writes."""
        taken = sorted(set(table.names) & set(ADDED.names))
        if taken:
            raise SchemaError(f"a table's column cannot be called {taken[0]!r}: envelopes have one")
        row = pa.field("row", pa.struct(list(nullable(table))))
        envelope = [row.with_name("before"), row.with_name("after"), *_ENVELOPE]
        wrapped = [*envelope, pa.field(_PAYLOAD, pa.struct(envelope))]
        self._envelopes = JsonFormat(pa.schema(wrapped))
        self._table = nullable(table)
        self._schema = pa.schema([*self._table, *ADDED])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if len(values) == 0:
            return Decoded(nulls(self._schema, 0))
        found = self._envelopes.decode(values)
        envelope = _unwrapped(found.batch)
        reasons = dict(zip(found.failed, found.reasons, strict=True))
        reasons |= _strange(values, envelope, reasons)
        batch = self._rows(envelope)
        if reasons:
            batch = _without(batch, reasons)
        return failures(self._schema, batch, reasons)

    def _rows(self, envelope: pa.StructArray) -> pa.RecordBatch:
        """Step 2 and 3."""
        operation: Any = envelope.field("op")
        is_deleted = _are(operation, _DELETED)
        before, after = (_members(envelope, name) for name in ("before", "after"))
        some_deleted = bool(pc.any(is_deleted).as_py())
        row = [
            pc.if_else(is_deleted, old, new) if some_deleted else new
            for old, new in zip(before, after, strict=True)
        ]
        source = dict(zip(_names(envelope, "source"), _members(envelope, "source"), strict=True))
        (order,) = _members(envelope, "transaction")
        committed = source["ts_us"].cast(ADDED.field(COMMITTED).type)
        added = [operation, source["txId"], order, source["sequence"], committed]
        return pa.RecordBatch.from_arrays([*row, *added], schema=self._schema)


def _unwrapped(batch: pa.RecordBatch) -> pa.StructArray:
    """The envelopes themselves, of which each may have the connector's schema beside it."""
    bare = cast(Any, batch.drop_columns([_PAYLOAD]).to_struct_array())
    payload: Any = batch.column(_PAYLOAD)
    is_wrapped = payload.is_valid().to_numpy(zero_copy_only=False)
    if not is_wrapped.any():
        return cast(pa.StructArray, bare)
    if is_wrapped.all():
        return cast(pa.StructArray, payload)
    places = np.arange(len(batch)) + np.where(is_wrapped, len(batch), 0)
    return cast(pa.StructArray, pa.concat_arrays([bare, payload]).take(pa.array(places)))


def _strange(
    values: pa.BinaryArray, envelope: pa.StructArray, known: Mapping[int, str]
) -> dict[int, str]:
    """The values that are JSON, and no envelopes of a connector that we know."""
    connector: Any = _members(envelope, "source")[0]
    is_fine = pc.and_(_are(connector, CONNECTOR), envelope.field("op").is_valid())
    strange = ~_mask(is_fine) & _mask(values.is_valid())
    found = {}
    for row in np.flatnonzero(strange).tolist():
        if row in known:
            continue
        name = connector[row].as_py()
        found[row] = (
            "it is no change of a row: it has no op, or no source"
            if name in (None, CONNECTOR)
            else f"it comes from Debezium's connector for {name}, and Penstock knows {CONNECTOR}"
        )
    return found


def _without(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """The rows, with nulls in those that failed."""
    failed = np.zeros(len(batch), np.bool_)
    failed[list(reasons)] = True
    places: Any = pa.array(np.arange(len(batch)), mask=failed)
    return batch.take(places)


def _members(envelope: pa.StructArray, name: str) -> list[pa.Array[Any]]:
    """Of a part of the envelope; null where the part is."""
    part = cast(Any, envelope.field(name))
    return list(part.flatten())


def _names(envelope: pa.StructArray, name: str) -> list[str]:
    kind: Any = envelope.type.field(name).type
    return [kind.field(place).name for place in range(kind.num_fields)]


def _are(texts: pa.Array[Any], text: str) -> pa.Array[Any]:
    found: Any = pc.equal(texts, pa.scalar(text))
    return cast("pa.Array[Any]", found.fill_null(False))


def _mask(values: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return found
