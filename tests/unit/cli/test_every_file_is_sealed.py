"""One flipped bit never changes what a file says: it says the same, or that it is damaged.

For every kind of file that the product reads back. What a running product wrote is walked over,
and a file of a kind that is not in this list fails the test.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.inspection.kinds import inspect_file, is_lock, is_unfinished, kind_by_place
from penstock.epoch.decisions import Decision as EpochDecision
from penstock.epoch.decisions import Verdict
from penstock.epoch.lease import LeaseRecord
from penstock.errors import CorruptStorageError
from penstock.journal import Collection, open_store
from penstock.journal.file.ledger import parse_alive, parse_decision, parse_touches
from penstock.journal.file.store import parse_collection, parse_marker
from penstock.sealed import sealed_json, sealed_line, unsealed_json, unsealed_line
from penstock.shuffle.assigned import decode_assigned, settle_assignment
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.feed_sources import described
from penstock.sinks.batches import commit_batch
from penstock.sinks.collection import CollectionSink
from penstock.sinks.parquet import ParquetSink, manifest_files
from penstock.sinks.two_phase import Batch, Decision, Part
from penstock.storage import Storage
from penstock.watch.encoding import decode_batches, decode_state, encode_batches, encode_state
from penstock.watch.state import SparkBatch
from tests.unit.watch.test_watch import state as example_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ORDERS: Final = Collection.define(
    "orders", "id BIGINT NOT NULL, region STRING", "id", "region", retention_bytes=1_000_000
)
TOUCH: Final = ["orders/region=eu/000", 17, 2242281047408277376]
FEED: Final = Feed("feed", (Binding("orders", key=("region",), priority=1),))


def _assignment() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        settle_assignment(Storage.open(folder), (1, 2), 0)
        (path,) = Path(folder).glob("assignments/*")
        return path.read_bytes()


SMALL: Final[dict[str, tuple[bytes, Callable[[bytes], Any]]]] = {
    # the kind of file: an example, and its reader
    "markers of stores": (
        sealed_json({"format": 1, "durability": "synced"}),
        lambda data: parse_marker("file", data),
    ),
    "collections": (sealed_json(ORDERS.to_json()), lambda data: parse_collection("file", data)),
    "alive": (
        sealed_json({"name": "job", "pid": 4711, "host": "here", "at": 1.5}),
        lambda data: parse_alive("file", data),
    ),
    "touched, while its owner lives": (
        sealed_line(TOUCH) + sealed_line(["payments/000", 3, 2242281047415788288]),
        lambda data: parse_touches("file", data, may_grow=True),
    ),
    "touched": (sealed_line(TOUCH), lambda data: parse_touches("file", data)),
    "decision, completed": (
        sealed_line({"clock": 2242281047408277392, "touches": [TOUCH]}),
        lambda data: parse_decision("file", data),
    ),
    "aborts by hand": (
        sealed_line({"producer": "97b3b1ef8030", "by": "ada", "at": 1.5}),
        lambda data: unsealed_line("file", data),
    ),
    "epoch decisions": (
        EpochDecision(7, Verdict.COMMIT, 2, 10, (1, 2), 90).to_bytes(),
        EpochDecision.from_bytes,
    ),
    "lease records": (LeaseRecord(3, 1, 2, "x", 5.0).to_bytes(), LeaseRecord.from_bytes),
    "assignments": (_assignment(), lambda data: decode_assigned("file", data)),
    "sink decisions": (
        Decision(Batch("q", 4), 1, (Part("staged/q/1", 3, 4, 5),), '{"after": 22}').to_bytes(),
        Decision.from_bytes,
    ),
    "manifests of Parquet sinks": (
        sealed_json({"version": 1, "files": [["data/q/0/1.parquet", 3, 400]]}),
        manifest_files,
    ),
    "feeds": (
        sealed_json({"format": 1, "bindings": described(FEED)}),
        lambda data: unsealed_json("file", data, ("format", "bindings")),
    ),
    "positions of `penstock shuffle`": (
        sealed_json({"format": 1, "of": {}, "epoch": 3, "holdings": {"1": {}}}),
        lambda data: unsealed_json("file", data, ("format", "of", "epoch", "holdings")),
    ),
    "states of feeds": (encode_state(example_state()), decode_state),
    "batches of Spark": (encode_batches([SparkBatch(5, 1.5, 100, 12, {})]), decode_batches),
}
FILES: Final = {
    # kinds that one flip of many files is tried of, through `inspect`, which has their readers
    *(kind for kind in SMALL if not kind.startswith(("alive", "touched", "decision"))),
    "producers' files", "journal segments", "heads of journals", "queue segments", "queue floors",
    "snapshot manifests", "snapshot parts", "marks of committed snapshots",
    "staged parts of sinks",
}  # fmt: skip
FLIPS_OF_A_FILE: Final = 24


@pytest.mark.parametrize("kind", SMALL)
def test_every_flipped_bit_and_every_cut_is_told_or_changes_nothing(kind: str) -> None:
    whole, read = SMALL[kind]
    meaning = read(whole)
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptStorageError):
            assert read(bytes(flipped)) == meaning, f"bit {bit}: {bytes(flipped)!r}"
    if kind != "touched, while its owner lives":  # there it is a line that is just being written
        for end in range(1, len(whole) - 1):
            with pytest.raises(CorruptStorageError):
                read(whole[:end])


@pytest.mark.parametrize("kind", [kind for kind in SMALL if SMALL[kind][0].startswith(b"{")])
def test_what_an_older_release_wrote_is_read(kind: str) -> None:
    whole, read = SMALL[kind]
    fields = json.loads(whole)
    del fields["checksum"]
    for indent in (None, 2):
        assert read(json.dumps(fields, indent=indent).encode()) == read(whole)
    # A seal that is damaged beyond recognition does not make it an old file.
    with pytest.raises(CorruptStorageError):
        read(json.dumps(fields | {"chexksum": "0" * 16}).encode())


def test_touches_of_an_older_release_are_read() -> None:
    assert parse_touches("file", (json.dumps(TOUCH) + "\n").encode() * 2)[1].offset == 17


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a store, its producers, sinks and a shuffle have written."""
    root = tmp_path_factory.mktemp("left")
    rows = pa.RecordBatch.from_pylist([{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}])
    with open_store(root / "store", durability="buffered") as store:
        store.create(ORDERS)
        writer = store.producer("job")
        writer.append("orders", rows)
        with writer.transaction() as transaction:
            transaction.append("orders", rows)
        aborted = store.producer("aborted")
        aborted.transaction().append("orders", rows)
        store.abort(aborted.id, "ada")
        writer.transaction().append("orders", rows)  # stays open
        for sink in (CollectionSink(store.url, "orders"), ParquetSink(str(root / "parquet"))):
            for batch in (Batch("q", 0), Batch("q", 1)):
                part = sink.stage(batch, 0, iter([rows]))
                assert part is not None
                commit_batch(sink, batch, [part])
            sink.stage(Batch("q", 2), 0, iter([rows]))
        command = ["shuffle", "--store", str(root / "store"), "--folder", str(root / "feed"),
                   "--collection", "orders", "--carrier", "local", "--members", "2",
                   "--epoch-seconds", "0.05"]  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        writer.close()
    return root


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        shown = path.relative_to(root)
        if path.is_file() and not is_lock(shown) and not is_unfinished(shown):
            if path.suffix == ".parquet":
                continue  # written for others, and read by them
            yield path


