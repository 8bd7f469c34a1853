"""A collection: documents of one schema, spread over journals by its partition columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.columns import is_reserved
from penstock.ddl import normal_schema, schema_from_ddl, schema_to_ddl
from penstock.errors import ConfigurationError
from penstock.journal.errors import IncompatibleSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KEY_TYPES_REFUSED: Final = (pa.types.is_nested, pa.types.is_floating)


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection is. `schemas[i]` is its schema at version i + 1; the last is current."""

    name: str
    schemas: tuple[pa.Schema, ...]
    key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    is_external: bool = False
    """Others made its journals: what these are partitioned by need not be columns of its own, and
    its name is one of theirs."""

    def __post_init__(self) -> None:
        if not self.is_external:
            check_collection_name(self.name)
        if not self.key:
            raise ConfigurationError(f"collection {self.name!r} needs at least one key column")
        partition_by = () if self.is_external else self.partition_by
        for role, columns in (("key", self.key), ("partition", partition_by)):
            if len(set(columns)) != len(columns):
                raise ConfigurationError(f"collection {self.name!r} names a {role} column twice")
            for column in columns:
                self._check_column(role, column)
        for name, limit in (
            ("retention_seconds", self.retention_seconds),
            ("retention_bytes", self.retention_bytes),
        ):
            if limit is not None and limit <= 0:
                raise ConfigurationError(f"collection {self.name!r}: {name} must be above zero")

    def _check_column(self, role: str, column: str) -> None:
        index = self.schema.get_field_index(column)
        if index < 0:
            raise ConfigurationError(
                f"collection {self.name!r}: {role} column {column!r} is not in its schema; "
                f"it has {', '.join(self.schema.names)}"
            )
        kind = self.schema.field(index).type
        if any(refused(kind) for refused in _KEY_TYPES_REFUSED):
            raise ConfigurationError(
                f"collection {self.name!r}: {role} column {column!r} is {kind}; "
                "keys and partitions are plain values that compare exactly"
            )

    @classmethod
    def define(
        cls,
        name: str,
        schema: pa.Schema | str,
        key: Sequence[str] | str,
        partition_by: Sequence[str] | str = (),
        *,
        retention_seconds: int | None = None,
        retention_bytes: int | None = None,
    ) -> Collection:
        """A new collection at version 1, from DDL text or an Arrow schema."""
        defined = cls(
            name,
            (as_schema(schema),),
            (key,) if isinstance(key, str) else tuple(key),
            (partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
            retention_seconds,
            retention_bytes,
        )
        defined.check_new()
        return defined

    def check_new(self, columns: Iterable[str] | None = None) -> None:
        """Refuses new columns that are named like ours; all are new, unless some are given. One
        that an earlier release let in can still be read, but not shuffled."""
        for column in self.schema.names if columns is None else columns:
            if is_reserved(column):
                raise ConfigurationError(
                    f"collection {self.name!r}: column name {column!r} is Penstock's own; rename it"
                )

    @property
    def reserved_columns(self) -> tuple[str, ...]:
        """Those that are named like ours."""
        return tuple(filter(is_reserved, self.schema.names))

    @property
    def version(self) -> int:
        return len(self.schemas)

    @property
    def schema(self) -> pa.Schema:
        return self.schemas[-1]

    def evolve(self, schema: pa.Schema | str) -> Collection:
        """The collection with a later schema: every column as it was, nullable ones added last."""
        new, old = as_schema(schema), self.schema
        for index, column in enumerate(old):
            if index >= len(new) or new.field(index).name != column.name:
                raise IncompatibleSchemaError(
                    f"collection {self.name!r}: column {column.name!r} must stay at position "
                    f"{index}; add new columns after {old.names[-1]!r}"
                )
            if not new.field(index).equals(column):
                raise IncompatibleSchemaError(
                    f"collection {self.name!r}: column {column.name!r} is "
                    f"{schema_to_ddl(pa.schema([column]))} and cannot become "
                    f"{schema_to_ddl(pa.schema([new.field(index)]))}; add a new column instead"
                )
        for column in list(new)[len(old) :]:
            if not column.nullable:
                raise IncompatibleSchemaError(
                    f"collection {self.name!r}: new column {column.name!r} is NOT NULL, but the "
                    "documents already written do not have it; make it nullable"
                )
        if new.equals(old):
            return self
        self.check_new(new.names[len(old) :])
        return Collection(
            self.name,
            (*self.schemas, new),
            self.key,
            self.partition_by,
            self.retention_seconds,
            self.retention_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "schemas": [schema_to_ddl(schema) for schema in self.schemas],
            "key": list(self.key),
            "partition_by": list(self.partition_by),
            "retention_seconds": self.retention_seconds,
            "retention_bytes": self.retention_bytes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Collection:
        return cls(
            data["name"],
            tuple(schema_from_ddl(text) for text in data["schemas"]),
            tuple(data["key"]),
            tuple(data["partition_by"]),
            data["retention_seconds"],
            data["retention_bytes"],
        )


def check_collection_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a collection name: letters, digits, dot, dash and underscore, "
            "at most 128, the first a letter or digit"
        )


def as_schema(schema: pa.Schema | str) -> pa.Schema:
    return schema_from_ddl(schema) if isinstance(schema, str) else normal_schema(schema)
