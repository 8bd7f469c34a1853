"""The conformance suite, run on the sinks that are here."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.journal import transaction
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.sinks.collection import CollectionSink
from penstock.sinks.parquet import ParquetSink, committed_files
from penstock.testing.sinks import SinkConformance, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


class CollectionTarget(Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ps.open_store(folder, durability="buffered")
        schema = "id BIGINT NOT NULL, text STRING NOT NULL"
        self.store.create(ps.Collection.define("c", schema, "id", "text"))

    def sink(self) -> CollectionSink:
        return CollectionSink(self.store.url, "c")

    def contents(self) -> Iterator[Any]:
        self.store.recover()
        for cut in take_cut(self.store, lambda: [one.name for one in self.store.journals("c")]):
            for found in read_documents(self.store, cut, columns=["id"]):
                yield from found.documents.column("id").to_pylist()

    def leftovers(self) -> list[Path]:
        return [path for path in (self.folder / "sinks" / "staged").rglob("*") if path.is_file()]


class ParquetTarget(Target):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self) -> ParquetSink:
        return ParquetSink(str(self.folder))

    def contents(self) -> list[Any]:
        files = committed_files(str(self.folder))
        return [each for file in files for each in pq.read_table(file).column("id").to_pylist()]

    def leftovers(self) -> list[Path]:
        counted = set(committed_files(str(self.folder)))
        return [path for path in self.folder.rglob("*.parquet") if str(path) not in counted]


class TestCollectionSink(SinkConformance):
    hooks = (*SinkConformance.hooks, (transaction, transaction.Step))

    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def new_target(self) -> Target:
        return CollectionTarget(next(self.folders))


class TestParquetSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def new_target(self) -> Target:
        return ParquetTarget(next(self.folders))