def test_every_file_that_a_running_product_wrote_is_of_a_kind_that_is_sealed(left: Path) -> None:
    found = set()
    for path in _files(left):
        placed = kind_by_place(path)
        assert placed is not None, f"{path} is of no known kind: list it, with its reader"
        assert placed[0] in FILES, f"{path}: show here that a flipped bit of it is told"
        report = inspect_file(path, 0)
        assert not report.damages, path
        assert not any("without a checksum" in note for note in report.notes), path
        found.add(placed[0])
    assert found >= FILES - {"feeds", "batches of Spark", "snapshot parts"}  # of Spark, and large


def test_a_flipped_bit_of_any_file_is_told_or_changes_nothing(left: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(left, tmp_path / "copy"))
    chosen: dict[str, Path] = {}
    for path in _files(copy):
        placed = kind_by_place(path)
        if placed is not None and path.stat().st_size:
            chosen.setdefault(f"{placed[0]} {path.name if 'producers' in placed[0] else ''}", path)
    drawn = random.Random(14)
    for path in chosen.values():
        whole, meaning = path.read_bytes(), _meaning(path)
        for bit in drawn.sample(range(len(whole) * 8), min(FLIPS_OF_A_FILE, len(whole) * 8)):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            found = _meaning(path)
            assert found is None or found == meaning, f"{path}, bit {bit}"
        path.write_bytes(whole)


def _meaning(path: Path) -> dict[str, Any] | None:
    """None if the file says that it is damaged, or that its end is not needed."""
    report = inspect_file(path, None)
    excused = ("behind the newest epoch", "no decision names it")
    if report.damages or any(words in note for note in report.notes for words in excused):
        return None
    return report.as_json()
