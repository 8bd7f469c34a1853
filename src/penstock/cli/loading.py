"""Appending files to a collection: all of them in one transaction, or batch by batch."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cli.infer import infer_schema
from penstock.cli.sources import RawRows, RefusedRowsError, Source, read_rows
from penstock.cli.terminal import counted
from penstock.cli.values import to_arrow
from penstock.errors import ConfigurationError
from penstock.journal import Collection
from penstock.journal.errors import BadRowsError, UnknownCollectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.journal import OpenStore


@dataclass(frozen=True, slots=True)
class Creation:
    """How to create the collection if there is none."""

    key: tuple[str, ...]
    partition_by: tuple[str, ...]


@dataclass(slots=True)
class Loaded:
    """What was appended, by file."""

    collection: Collection
    created: bool
    transaction: bool
    rows_by_file: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(self.rows_by_file.values())


def load(
    store: OpenStore,
    collection: str,
    sources: Sequence[Source],
    *,
    creation: Creation | None,
    transaction: bool,
    batch_rows: int,
    report: Callable[[int, RawRows], None],
) -> Loaded:
    """Appends the sources; calls `report` with the number of the file after each batch of it.

    In a transaction nothing is kept of a load that fails. Without one, the batches before the
    failing one are.
    """
    chunks = _chunks(sources, batch_rows, eager=not transaction)
    spec, created, chunks = _collection(store, collection, creation, chunks)
    loaded = Loaded(spec, created, transaction, {source.name: 0 for source in sources})
    with ExitStack() as stack:
        producer = stack.enter_context(store.producer())
        append: Callable[[str, Any], int] = (
            stack.enter_context(producer.transaction()).append if transaction else producer.append
        )
        try:
            for number, raw in chunks:
                loaded.rows_by_file[raw.source.name] += _append(append, spec, raw)
                report(number, raw)
        except RefusedRowsError as error:
            kept = "; nothing was appended"
            if not transaction and loaded.rows:
                kept = f"; {counted(loaded.rows, 'document')} before it were appended and stay"
            raise RefusedRowsError(error.place, error.column, error.reason, kept) from None
    return loaded


def _chunks(
    sources: Sequence[Source], batch_rows: int, *, eager: bool
) -> Iterator[tuple[int, RawRows]]:
    for number, source in enumerate(sources):
        for raw in read_rows(source, rows_max=batch_rows, eager=eager and source.path is None):
            yield number, raw


def _collection(
    store: OpenStore,
    name: str,
    creation: Creation | None,
    chunks: Iterator[tuple[int, RawRows]],
) -> tuple[Collection, bool, Iterator[tuple[int, RawRows]]]:
    """The collection, created after the first rows if that is wanted; and all the chunks."""
    try:
        return store.collection(name), False, chunks
    except UnknownCollectionError:
        if creation is None:
            raise
    first = next(chunks, None)
    if first is None:
        raise ConfigurationError(f"there are no rows to tell the schema of {name!r} from")
    schema = infer_schema(first[1], creation.key)
    made = store.create(Collection.define(name, schema, creation.key, creation.partition_by))
    return made, True, itertools.chain([first], chunks)


def _append(append: Callable[[str, Any], int], spec: Collection, raw: RawRows) -> int:
    try:
        return append(spec.name, to_arrow(raw, spec.schema))
    except BadRowsError as error:
        place = raw.source.name if error.row is None else raw.place(error.row)
        raise RefusedRowsError(place, error.column, error.reason) from None
