"""What is written and read while all this goes on, and what must have come of it.

Producers write orders and payments. One query adds orders up by their bucket, and writes each
bucket that changed to the collection `totals`. The other writes every order and payment, with its
place, to a table. A bucket is written for a few seconds and never again: a batch that was lost is
missed in the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import penstock as ps
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from tests.chaos.harness import Wrong

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres_server import Database

ORDERS, PAYMENTS, TOTALS = "orders", "payments", "totals"
FEED = f'[[binding]]\ncollection = "{ORDERS}"\n\n[[binding]]\ncollection = "{PAYMENTS}"\n'
TABLE = "arrived"
QUERIES = "totals", "rows"


def make_world(folder: Path, database: Database) -> ps.OpenStore:
    store = ps.open_store(folder / "store", durability="buffered", segment_bytes_max=500_000)
    order = "id STRING NOT NULL, bucket STRING NOT NULL, amount BIGINT"
    store.create(ps.Collection.define(ORDERS, order, "bucket"))
    store.create(ps.Collection.define(PAYMENTS, "id STRING NOT NULL, amount BIGINT", "id"))
    total = "bucket STRING NOT NULL, documents BIGINT, amount BIGINT, batch BIGINT"
    store.create(ps.Collection.define(TOTALS, total, "bucket"))
    (folder / "feed.toml").write_text(FEED)
    with database.connect() as connection:
        connection.execute(
            f"CREATE TABLE {TABLE} (journal text, position bigint, id text, amount bigint)"
        )
    return store


def check_world(store: ps.OpenStore, database: Database) -> dict[str, int]:
    """Raises Wrong, or says how much there was."""
    store.recover()
    arrived = _check_table(store, database)
    buckets, changes = _check_totals(store)
    with database.connect() as connection:
        prepared = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
    if prepared:
        raise Wrong(f"prepared transactions are left: {prepared}")
    return {"documents": arrived, "buckets": buckets, "changes of buckets": changes}


def _check_table(store: ps.OpenStore, database: Database) -> int:
    expected: Counter[tuple[object, ...]] = Counter()
    for collection in (ORDERS, PAYMENTS):
        for journal, offset, row in documents_of(store, collection, ["id", "amount"]):
            expected[journal, offset, row["id"], row["amount"]] += 1
    with database.connect() as connection:
        found = Counter(
            connection.execute(f"SELECT journal, position, id, amount FROM {TABLE}").fetchall()
        )
    missing, surplus = expected - found, found - expected
    if missing or surplus:
        raise Wrong(
            f"the table lacks {missing.total()} documents of {expected.total()}, for example "
            f"{list(missing)[:3]}, and has {surplus.total()} too many, for example "
            f"{list(surplus)[:3]}"
        )
    return expected.total()


def _check_totals(store: ps.OpenStore) -> tuple[int, int]:
    documents: Counter[str] = Counter()
    amounts: Counter[str] = Counter()
    for _, _, row in documents_of(store, ORDERS, ["bucket", "amount"]):
        documents[row["bucket"]] += 1
        amounts[row["bucket"]] += row["amount"]
    changes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for _, _, row in documents_of(store, TOTALS, ["bucket", "documents", "amount", "batch"]):
        changes[row["bucket"]].append((row["batch"], row["documents"], row["amount"]))
    for bucket in documents.keys() | changes.keys():
        found = sorted(changes[bucket])
        # One change a batch, and each of them has more documents than the one before.
        counts = [count for _, count, _ in found]
        batches = [batch for batch, _, _ in found]
        if counts != sorted(set(counts)) or batches != sorted(set(batches)):
            raise Wrong(f"changes of {bucket} came twice, or in a wrong order: {found}")
        last = found[-1][1:] if found else None
        if last != (documents[bucket], amounts[bucket]):
            wanted = documents[bucket], amounts[bucket]
            raise Wrong(f"{bucket} has {wanted} documents and amount, and its total says {last}")
    return len(documents), sum(map(len, changes.values()))


def documents_of(
    store: ps.OpenStore, collection: str, columns: list[str]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """As the batch reader sees them: journal, offset, and columns."""
    for cut in take_cut(store, lambda: [one.name for one in store.journals(collection)]):
        for part in read_documents(store, cut, columns=columns):
            offsets = part.offsets.tolist()
            rows = part.documents.to_pylist()
            yield from zip([cut.journal] * len(rows), offsets, rows, strict=True)
