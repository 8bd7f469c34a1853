"""What a store holds, as data and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from penstock.cli import terminal
from penstock.ddl import schema_to_ddl
from penstock.errors import CorruptStorageError
from penstock.journal.names import Selector, dashed, decode_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.journal.store import ReadableStore


def describe(
    store: ReadableStore,
    name: str,
    partitions: str = "",
    open_by_journal: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """A collection and its journals, as JSON has them."""
    collection = store.collection(name)
    selector = Selector.parse(partitions, collection.partition_by)
    if open_by_journal is None:
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
        "external": collection.is_external,
        "journals": journals,
    }


def describe_all(store: ReadableStore) -> tuple[list[dict[str, Any]], list[str]]:
    """Every collection that can be read, and what is wrong with the others."""
    found, damages = [], []
    open_by_journal = store.open_transactions()  # once: a broker is asked for it
    for name in store.collections():
        try:
            found.append(describe(store, name, open_by_journal=open_by_journal))
        except CorruptStorageError as damage:
            damages.append(str(damage))
    return found, damages


def show(found: Sequence[dict[str, Any]], *, detailed: bool, store_url: str) -> None:
    console = terminal.output()
    if store_url.startswith("kafka://") and not detailed:
        console.print(_topics_table(found) if found else f"{store_url} has no topic yet")
        return
    if not found:
        console.print(f"{store_url} has no collections yet; make one:")
        console.print('  penstock journals create NAME --key id --schema "id BIGINT NOT NULL"')
    for collection in found:
        console.print(_headline(collection))
        if detailed:
            for line in _details(collection):
                console.print(line)
        if collection["external"]:
            console.print(_partitions_table(collection["journals"]))
        elif collection["journals"]:
            console.print(_journals_table(collection["journals"]))
        else:
            console.print("  no journals yet: the first append makes them\n")


def _headline(collection: dict[str, Any]) -> Text:
    rows = sum(journal["rows"] for journal in collection["journals"])
    name = (collection["collection"], "bold")
    if collection["external"]:
        count = terminal.counted(len(collection["journals"]), "partition")
        return Text.assemble(name, f": {count}; {terminal.counted(rows, 'offset')} kept")
    parts = [
        f"version {collection['version']}",
        f"key {', '.join(collection['key'])}",
        f"partitioned by {', '.join(collection['partition_by'])}"
        * bool(collection["partition_by"]),
        terminal.counted(len(collection["journals"]), "journal"),
        terminal.counted(rows, "row"),
    ]
    said = "; ".join(part for part in parts if part)
    return Text.assemble(name, f": {said}")


def _details(collection: dict[str, Any]) -> list[Text]:
    lines = [Text.assemble(("  schema     ", "dim"), collection["schema"])]
    if collection["external"]:
        return lines  # its retention is the cluster's business
    limits = []
    if collection["retention_seconds"] is not None:
        limits.append(f"{collection['retention_seconds']:,} seconds")
    if collection["retention_bytes"] is not None:
        limits.append(f"{collection['retention_bytes']:,} bytes")
    lines.append(Text.assemble(("  retention  ", "dim"), " and ".join(limits) or "for ever"))
    return lines


def _topics_table(topics: Sequence[dict[str, Any]]) -> Any:
    numbers = ("partitions", "offsets kept", "in flight")
    made = terminal.table("topic", *numbers, right=numbers)
    for topic in topics:
        journals = topic["journals"]
        made.add_row(
            Text(topic["collection"]),
            f"{len(journals):,}",
            f"{sum(one['rows'] for one in journals):,}",
            _in_flight(sum(one["open_transactions"] for one in journals)),
        )
    return made


def _partitions_table(partitions: Sequence[dict[str, Any]]) -> Any:
    numbers = ("first kept", "end", "in flight")
    made = terminal.table("partition", *numbers, right=numbers)
    for one in sorted(partitions, key=lambda each: int(each["labels"]["partition"])):
        made.add_row(
            Text(dashed(one["name"])),
            f"{one['first_kept']:,}",
            f"{one['write_head']:,}",
            _in_flight(one["open_transactions"]),
        )
    return made


def _in_flight(transactions: int) -> str:
    return f"{transactions:,}" if transactions else "-"


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
            _in_flight(journal["open_transactions"]),
            "suspended" if journal["suspended"] else "",
        )
    return made
