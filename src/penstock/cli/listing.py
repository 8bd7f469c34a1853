"""What a store holds, as data and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from penstock.cli import terminal
from penstock.ddl import schema_to_ddl
from penstock.errors import CorruptStorageError
from penstock.journal.names import Selector, decode_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.journal.store import ReadableStore


def describe(store: ReadableStore, name: str, partitions: str = "") -> dict[str, Any]:
    """A collection and its journals, as JSON has them."""
    collection = store.collection(name)
    selector = Selector.parse(partitions, collection.partition_by)
    open_by_journal = store.open_transactions()
    journals = []
    listed = store.journals(name, selector)
    probes = store.probes(journal.name for journal in listed)
    for journal in listed:
        probe = probes.get(journal.name)
        if probe is None:  # deleted just now
            continue
        labels = {column: decode_label(value) for column, value in journal.labels.items()}
        journals.append(
            {
                "name": journal.name,
                "labels": labels,
                "first_kept": probe.first_kept,
                "write_head": probe.write_head,
                "rows": probe.write_head - probe.first_kept,
                "suspended": probe.suspended,
                "open_transactions": open_by_journal.get(journal.name, 0),
            }
        )
    return {
        "collection": collection.name,
        "version": collection.version,
        "schema": schema_to_ddl(collection.schema),
        "key": list(collection.key),
        "partition_by": list(collection.partition_by),
        "retention_seconds": collection.retention_seconds,
        "retention_bytes": collection.retention_bytes,
        "journals": journals,
    }


def describe_all(store: ReadableStore) -> tuple[list[dict[str, Any]], list[str]]:
    """Every collection that can be read, and what is wrong with the others."""
    found, damages = [], []
    for name in store.collections():
        try:
            found.append(describe(store, name))
        except CorruptStorageError as damage:
            damages.append(str(damage))
    return found, damages


def show(found: Sequence[dict[str, Any]], *, detailed: bool, store_url: str) -> None:
    console = terminal.output()
    if not found:
        console.print(f"{store_url} has no collections yet; make one:")
        console.print('  penstock journals create NAME --key id --schema "id BIGINT NOT NULL"')
    for collection in found:
        console.print(_headline(collection))
        if detailed:
            for line in _details(collection):
                console.print(line)
        if collection["journals"]:
            console.print(_journals_table(collection["journals"]))
        else:
            console.print("  no journals yet: the first append makes them\n")


def _headline(collection: dict[str, Any]) -> Text:
    rows = sum(journal["rows"] for journal in collection["journals"])
    parts = [
        f"version {collection['version']}",
        f"key {', '.join(collection['key'])}",
        f"partitioned by {', '.join(collection['partition_by'])}"
        * bool(collection["partition_by"]),
        terminal.counted(len(collection["journals"]), "journal"),
        terminal.counted(rows, "row"),
    ]
    said = "; ".join(part for part in parts if part)
    return Text.assemble((collection["collection"], "bold"), f": {said}")


def _details(collection: dict[str, Any]) -> list[Text]:
    lines = [Text.assemble(("  schema     ", "dim"), collection["schema"])]
    limits = []
    if collection["retention_seconds"] is not None:
        limits.append(f"{collection['retention_seconds']:,} seconds")
    if collection["retention_bytes"] is not None:
        limits.append(f"{collection['retention_bytes']:,} bytes")
    lines.append(Text.assemble(("  retention  ", "dim"), " and ".join(limits) or "for ever"))
    return lines


def _journals_table(journals: Sequence[dict[str, Any]]) -> Any:
    numbers = ("first kept", "write head", "in flight")
    made = terminal.table("journal", "labels", *numbers, "", right=numbers)
    for journal in journals:
        labels = ", ".join(f"{column}={value}" for column, value in journal["labels"].items())
        made.add_row(
            Text(journal["name"]),
            Text(labels or "-"),
            f"{journal['first_kept']:,}",
            f"{journal['write_head']:,}",
            f"{journal['open_transactions']:,}" if journal["open_transactions"] else "-",
            "suspended" if journal["suspended"] else "",
        )
    return made
