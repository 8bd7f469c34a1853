"""Copying collections from one store to another: each epoch of a shuffle is a transaction there.

An epoch has whole transactions only, in all collections together, and its content is the same
however often it is read. It goes into one transaction of the target, of a named producer, whose
position says which epoch that was. So after a crash at any point the target tells where to go on:

    1  read      what lies between the last epoch and the newest one
    2  append    that, and the position, in one transaction of the target
    3  commit    from here on it counts
    4  let go    the shuffle is told, and gives the disk back

The folder holds the epochs. The position has a checksum of its epoch's frontier: another folder,
which has read elsewhere, cannot be taken for this one.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from penstock.cli.shuffle_run import EpochRun
from penstock.ddl import schema_to_ddl
from penstock.errors import ConfigurationError, PenstockError
from penstock.formats.keys import KeyEncoder
from penstock.frontier import encode_chunks
from penstock.journal import Collection
from penstock.shuffle.parcels import fields_of
from penstock.shuffle.resume import NOTHING, Epoch, find_resume, load_record
from penstock.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.frontier import Frontier
    from penstock.journal.producing import StoreProducer, StoreTransaction
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.running import Shuffle

KEY: Final = "key"
"""Of Kafka's: what decides over the partition."""
VALUE: Final = "value"


class Step(enum.Enum):
    """What has just been done when `reached` is called, by the numbers above."""

    READ = "1"
    APPENDED = "2"
    COMMITTED = "3"
    LET_GO = "4"


def reached(step: Step) -> None:
    """Called after each step. Does nothing; the crash tests put a kill in its place."""


