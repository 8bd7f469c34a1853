"""What becomes of values that do not parse: `fail`, `null` or `dead_letter`.

Pure: records and what was decoded of them go in; rows to show, rows to put aside, or an error come
out. Where dead letters are written is somebody else's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
import pyarrow as pa

from penstock.formats.errors import ValueFormatError

if TYPE_CHECKING:
    from penstock.formats.decoded import Decoded


class OnError(enum.Enum):
    """The option `on_error`."""

    FAIL = "fail"
    NULL = "null"
    DEAD_LETTER = "dead_letter"


_DEAD_LETTER: Final[list[pa.Field[Any]]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
]
DEAD_LETTERS: Final = pa.schema(_DEAD_LETTER)
"""A row that was put aside: where it was, why, and its bytes as they were."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition, beside their values' columns: one row each."""

    topic: str
    partition: int
    offsets: pa.Array[Any]
    keys: pa.BinaryArray
    values: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class Judged:
    """`shown` are the rows of `batch` among the records, in order; None stands for all of them."""

    batch: pa.RecordBatch
    dead_letters: pa.RecordBatch
    shown: pa.Array[Any] | None = None


def judge(decoded: Decoded, records: Records, on_error: OnError) -> Judged:
    """Splits what was decoded by the policy. `fail` raises for the first value that failed."""
    none = pa.RecordBatch.from_pylist([], schema=DEAD_LETTERS)
    if not decoded.failed:
        return Judged(decoded.batch, none)
    match on_error:
        case OnError.FAIL:
            offset = records.offsets[decoded.failed[0]].as_py()
            raise ValueFormatError(records.topic, records.partition, offset, decoded.reasons[0])
        case OnError.NULL:
            return Judged(decoded.batch, none)
        case OnError.DEAD_LETTER:
            kept = np.ones(decoded.batch.num_rows, dtype=bool)
            kept[list(decoded.failed)] = False
            shown = np.flatnonzero(kept)
            return Judged(
                decoded.batch.take(shown), _dead_letters(decoded, records), pa.array(shown)
            )
        case _:
            assert_never(on_error)


def _dead_letters(decoded: Decoded, records: Records) -> pa.RecordBatch:
    rows = np.array(decoded.failed, dtype=np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(records.topic, pa.string()), len(rows)),
            pa.repeat(pa.scalar(records.partition, pa.int32()), len(rows)),
            records.offsets.take(rows).cast(pa.int64()),
            pa.array(decoded.reasons, pa.string()),
            records.keys.take(rows).cast(pa.binary()),
            records.values.take(rows).cast(pa.binary()),
        ],
        schema=DEAD_LETTERS,
    )
