"""Who wrote a row, and as which number, where the user's own headers or columns say so.

Kafka identifies rows of transactions, and nobody's else: a producer that is started again, or one
without idempotence, repeats rows as new ones. A user names a header (`writer-7:1042`: who, a colon,
a number that rises) or two columns. Then such a row has a producer of that name, and its number is
its clock: of a producer, in one partition, a row counts if its number is above all before it. That
is the rule of sequencing as it is (`sequence/rule.py`), so frontiers, queues and batch reads know
nothing of it. Rows of transactions keep Kafka's identity: their marker has no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigurationError
from penstock.journal.kafka.errors import RowIdentityError
from penstock.journal.kafka.headers import header_values
from penstock.journal.kafka.rows import whole_column
from penstock.journal.offset_identity import FIRST_CLOCK, named_producers
from penstock.journal.sources import FORMS
from penstock.routing import check_key_type, hash_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.journal.kafka.records.batches import Partition
    from penstock.journal.kafka.records.columns import Decoded

_SETTINGS: Final = ("header", "producer", "sequence", "on_error")
_HEADER: Final = r"(?s)^(?P<who>.+):(?P<number>[0-9]{1,19})$"
SEQUENCE_MAX: Final = 2**63 - 1
_QUOTED_BYTES_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Named:
    """Of each document, the producer that the user names, and the clock of its number."""

    producers: NDArray[np.int64]
    clocks: NDArray[np.uint64]
    is_named: NDArray[np.bool_]
    """The others keep what they have."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The setting `identity`."""

    header: str = ""
    producer: str = ""
    sequence: str = ""
    keeps_others: bool = False
    """A row that has no identity, or none that can be read, counts as one of a plain producer.
    Else it fails the read."""

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> Identity:
        """Of settings as a feed file or an option has them."""
        for name, value in given.items():
            if name not in _SETTINGS:
                raise ConfigurationError(
                    f"there is no {name!r} of an identity; there are {', '.join(_SETTINGS)}"
                )
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{name} is {value!r}, and must be a text")
        has_columns = "producer" in given and "sequence" in given
        names = given.keys() - {"on_error"}
        if names != ({"producer", "sequence"} if has_columns else {"header"}):
            raise ConfigurationError(f"write {FORMS}")
        texts = {name: str(value) for name, value in given.items()}
        on_error = texts.get("on_error", "fail")
        if on_error not in ("fail", "keep"):
            raise ConfigurationError(
                f"on_error is {on_error!r}, and must be fail, or keep: rows without an identity "
                "count, each of them"
            )
        return cls(
            texts.get("header", ""),
            texts.get("producer", ""),
            texts.get("sequence", ""),
            keeps_others=on_error == "keep",
        )

    @property
    def is_header(self) -> bool:
        return bool(self.header)

    @property
    def columns(self) -> frozenset[str]:
        """Those of a document that it is made from."""
        return frozenset() if self.header else frozenset((self.producer, self.sequence))

    def check(self, schema: pa.Schema) -> None:
        """Whether documents of this schema have the columns, and of types that will do."""
        for column in sorted(self.columns):
            if column not in schema.names:
                raise ConfigurationError(
                    f"identity: there is no column {column!r}; there are {', '.join(schema.names)}"
                )
        if self.header:
            return
        check_key_type(schema.field(self.producer).type)
        kind = schema.field(self.sequence).type
        if not pa.types.is_signed_integer(kind):
            raise ConfigurationError(
                f"identity: the column {self.sequence!r} is {kind}, and a sequence is a whole "
                "number that rises: BIGINT, INT, SMALLINT or TINYINT"
            )

    def of(
        self,
        partition: Partition,
        decoded: Decoded,
        documents: pa.RecordBatch,
        kept: NDArray[np.int64] | None,
    ) -> Named:
        """`documents` has a row for each row of `decoded`, or for each that is kept of them."""
        batches = decoded.batches
        is_outside = np.repeat(~batches.is_transactional, batches.rows)
        if kept is not None:
            is_outside = is_outside[kept]
        if self.header:
            headers = header_values(whole_column(decoded.rows, "headers"), self.header)
            found = headers if kept is None else headers.take(kept)
            who, numbers = _in_headers(found)
        else:
            who = documents.column(self.producer)
            numbers = documents.column(self.sequence).cast(pa.int64())
        is_known = _is_valid(who) & _is_valid(numbers)
        counted = numbers.fill_null(-1).to_numpy(zero_copy_only=False)
        is_known &= counted >= 0
        wrong = np.flatnonzero(is_outside & ~is_known)
        if len(wrong) and not self.keeps_others:
            row = int(wrong[0])
            offset = decoded.rows.column("offset")[row if kept is None else int(kept[row])].as_py()
            shown = _shown(found[row]) if self.header else self._shown(documents, row)
            raise RowIdentityError(partition.topic, partition.number, offset, self._lacks(shown))
        clocks = np.maximum(counted, 0).astype(np.uint64) + np.uint64(FIRST_CLOCK)
        producers = named_producers(hash_keys([who])) if len(who) else np.empty(0, np.int64)
        return Named(producers, clocks, is_outside & is_known)

    def _lacks(self, shown: str) -> str:
        if self.header:
            return (
                f"its header {self.header!r} is {shown}, and should be a name, a colon, and a "
                f"number from 0 to {SEQUENCE_MAX}, like b'writer-7:1042'"
            )
        return f"{shown}, and should be a name and a number that is not negative"

    def _shown(self, documents: pa.RecordBatch, row: int) -> str:
        values = (documents.column(name)[row].as_py() for name in (self.producer, self.sequence))
        who, number = (repr(value)[:_QUOTED_BYTES_MAX] for value in values)
        return f"its columns {self.producer!r} and {self.sequence!r} are {who} and {number}"


def _in_headers(values: pa.BinaryArray) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Who, and the number; null where a header is missing or of another form."""
    parts: Any = pc.extract_regex(values, _HEADER)
    who, digits = parts.flatten()
    numbers = digits.cast(pa.string()).cast(pa.uint64())
    is_right = _is_valid(numbers)
    is_right &= numbers.fill_null(0).to_numpy(zero_copy_only=False) <= np.uint64(SEQUENCE_MAX)
    right: Any = pa.array(is_right)
    nothing: Any = None
    fitting = pc.if_else(right, numbers, pa.scalar(nothing, pa.uint64()))
    return who, fitting.cast(pa.int64())


def _is_valid(column: pa.Array[Any]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _shown(value: Any) -> str:
    found = value.as_py()
    return "missing" if found is None else repr(found[:_QUOTED_BYTES_MAX])
