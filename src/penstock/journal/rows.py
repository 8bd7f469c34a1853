"""Users' rows made into record batches of a collection's schema, or refused whole.

Rows come as Arrow, pandas or dicts. Whatever does not fit is refused before anything is written,
with the row, the column and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.errors import BadRowsError
from penstock.journal.losses import (
    Loss,
    loss_by_type,
    loss_in_values,
    loss_of_required,
    without_required,
)
from penstock.journal.names import journal_name

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from penstock.journal.collection import Collection

Rows: TypeAlias = (
    "pa.Table | pa.RecordBatch | pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]"
)

Sizes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

ROW_BYTES_MAX: Final = 16 * 1024 * 1024
"""A document above this is almost always a mistake, and would take a frame for itself."""


def conform(collection: Collection, rows: Rows) -> pa.RecordBatch:
    """The rows as one batch of exactly the collection's schema, or BadRowsError."""
    return conform_to(collection.name, collection.schema, rows, collection.key)


def conform_to(
    collection: str, schema: pa.Schema, rows: Rows, key: Sequence[str] = ()
) -> pa.RecordBatch:
    """The same for a schema. `key` are columns that every row has a value of."""
    if isinstance(rows, pa.RecordBatch) and _fits(schema, key, rows):
        _refuse_oversized(collection, rows)
        return rows
    columns, count = _columns_of(collection, rows)
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise BadRowsError(
                collection,
                _first_row_with(rows, name),
                name,
                f"the collection has no such column (it has {', '.join(schema.names)}); "
                "evolve it first, or drop the column",
            )
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        array = (
            pa.nulls(count, field.type) if values is None else _convert(collection, field, values)
        )
        required = not field.nullable or field.name in key
        if required and array.null_count:
            what = "is a key column" if field.name in key else "is NOT NULL"
            row = int(np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False))[0])
            raise BadRowsError(collection, row, field.name, f"has no value, but {what}")
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    _refuse_oversized(collection, batch)
    return batch


