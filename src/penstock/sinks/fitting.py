"""Whether a frame's columns fit a collection: told before anything is written, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from penstock.columns import META
from penstock.ddl import schema_to_ddl
from penstock.errors import ConfigurationError
from penstock.journal.losses import without_required

if TYPE_CHECKING:
    from penstock.journal.collection import Collection

_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_WIDER: Final = {
    (narrow, wide) for place, narrow in enumerate(_WHOLE) for wide in _WHOLE[place:]
} | {(pa.float32(), pa.float64())}
"""What becomes another type without a value changing."""


def check_frame(collection: Collection, frame: pa.Schema, meta: str | None) -> None:
    """Refuses a frame that has other columns than the collection, or of other types. `meta` is the
    collection's column that takes the frame's `_meta`."""
    own = collection.schema
    given = {field.name: field for field in frame if field.name != META}
    if len(given) + (META in frame.names) != len(frame):
        raise ConfigurationError(f"the frame has a column twice: {', '.join(frame.names)}")
    _check_meta(collection, frame, meta)
    for name, field in given.items():
        if own.get_field_index(name) < 0:
            raise ConfigurationError(
                f"the frame has a column {name!r}, and collection {collection.name!r} has not: it "
                f"has {', '.join(own.names)}. Drop the column, or evolve the collection"
            )
        wanted = own.field(name)
        if not _fits(field.type, wanted.type):
            raise ConfigurationError(
                f"column {name!r} is {_shown(field)} in the frame, and {_shown(wanted)} in "
                f"collection {collection.name!r}: cast it in the query"
            )
    for wanted in own:
        if wanted.name in given or (wanted.name == meta and META in frame.names):
            continue
        is_key = wanted.name in collection.key
        if is_key or not wanted.nullable:
            raise ConfigurationError(
                f"the frame has no column {wanted.name!r}, which in collection "
                f"{collection.name!r} {'is part of the key' if is_key else 'is NOT NULL'}"
            )


def fitted(batch: pa.RecordBatch, collection: Collection, meta: str | None) -> pa.RecordBatch:
    """The batch with `_meta` in the collection's column for it, as far as that has its fields."""
    place = batch.schema.get_field_index(META)
    if meta is None or place < 0:
        return batch
    wanted = collection.schema.field(meta).type
    found = cast("pa.StructArray", batch.column(place))
    fields = [pa.field(field.name, found.type.field(field.name).type) for field in wanted]
    chosen = pa.StructArray.from_arrays(
        [found.field(field.name) for field in wanted], fields=fields, mask=found.is_null()
    )
    return batch.set_column(place, meta, chosen)


def _check_meta(collection: Collection, frame: pa.Schema, meta: str | None) -> None:
    if META not in frame.names:
        if meta is not None:
            raise ConfigurationError(
                f"option 'meta' says that {META!r} goes into column {meta!r}, but the frame has no "
                f"{META!r}; leave the option out, or keep the column in the query"
            )
        return
    kind = frame.field(META).type
    if meta is None:
        raise ConfigurationError(
            f"the frame has the column {META!r}. Drop it with .drop({META!r}); or keep where a "
            "document came from: give the collection a column for it, as "
            f"`source {schema_to_ddl(pa.schema([pa.field('x', kind)])).removeprefix('x ')}` or "
            "with some of these fields, and say .option('meta', 'source')"
        )
    index = collection.schema.get_field_index(meta)
    if index < 0:
        raise ConfigurationError(
            f"option 'meta': collection {collection.name!r} has no column {meta!r}; it has "
            f"{', '.join(collection.schema.names)}"
        )
    if meta in frame.names:
        raise ConfigurationError(
            f"option 'meta' says that {META!r} goes into column {meta!r}, which the frame has too"
        )
    wanted = collection.schema.field(index)
    if not isinstance(wanted.type, pa.StructType) or not isinstance(kind, pa.StructType):
        raise ConfigurationError(
            f"option 'meta': column {meta!r} of collection {collection.name!r} is "
            f"{_shown(wanted)}; it must be a STRUCT of fields of {META!r}"
        )
    for field in wanted.type:
        there = kind.get_field_index(field.name)
        if there < 0 or not _fits(kind.field(there).type, field.type):
            raise ConfigurationError(
                f"option 'meta': column {meta!r} of collection {collection.name!r} has the field "
                f"{schema_to_ddl(pa.schema([field]))}, and {META!r} has "
                f"{schema_to_ddl(pa.schema(list(kind)))}"
            )


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    given, wanted = without_required(given), without_required(wanted)
    if isinstance(given, pa.TimestampType) and isinstance(wanted, pa.TimestampType):
        # The zone is only how a moment is shown; with none it is another thing.
        return (given.tz is None) == (wanted.tz is None)
    return given.equals(wanted) or (given, wanted) in _WIDER


def _shown(field: pa.Field[Any]) -> str:
    return schema_to_ddl(pa.schema([pa.field("x", field.type)])).removeprefix("x ")