@dataclass(frozen=True, slots=True)
class CopyPosition:
    """What the target's producer commits with each epoch."""

    source: str
    collections: tuple[str, ...]
    epoch: int = 0
    frontier: str = ""
    documents: int = 0

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, name: str | None, text: str) -> CopyPosition:
        try:
            fields = json.loads(text)
            return cls(**{**fields, "collections": tuple(fields["collections"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"the producer {name!r} of the target is not one of `penstock copy`: its position "
                f"is {text[:60]!r}. Choose another --name"
            ) from error


def begun(
    producer: StoreProducer, source: str, collections: tuple[str, ...], folder: Path
) -> tuple[CopyPosition, Epoch]:
    """Where to go on, by what the target has. A first run notes there what it copies."""
    place = Storage.open(folder / "cluster")
    if producer.position is None:
        if find_resume(place).newest.number:
            raise ConfigurationError(
                f"the target knows of no copy {producer.name!r}, and {folder} belongs to another "
                "one. Use its --name and its target, or another --folder"
            )
        first = CopyPosition(source, collections)
        with producer.transaction() as transaction:
            transaction.position(first.text)
        return first, NOTHING
    found = CopyPosition.parse(producer.name, producer.position)
    if (_place(found.source), found.collections) != (_place(source), collections):
        raise ConfigurationError(
            f"the copy {producer.name!r} of this target is one of {', '.join(found.collections)} "
            f"from {found.source}. Choose another --name"
        )
    if not found.epoch:
        return found, NOTHING
    try:
        frontier = load_record(place, found.epoch).frontier
    except PenstockError as error:
        raise _other_folder(producer, found, folder, str(error)) from error
    if _checksum(frontier) != found.frontier:
        raise _other_folder(producer, found, folder, "it has read up to elsewhere")
    return found, Epoch(found.epoch, frontier)


def _place(source: str) -> str:
    """A cluster may be asked by other brokers today; that it is the same one say its topics' ids,
    which the frontier has."""
    return source.partition("://")[0] if source.startswith("kafka://") else source


def _other_folder(
    producer: StoreProducer, found: CopyPosition, folder: Path, why: str
) -> ConfigurationError:
    return ConfigurationError(
        f"the target has the copy {producer.name!r} up to epoch {found.epoch}, which is not in "
        f"{folder}: {why}. Use the --folder of that copy. If it is lost, nobody knows where to go "
        "on: copy into an empty collection, by another --name"
    )


class CopyView(Protocol):
    """Who is shown how it goes."""

    def show(self, documents: int, left: int | None) -> None:
        """Called often; `left` are rows that were not read yet, as far as it is known."""

    def say(self, text: str) -> None:
        """Something happened that is worth a line."""


class CopyRun(EpochRun):
    """Takes epochs by appending them to the target."""

    def __init__(
        self,
        shuffle: Shuffle,
        store: ReadableStore,
        producer: StoreProducer,
        begin: tuple[CopyPosition, Epoch],
        *,
        parts: tuple[CopiedPart, ...],
        view: CopyView,
        follow: bool,
    ) -> None:
        """`parts` are in the order of the feed's bindings."""
        super().__init__(shuffle, store, follow=follow)
        self.position, self._last = begin
        self._producer = producer
        self._parts = parts
        self._view = view

    @property
    def last(self) -> Epoch:
        return self._last

    def _consume(self, epoch: Epoch) -> None:
        super()._consume(epoch)
        reached(Step.LET_GO)

    def _take(self, epoch: Epoch) -> None:
        with self._producer.transaction() as transaction:
            documents = self.position.documents + self._append(transaction, epoch)
            position = CopyPosition(
                self.position.source,
                self.position.collections,
                epoch.number,
                _checksum(epoch.frontier),
                documents,
            )
            transaction.position(position.text)
            reached(Step.APPENDED)
        reached(Step.COMMITTED)
        self.position, self._last = position, epoch

    def _append(self, transaction: StoreTransaction, epoch: Epoch) -> int:
        documents = 0
        for member in self._shuffle.members:
            for found in self._shuffle.read(member, self._last, epoch):
                reached(Step.READ)
                own = len(fields_of(found.batch.schema))
                rows = found.batch.select(found.batch.schema.names[own:])
                part = self._parts[found.stage.binding]
                documents += transaction.append(part.collection.name, part.rows(rows))
        return documents

    def _show(self) -> None:
        left = None if self.state is None else self.state.rows_behind
        self._view.show(self.position.documents, left)

    def _say(self, text: str) -> None:
        self._view.say(text)


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A collection, and what its rows become in the target."""

    collection: Collection
    """Of the source."""
    to_topic: bool
    with_format: bool = False

    def check(self) -> None:
        """Refuses what a topic cannot have. A store of files refuses rows itself."""
        names = self.collection.schema.names
        if self.to_topic and not self.with_format and VALUE not in names:
            raise ConfigurationError(
                f"collection {self.collection.name!r} has no column {VALUE!r}, which becomes a "
                f"record of the topic: it has {', '.join(names)}. With --format json the records "
                "have all of its columns"
            )

    @property
    def has_own_key(self) -> bool:
        """Kafka's key is among the columns: the rows were in a topic once, or are to be."""
        schema = self.collection.schema
        return KEY in schema.names and schema.field(KEY).type == pa.binary()

    @property
    def values(self) -> dict[str, str]:
        """How the topic's values have the columns."""
        fields = [f for f in self.collection.schema if not (self.has_own_key and f.name == KEY)]
        return {"format": "json", "schema": schema_to_ddl(pa.schema(fields))}

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not (self.to_topic and self.with_format) or KEY in rows.schema.names:
            return rows
        keys = pa.schema([rows.schema.field(name) for name in self.collection.key])
        return rows.append_column(KEY, KeyEncoder(keys).encode(rows))


def made_for(source: Collection, key: tuple[str, ...]) -> Collection:
    """A collection of files for what the source has. Rows of a topic need not have Kafka's key,
    and are told apart by where they were."""
    fields = [field.with_nullable(field.nullable) for field in source.schema]
    partition_by = () if source.is_external else source.partition_by
    if source.is_external and not key:
        key = tuple(
            name for name in ("topic", "partition", "offset") if name in source.schema.names
        )
        if not key:
            raise ConfigurationError(
                f"--create: which columns are the key of {source.name!r}? It has "
                f"{', '.join(source.schema.names)}; say --key COLUMNS"
            )
    return Collection.define(source.name, pa.schema(fields), key or source.key, partition_by)


def _checksum(frontier: Frontier) -> str:
    found = hashlib.blake2b(digest_size=16)
    chunks: Iterator[bytes] = encode_chunks(frontier)
    for chunk in chunks:
        found.update(chunk)
    return found.hexdigest()