def split_by_journal(
    collection: Collection, batch: pa.RecordBatch
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch's rows by journal, each journal's rows in their order."""
    if not collection.partition_by:
        yield journal_name(collection.name, (), ()), batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    values: list[tuple[object, ...]] = [()]
    for column in collection.partition_by:
        encoded = batch.column(column).dictionary_encode("encode")
        dictionary = encoded.dictionary.to_pylist()
        codes = codes * len(dictionary) + encoded.indices.to_numpy()
        values = [(*known, value) for known in values for value in dictionary]
        # Only the combinations that occur go on, or the codes would multiply without end.
        present, codes = np.unique(codes, return_inverse=True)
        values = [values[code] for code in present]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
    for index, known in enumerate(values):
        rows = order[starts[index] : starts[index + 1]]
        name = journal_name(collection.name, collection.partition_by, known)
        yield name, batch.take(rows)


def _fits(schema: pa.Schema, key: Sequence[str], batch: pa.RecordBatch) -> bool:
    """Whether a batch can be taken as it is, because of its types and because nothing is missing.
    What is nested is looked at more closely."""
    return batch.schema.equals(schema) and not any(
        pa.types.is_nested(column.type)
        or (column.null_count and (not field.nullable or field.name in key))
        for field, column in zip(schema, batch.columns, strict=True)
    )


def _columns_of(collection: str, rows: Rows) -> tuple[dict[str, Any], int]:
    """Each column's values (an Arrow array or a list), and how many rows there are."""
    if isinstance(rows, pa.Table):
        try:
            batches = rows.combine_chunks().to_batches()
        except pa.ArrowInvalid:  # lists do not fit one chunk; text that does not is left in several
            batches = rows.to_batches()
        if len(batches) > 1:
            raise BadRowsError(
                collection,
                None,
                None,
                "a column has more than 2 GiB of values, too much for one append; give it in parts",
            )
        rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
    if isinstance(rows, pa.RecordBatch):
        _refuse_repeated(collection, rows.schema.names)
        return dict(zip(rows.schema.names, rows.columns, strict=True)), rows.num_rows
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas, without importing it
        frame = cast("pd.DataFrame", rows)
        _refuse_repeated(collection, [str(name) for name in frame.columns])
        return {str(name): _from_pandas(frame[name]) for name in frame.columns}, len(frame)
    documents: Sequence[Any] = [rows] if isinstance(rows, Mapping) else cast("Sequence[Any]", rows)
    if isinstance(documents, str | bytes) or not isinstance(documents, Sequence):
        raise BadRowsError(
            collection,
            None,
            None,
            f"cannot read rows from {type(rows).__name__}; "
            "give a pyarrow Table, a pandas DataFrame, or a list of dicts",
        )
    names: dict[str, None] = {}
    for index, document in enumerate(documents):
        if not isinstance(document, Mapping):
            raise BadRowsError(collection, index, None, f"is {type(document).__name__}, not a dict")
        names.update(dict.fromkeys(document))
        if any(not isinstance(name, str) for name in document):
            name = next(name for name in document if not isinstance(name, str))
            raise BadRowsError(
                collection, index, None, f"has the key {name!r}; column names are text"
            )
    values = {name: [document.get(name) for document in documents] for name in names}
    return values, len(documents)


def _refuse_repeated(collection: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadRowsError(collection, None, name, "is there twice; rename or drop one")


def _from_pandas(values: pd.Series[Any]) -> Any:
    """As Arrow; or as a list where Arrow finds no type that fits all values, for `_convert` to say
    which of them is wrong."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return [
            None if missing else value for value, missing in zip(values, values.isna(), strict=True)
        ]


def _convert(collection: str, field: pa.Field[Any], values: Any) -> pa.Array[Any]:
    """Converts a column safely; on failure finds the first row that does not convert."""
    is_arrow = isinstance(values, pa.Array)
    kind = field.type
    by_name = loss_by_type(values.type, kind) if is_arrow else loss_in_values(values, kind)
    _refuse(collection, field.name, by_name)
    if is_arrow and values.type == kind:
        _refuse(collection, field.name, loss_of_required(values, kind))
        return cast("pa.Array[Any]", values)
    lenient = without_required(kind)

    def convert(part: Any) -> pa.Array[Any]:
        converted: pa.Array[Any] = part.cast(lenient) if is_arrow else pa.array(part, type=lenient)
        return converted

    try:
        array = convert(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        row = _first_failing(values, convert)
        value = values[row].as_py() if is_arrow else values[row]
        reason = f"value {str(value)[:60]!r} does not fit {kind}: {error}".splitlines()[0]
        raise BadRowsError(collection, row, field.name, reason) from None
    if array.type == kind:
        return array
    _refuse(collection, field.name, loss_of_required(array, kind))
    return array.take(np.arange(len(array))).cast(kind)


def _refuse(collection: str, column: str, loss: Loss | None) -> None:
    if loss is not None:
        raise BadRowsError(collection, loss.row, ".".join((column, *loss.path)), loss.reason)


def _first_failing(values: Any, convert: Callable[[Any], object]) -> int:
    """Bisects for the first row whose value does not convert; the column as a whole does not."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(values[low:middle])
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            high = middle
        else:
            low = middle
    return low


def _first_row_with(rows: Rows, name: str) -> int | None:
    if isinstance(rows, Mapping):
        return 0
    if isinstance(rows, Sequence):
        return next(index for index, document in enumerate(rows) if name in document)
    return None


def _refuse_oversized(collection: str, batch: pa.RecordBatch) -> None:
    if batch.nbytes <= ROW_BYTES_MAX:
        return
    sizes = row_bytes(batch)
    if len(sizes) and sizes.max() > ROW_BYTES_MAX:
        row = int(np.argmax(sizes > ROW_BYTES_MAX))
        raise BadRowsError(
            collection,
            row,
            None,
            f"is {sizes[row]} bytes; a document has at most {ROW_BYTES_MAX}",
        )


def row_bytes(batch: pa.RecordBatch) -> Sizes:
    """How many bytes each row's values take, roughly: enough to find and to spread large rows."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        total += _value_bytes(column)
    return total


def _value_bytes(array: pa.Array[Any]) -> Sizes:
    kind = array.type
    if isinstance(array, pa.StringArray | pa.BinaryArray):
        lengths: Any = pc.fill_null(cast("Any", pc.binary_length(array)), 0)
        sizes: Sizes = lengths.to_numpy().astype(np.int64)
        return sizes
    if isinstance(array, pa.StructArray):
        total = np.zeros(len(array), dtype=np.int64)
        for child in array.flatten():
            total += _value_bytes(child)
        return total
    if isinstance(array, pa.MapArray):
        entries = _value_bytes(array.keys) + _value_bytes(array.items)
        return _sum_by_list(entries, array)
    if isinstance(array, pa.ListArray):
        return _sum_by_list(_value_bytes(array.values), array)
    return np.full(len(array), max(kind.bit_width // 8, 1), dtype=np.int64)


def _sum_by_list(values: Sizes, lists: Any) -> Sizes:
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])
    offsets = lists.offsets.to_numpy()
    summed: Sizes = sums[offsets[1:]] - sums[offsets[:-1]]
    return summed
