"""The sink that writes into a collection: what it finds out after a crash, and what it refuses."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.ddl import schema_from_ddl
from penstock.errors import CommitFailedError, ConfigurationError, CorruptStorageError
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.views import META_FIELD
from penstock.sinks import collection as module
from penstock.sinks.batches import commit_batch
from penstock.sinks.collection import CollectionSink
from penstock.sinks.fitting import check_frame, fitted
from penstock.sinks.two_phase import Batch, Decision

if TYPE_CHECKING:
    from pathlib import Path

QUERY = "query-a"


@pytest.fixture
def store(tmp_path: Path) -> ps.OpenStore:
    store = ps.open_store(tmp_path / "store", durability="buffered", segment_bytes_max=2_000)
    store.create(ps.Collection.define("c", "id BIGINT NOT NULL, part INT NOT NULL", "id", "part"))
    return store


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "part": [each % 2 for each in ids]})


def seen(store: ps.OpenStore) -> list[Any]:
    found: list[Any] = []
    for cut in take_cut(store, lambda: [journal.name for journal in store.journals("c")]):
        for part in read_documents(store, cut, columns=["id"]):
            found += part.documents.column("id").to_pylist()
    return sorted(found)


def decided(store: ps.OpenStore, number: int, *ids: int) -> tuple[CollectionSink, Decision]:
    sink, batch = CollectionSink(store.url, "c"), Batch(QUERY, number)
    part = sink.stage(batch, 0, iter([rows(*ids)]))
    assert part is not None
    return sink, Decision(batch, 0, (part,), sink.prepare(batch, [part]))


def let_go(store: ps.OpenStore) -> None:
    module._let_go((store.url, QUERY))


@pytest.mark.parametrize("way", ["by its ledger", "by the journals"])
def test_outcome_is_found_after_the_producer_is_gone(
    store: ps.OpenStore, tmp_path: Path, way: str
) -> None:
    """A batch before it by the same producer does not count, nor do others' rows after it."""
    for number in range(3):
        sink, before = decided(store, number, number)
        sink.commit(before)
    sink, committed = decided(store, 3, 3, 4)
    sink.commit(committed)
    let_go(store)
    others = list(range(100, 120))
    with store.producer() as producer:
        for each in others:
            producer.append("c", rows(each))
    for number in range(4, 7):
        sink, later = decided(store, number, number * 10)
        sink.commit(later)
    _, lost = decided(store, 7, 70)
    let_go(store)
    if way == "by the journals":
        for folder in ("producers", "retired"):
            for path in (tmp_path / "store" / folder).glob("[!.]*"):
                shutil.rmtree(path)
    everything = [0, 1, 2, 3, 4, 40, 50, 60, *others]
    assert seen(store) == everything
    assert len(store.ranges("c/part=%_0/000", 0, 1_000)) > 1, "the last segment is not all"
    sink.commit(committed)
    sink.commit(later)
    assert seen(store) == everything
    with pytest.raises(CommitFailedError, match="ended before it had committed"):
        sink.commit(lost)
    assert seen(store) == everything


def test_a_process_uses_one_producer_for_all_batches(store: ps.OpenStore) -> None:
    sinks = [decided(store, number, number) for number in range(5)]
    for sink, decision in sinks:
        sink.commit(decision)
        sink.commit(decision)
    assert seen(store) == list(range(5))
    assert len({decision.prepared.split('"after"')[0] for _, decision in sinks}) == 1


def test_a_producer_that_was_fenced_meanwhile_is_replaced(store: ps.OpenStore) -> None:
    sink, batch = CollectionSink(store.url, "c"), Batch(QUERY, 0)
    part = sink.stage(batch, 0, iter([rows(1, 2)]))
    assert part is not None
    sink.prepare(batch, [part])
    store.fence(module._HELD[store.url, QUERY].producer.id)
    commit_batch(sink, batch, [part])
    assert seen(store) == [1, 2]


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_damaged_part_is_told_and_nothing_is_committed(
    store: ps.OpenStore, tmp_path: Path, damage: str
) -> None:
    sink, decision = decided(store, 0, *range(100))
    path = tmp_path / "store" / "sinks" / decision.parts[0].name
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(CorruptStorageError, match=r"staged part .* is (gone|damaged)"):
        sink.commit(decision)
    store.recover()
    assert seen(store) == []


SOURCE = (
    "id BIGINT NOT NULL, at TIMESTAMP, price DOUBLE, source STRUCT<journal: STRING>, l ARRAY<INT>"
)


@pytest.mark.parametrize(
    ("frame", "meta", "words"),
    [
        ("id BIGINT, price FLOAT, at TIMESTAMP, l ARRAY<INT>", None, None),
        ("id TINYINT", None, None),
        ("price DOUBLE", None, "the frame has no column 'id', which in collection 'c' is part of"),
        ("id BIGINT, colour STRING", None, "a column 'colour', and collection 'c' has not: it has"),
        ("id DOUBLE", None, "column 'id' is DOUBLE in the frame, and BIGINT in collection 'c'"),
        ("id BIGINT, price DECIMAL(4,2)", None, "column 'price' is DECIMAL(4,2) in the frame"),
        ("id BIGINT, at TIMESTAMP_NTZ", None, "column 'at' is TIMESTAMP_NTZ in the frame"),
        ("id BIGINT, l ARRAY<STRING>", None, "column 'l' is ARRAY<STRING> in the frame, and ARRAY"),
        ("id BIGINT", "source", "the frame has no '_meta'"),
        ("id BIGINT, _meta", None, "Drop it with .drop('_meta'); or keep"),
        ("id BIGINT, _meta", "source", None),
        ("id BIGINT, _meta", "origin", "collection 'c' has no column 'origin'"),
        ("id BIGINT, _meta", "price", "column 'price' of collection 'c' is DOUBLE; it must be a"),
        ("id BIGINT, source STRUCT<journal: STRING>, _meta", "source", "which the frame has too"),
    ],
)
def test_frames_are_checked(frame: str, meta: str | None, words: str | None) -> None:
    schema = schema_from_ddl(frame.removesuffix(", _meta"))
    if frame.endswith("_meta"):
        schema = schema.append(META_FIELD)
    collection = ps.Collection.define("c", SOURCE, "id")
    if words is None:
        check_frame(collection, schema, meta)
        return
    with pytest.raises(ConfigurationError) as caught:
        check_frame(collection, schema, meta)
    assert words in str(caught.value)


def test_meta_goes_into_its_column_and_stays_null_where_it_is() -> None:
    meta = pa.array([{"journal": "a/000", "offset": 7}, None], META_FIELD.type)
    batch = pa.record_batch({"id": pa.array([1, 2]), "_meta": meta})
    collection = ps.Collection.define("c", SOURCE, "id")
    assert fitted(batch, collection, "source").to_pylist() == [
        {"id": 1, "source": {"journal": "a/000"}},
        {"id": 2, "source": None},
    ]
    assert fitted(batch, collection, None) is batch
