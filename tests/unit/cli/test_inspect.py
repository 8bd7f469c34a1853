"""`penstock inspect`: every kind of file is known, read, and found out when it is damaged.

Real files of a real store, a real queue, a real shuffle. Bytes are flipped and files cut at every
place; what the tests ask is whether that is told, and where.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.inspection.folders import inspect_folder
from penstock.cli.inspection.kinds import UnknownFileError, inspect_file
from penstock.epoch.lease import LeaseRecord
from penstock.frontier import encode_chunks, from_json
from penstock.journal import Collection, open_store
from penstock.journal.file import head as head_module
from penstock.shuffle.queue.log import QueueLog
from penstock.shuffle.queue.segment import list_segments, segment_path
from penstock.sinks.batches import Decisions
from penstock.sinks.collection import CollectionSink
from penstock.sinks.two_phase import Batch, Decision
from penstock.snapshot import SnapshotStore
from penstock.storage import Storage
from tests.conformance.waiting import Background
from tests.unit.journal.journal_files import Writer, journal_folder, open_numbers
from tests.unit.journal.journal_files import append as append_payloads
from tests.unit.shuffle.queue.queues import Row, append, producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from penstock.journal import OpenStore

    Run = Callable[..., Result]

SOURCE = (0, "orders/000", producer(1))
WRITTEN_MAX = 300


def _damages(path: Path) -> list[str]:
    return [str(damage) for damage in inspect_file(path, 0).damages]


def _damaged_copies(path: Path, step: int = 1) -> Iterator[str]:
    """The file with one byte flipped, or cut, at every place; as it was in the end."""
    whole = path.read_bytes()
    try:
        for place in range(0, len(whole), step):
            flipped = bytearray(whole)
            flipped[place] ^= 0x41
            path.write_bytes(flipped)
            yield f"byte {place} flipped"
            path.write_bytes(whole[:place])
            yield f"cut at {place}"
    finally:
        path.write_bytes(whole)


def _assert_all_told(path: Path, step: int = 1) -> None:
    assert not _damages(path)
    for what in _damaged_copies(path, step):
        assert _damages(path), what
    assert not _damages(path)


# Journals


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The folder of a journal with two segments: two rows, then a row and a transaction."""
    with open_store(tmp_path / "store", durability="buffered", segment_bytes_max=300) as store:
        store.create(Collection.define("n", "id BIGINT NOT NULL", key="id"))
        with store.producer() as writer:
            writer.append("n", [{"id": 1}])
            writer.append("n", [{"id": 2}])
            with writer.transaction() as transaction:
                transaction.append("n", [{"id": 3}])
    folder = tmp_path / "store" / "journals" / "n" / "000"
    assert len(sorted(folder.glob("*.segment"))) >= 2
    return folder


@pytest.mark.slow
def test_every_flipped_byte_and_every_cut_of_a_segment_is_told(journal: Path) -> None:
    first, *_, last = sorted(journal.glob("*.segment"))
    _assert_all_told(first)
    _assert_all_told(last)


def test_flipped_bytes_and_cuts_of_a_segment_are_told(journal: Path) -> None:
    for path in journal.glob("*.segment"):
        _assert_all_told(path, step=13)


def test_damage_of_a_segment_says_where_and_why(journal: Path, run: Run) -> None:
    path = min(journal.glob("*.segment"))
    data = path.read_bytes()
    at = data.index(b"PSF1")
    path.write_bytes(data[: at + 80] + bytes([data[at + 80] ^ 1]) + data[at + 81 :])
    said = run("inspect", str(path), code=1).stdout
    assert "DAMAGED" in said
    assert f"damaged: byte {at}: the frame's checksum does not match (rows from 0)" in said
    found = json.loads(run("inspect", str(path), "--json", code=1).stdout)
    assert (found["sound"], found["damages"][0]["byte"]) == (False, at)
    path.unlink()
    shutil.copy(max(journal.glob("*.segment")), path)
    assert "this is the segment" in run("inspect", str(path), code=1).stdout


def test_rows_of_a_segment_are_shown_up_to_the_limit(run: Run, store: OpenStore) -> None:
    with store.producer() as writer:
        writer.append(
            "orders", [{"id": n, "region": "eu", "amount": Decimal("1.5")} for n in range(30)]
        )
        with writer.transaction() as transaction:
            transaction.append("orders", [{"id": 77, "region": "eu"}, {"id": 78, "region": "us"}])
    path = str(_root(store) / "journals/orders/region=eu+000/00000000000000000000.segment")
    shown = run("inspect", path).stdout
    assert "journal segment, sound" in shown
    assert "and 12 rows more; --all shows them" in shown
    every = json.loads(run("inspect", path, "--all", "--json").stdout)
    assert [row.get("id") for row in every["rows"]] == [*range(30), 77, None]
    assert [row["_kind"] for row in every["rows"][-2:]] == ["CONTINUE", "ACK"]
    assert every["rows"][-1]["hints"] == ["orders/region=us/000"]
    assert every["rows"][0]["amount"] == "1.50"
    assert (every["rows_total"], every["end_offset"]) == (32, 32)
    none = json.loads(run("inspect", path, "--limit", "0", "--json").stdout)
    assert (none["rows"], none["rows_total"], none["sound"]) == ([], 32, True)


def test_rows_of_a_later_schema_are_read_with_the_collections_file(store: OpenStore) -> None:
    with store.producer() as writer:
        writer.append("orders", [{"id": 1, "region": "eu"}])
        store.evolve(
            "orders",
            "id BIGINT NOT NULL, region STRING, amount DECIMAL(10,2), at TIMESTAMP, note STRING",
        )
        writer.append("orders", [{"id": 2, "region": "eu", "note": "late"}])
    path = _root(store) / "journals/orders/region=eu+000/00000000000000000000.segment"
    assert [row.get("note") for row in inspect_file(path, None).rows] == [None, "late"]
    copy = Path(shutil.copy(path, path.parents[4] / "copied"))
    lone = inspect_file(copy, None)
    assert (lone.kind, lone.damages, lone.rows_total, len(lone.rows)) == (
        "journal segment", [], 2, 1,
    )  # fmt: skip
    assert any("schema version 2" in note for note in lone.notes)


def test_an_unfinished_end_is_a_note_and_nothing_is_mended(journal: Path, run: Run) -> None:
    path = max(journal.glob("*.segment"))
    data = path.read_bytes()
    for tail in (b"PSF1", b"\0" * 200, data[data.index(b"PSF1") :][:90]):
        path.write_bytes(data + tail)
        said = run("inspect", str(path)).stdout
        assert "sound" in said
        assert f"unfinished end at byte {len(data):,}" in said
        assert path.read_bytes() == data + tail


def test_an_append_without_its_last_frame_is_an_unfinished_end(tmp_path: Path) -> None:
    with open_numbers(tmp_path) as store:
        writer = Writer()
        append_payloads(store, writer.documents([1]))
    (path,) = journal_folder(tmp_path).glob("*.segment")
    (payload,) = writer.documents([2])
    with path.open("ab") as file:
        file.write(payload.header(1, 0, goes_on=True) + payload.body.to_pybytes())
    report = inspect_file(path, None)
    assert not report.damages
    assert any("an append is cut short" in note for note in report.notes)
    assert report.facts["end_offset"] == 1


def test_a_damaged_head_and_missing_segments_are_told(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "_READ_TRIES_MAX", 2)
    head = journal / "head"
    whole = head.read_bytes()
    used = [*range(32), *range(64, 96), *range(128, 160)]
    for place in used:
        head.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        assert any("fails its checksum" in one for one in _damages(head)), place
        head.write_bytes(whole[:place])
        assert _damages(head), place
    head.write_bytes(whole)
    assert not _damages(head)
    for path in sorted(journal.glob("*.segment")):
        hidden = path.rename(path.with_suffix(".gone"))
        assert not inspect_folder(journal, verify=False).damages
        assert inspect_folder(journal, verify=True).damages, path.name
        hidden.rename(path)
    assert not inspect_folder(journal, verify=True).damages


# Producers and collections


def test_a_producers_decision_is_checked_byte_by_byte(journal: Path) -> None:
    (completed,) = (journal.parents[2] / "retired").glob("*/completed")
    assert not _damages(completed)
    whole = completed.read_bytes().rstrip(b"\n")
    for what in _damaged_copies(completed):
        if completed.read_bytes() != whole:  # its last newline says nothing
            assert _damages(completed), what
    report = inspect_file(completed, None)
    assert [row["journal"] for row in report.rows] == ["n/000"]


def test_files_of_a_living_producer(run: Run, store: OpenStore) -> None:
    with store.producer("importer") as writer, writer.transaction() as transaction:
        transaction.append("orders", [{"id": 1, "region": "eu"}])
        folder = _root(store) / "producers" / str(writer.id)
        alive = json.loads(run("inspect", str(folder / "alive"), "--json").stdout)
        assert (alive["alive"], alive["name"]) == (True, "importer")
        touched = json.loads(run("inspect", str(folder / "touched"), "--json").stdout)
        assert [row["journal"] for row in touched["rows"]] == ["orders/region=eu/000"]
        (folder / "touched").write_text("nonsense\n")
        assert (
            "its checksum does not match" in run("inspect", str(folder / "touched"), code=1).stdout
        )
        (folder / "touched").write_text("")


@pytest.mark.parametrize("path", ["collections/orders.json", "penstock.json"])
def test_a_record_of_an_older_release_says_so_and_is_told_when_cut(
    run: Run, store: OpenStore, path: str
) -> None:
    file = _root(store) / path
    sealed = file.read_bytes()
    assert "only its form was checked" not in run("inspect", str(file)).stdout
    fields = json.loads(sealed)
    del fields["checksum"]
    file.write_text(json.dumps(fields))
    assert "only its form was checked" in run("inspect", str(file)).stdout
    for data in (sealed, file.read_bytes()):
        for place in range(len(data)):
            file.write_bytes(data[:place])
            assert _damages(file), place
    file.write_bytes(sealed)


# Queues


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """A queue with several segments, two blocks in the first."""
    folder = tmp_path / "queue"
    with QueueLog.open(folder, 0, segment_bytes_max=2_000) as log:
        for block in range(4):
            rows = [Row(*SOURCE, number, number) for number in (2 * block + 2, 2 * block + 1)]
            append(log, rows, None, [1, 0])
        log.sync()
    assert len(list_segments(folder)) >= 2
    return folder


def test_rows_of_a_queue_segment_come_in_their_order(queue: Path) -> None:
    path = segment_path(queue, 1)
    report = inspect_file(path, None)
    assert [row["id"] for row in report.rows[:4]] == [2, 1, 4, 3]
    assert {row["_journal"] for row in report.rows} == {"orders/000"}
    _assert_all_told(path, step=61)


@pytest.mark.slow
def test_every_flipped_byte_and_every_cut_of_a_queue_segment_is_told(queue: Path) -> None:
    _assert_all_told(segment_path(queue, 1), step=2)


def test_damage_of_a_block_says_which_and_the_rest_is_read(queue: Path, run: Run) -> None:
    path = segment_path(queue, 1)
    data = bytearray(path.read_bytes())
    second = data.index(b"PSQB", data.index(b"PSQB") + 4)
    path.write_bytes(data[:second])  # the next segment knows how many blocks there were
    assert _damages(path) == [f"block 1, byte {second:,}: it is missing: the file ends before it"]
    data[second - 1] ^= 1  # the end of the first block's last part
    path.write_bytes(data)
    found = json.loads(run("inspect", str(path), "--json", code=1).stdout)
    assert [(one["block"], "checksum of a part" in one["reason"]) for one in found["damages"]] == [
        (0, True)
    ]
    assert 3 in [row["id"] for row in found["rows"]]
    data[second] ^= 1
    path.write_bytes(data)
    said = run("inspect", str(path), code=1).stdout
    assert f"block 1, byte {second:,}: no block begins at byte {second}" in said


def test_a_floor_is_checked_byte_by_byte_and_misses_lost_segments(queue: Path) -> None:
    _assert_all_told(queue / "floor")
    path = segment_path(queue, 1)
    path.rename(queue / "elsewhere")
    assert _damages(queue / "floor") == [f"{path.name}: the file is missing"]
    # A file that was copied out of its queue says itself what it is.
    assert inspect_file(queue / "elsewhere", None).kind == "queue segment"
    assert not _damages(queue / "elsewhere")


def test_a_segment_of_another_queue_is_told(queue: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with QueueLog.open(other, 0) as log:
        append(log, [Row(*SOURCE, 1, 1)])
        log.sync()
    shutil.copy(segment_path(other, 1), segment_path(queue, 1))
    assert any("and this is queue" in one for one in _damages(segment_path(queue, 1)))


def test_vnodes_that_a_queue_gave_away_are_counted(tmp_path: Path) -> None:
    with QueueLog.open(tmp_path, 0) as log:
        append(log, [Row(*SOURCE, 1, 1)])
        log.append((), None, {}, gives=[4, 5, 200])
        log.append((), None, {}, gives=[5, 6])
        log.sync()
    path = segment_path(tmp_path, 1)
    report = inspect_file(path, None)
    assert (report.facts["blocks"], report.facts["vnodes_given_away"]) == (3, 4)
    _assert_all_told(path, step=61)


# Snapshots


def test_manifests_and_parts_are_checked_byte_by_byte(tmp_path: Path) -> None:
    with SnapshotStore(Storage.open(tmp_path), 3).begin(5) as writer:
        writer.add("state", b"some state")
        writer.finish({"offsets": [1]}, 77)
    (manifest,) = (tmp_path / "member-3" / "manifests").iterdir()
    (part,) = (tmp_path / "member-3" / "parts").iterdir()
    _assert_all_told(manifest, step=3)
    _assert_all_told(part)
    report = inspect_file(manifest, None)
    assert (report.facts["member"], report.facts["epoch"], report.facts["watermark"]) == (3, 5, 77)
    assert [(row["part"], row["sound"]) for row in report.rows] == [("state", True)]
    part.write_bytes(b"some spate")
    assert any("does not match its checksum" in one for one in _damages(manifest))
    part.write_bytes(b"other state")
    assert any("has 11 bytes; 10 were written" in one for one in _damages(manifest))
    manifest.unlink()
    orphan = inspect_file(part, None)
    assert not orphan.damages
    assert any("no manifest names it" in note for note in orphan.notes)


# A shuffle's folder: all that epochs and members leave


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `penstock shuffle` left. Made once; the tests damage copies."""
    root = tmp_path_factory.mktemp("shuffled")
    with open_store(root / "store", durability="buffered") as store:
        store.create(Collection.define("orders", "id BIGINT NOT NULL, region STRING", key="id"))
        with store.producer() as writer:
            for begin in (0, 50):
                writer.append("orders", [{"id": number} for number in range(begin, begin + 50)])
    command = ["shuffle", "--store", str(root / "store"), "--folder", str(root / "feed"),
               "--collection", "orders", "--carrier", "local", "--members", "2",
               "--epoch-seconds", "0.05"]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return root / "feed"


@pytest.fixture
def feed(shuffled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shuffled, tmp_path / "feed"))


def test_a_shuffles_folder_is_verified_and_every_damaged_file_is_named(
    feed: Path, run: Run
) -> None:
    before = _tree(feed)
    shown = run("inspect", str(feed)).stdout
    assert "feed, not verified" in shown
    assert "feed, sound" in run("inspect", str(feed), "--verify").stdout
    assert _tree(feed) == before
    report = inspect_folder(feed, verify=True)
    for kind in ("queue segments", "queue floors", "snapshot manifests",
                 "marks of committed snapshots", "epoch decisions", "lease records",
                 "assignments", "positions of `penstock shuffle`", "states of feeds"):  # fmt: skip
        assert report.groups[kind].files, kind
    assert "not ours" not in report.groups
    told = 0
    for path in sorted(feed.rglob("*")):
        if not path.is_file() or path.name in ("lock",) or path.parent.name == "committed":
            continue
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        damaged = inspect_file(path, 0)
        # A queue's end behind the newest epoch is written again: that is no damage.
        assert damaged.damages or any("behind the newest epoch" in n for n in damaged.notes), path
        path.write_bytes(data)
        told += 1
    assert told >= 10


def test_parts_of_a_shuffles_snapshot_are_understood(feed: Path) -> None:
    """In their manifests, where small ones are, and in files of their own."""
    kinds: dict[str, set[str]] = {"within": set(), "files": set()}
    for member in (0, 1):
        store = SnapshotStore(Storage.open(feed / "cluster" / "snapshots"), member)
        newest = store.load(store.epochs()[-1])
        path = feed / "cluster" / "snapshots" / f"member-{member}" / newest.attempt.manifest
        report = inspect_file(path, None)
        assert not report.damages, report.damages
        for name, within in report.facts["within"].items():
            assert within["rows"] or name == "consumed", within
            kinds["within"].add(name)
        with store.begin(newest.epoch + 1) as writer:
            for name in newest.parts:
                writer.add(name, newest.part(name))
            writer.finish()
    for path in sorted(feed.glob("cluster/snapshots/*/parts/*")):
        report = inspect_file(path, None)
        assert not report.damages, report.damages
        assert report.rows or report.facts["part"] == "consumed", path
        kinds["files"].add(str(report.facts["part"]))
    assert kinds["within"] == kinds["files"] == {"frontier", "consumed", "queue", "slice-0"}


def test_damage_within_an_epoch_makes_the_exit_code_1(feed: Path, run: Run) -> None:
    manifest = max(feed.glob("cluster/snapshots/member-1/manifests/*"))
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"]")
    found = json.loads(run("inspect", str(feed), "--verify", "--json", code=1).stdout)
    assert found["sound"] is False
    assert {one["file"] for one in found["damages"]} == {str(manifest)}
    assert "does not match its checksum" in found["damages"][0]["reason"]


# Records, sinks, frontiers


def test_records_under_wrong_names_are_told(feed: Path, tmp_path: Path) -> None:
    decision = min((feed / "cluster" / "decisions").iterdir())
    moved = decision.with_name(f"{999:020}")
    shutil.copy(decision, moved)
    assert any("was put under another name" in one for one in _damages(moved))
    # Anywhere else it is known by its fields.
    assert inspect_file(Path(shutil.copy(decision, tmp_path / "x")), 0).kind == "epoch decision"
    lease = tmp_path / "y"
    lease.write_bytes(LeaseRecord(7, 2, 1, "abc", 5.0).to_bytes())
    assert inspect_file(lease, 0).facts["term"] == 2


def test_decisions_and_staged_parts_of_a_sink(store: OpenStore, run: Run) -> None:
    sink, batch = CollectionSink(store.url, "orders"), Batch("query-a", 4)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}])
    part, lost = (sink.stage(batch, number, iter([rows])) for number in (0, 1))
    assert part is not None
    assert lost is not None
    Decisions(sink.records, "query-a").decide(Decision(batch, 0, (part,), "{}"))
    folder = _root(store) / "sinks"
    (decision,) = (folder / "decisions" / "query-a").iterdir()
    found = json.loads(run("inspect", str(decision), "--json").stdout)
    assert (found["kind"], found["batch"], found["rows"][0]["staged"]) == (
        "sink decision", 4, "sound",
    )  # fmt: skip
    staged = folder / part.name
    assert [row["id"] for row in inspect_file(staged, None).rows] == [1, 2]
    for what in _damaged_copies(staged, step=11):
        assert _damages(staged), what
        assert _damages(decision), what
    assert any("no decision names it" in n for n in inspect_file(folder / lost.name, 0).notes)


def test_a_frontier_is_read_as_json_and_as_chunks(run: Run, store: OpenStore) -> None:
    with store.producer() as writer:
        writer.append("orders", [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}])
    text = run("journals", "frontier", "orders", "--json").stdout
    folder = _root(store).parent
    as_json, as_chunks = folder / "now.json", folder / "now.frontier"
    as_json.write_text(text)
    chunks = list(encode_chunks(from_json(text), journals_per_chunk_max=1))
    as_chunks.write_bytes(b"".join(chunks))
    one, two = (inspect_file(path, None) for path in (as_json, as_chunks))
    assert one.rows == two.rows
    assert [row["journal"] for row in one.rows] == ["orders/region=eu/000", "orders/region=us/000"]
    for what in _damaged_copies(as_chunks, step=3):
        assert _told_or_unknown(as_chunks), what
    data = as_json.read_bytes().rstrip()
    for place in range(0, len(data), 3):
        as_json.write_bytes(data[:place])
        assert _told_or_unknown(as_json), place


def _told_or_unknown(path: Path) -> bool:
    """A file that nothing but its beginning tells is unknown without it."""
    try:
        return bool(_damages(path))
    except UnknownFileError:
        return True


def test_feed_notes(tmp_path: Path) -> None:
    note = tmp_path / "feed.json"
    note.write_text(json.dumps({"format": 1, "bindings": [{"collection": "orders", "key": []}]}))
    assert [row["collection"] for row in inspect_file(note, None).rows] == ["orders"]
    for text in ("{", "[]", '{"format": 1}'):
        note.write_text(text)
        assert _damages(note), text


# The command


def test_unknown_files_and_folders_are_refused_with_what_was_looked_for(
    run: Run, tmp_path: Path
) -> None:
    strange = tmp_path / "strange"
    strange.write_text("hello")
    said = run("inspect", str(strange), code=1).stderr
    assert "no file of Penstock's" in said
    assert "queue segments" in said
    marker = str(tmp_path / "store" / "penstock.json")
    several = run("inspect", str(strange), marker, "--json", code=1)
    assert [one["kind"] for one in json.loads(several.stdout)] == ["marker of a store"]
    assert "no file of Penstock's" in several.stderr
    (tmp_path / "empty").mkdir()
    assert "has no file of Penstock's" in run("inspect", str(tmp_path / "empty"), code=1).stderr
    assert "does not exist" in run("inspect", str(tmp_path / "nothing"), code=2).stderr


def test_several_paths_give_a_list_and_one_gives_one(run: Run, store: OpenStore) -> None:
    marker = str(_root(store) / "penstock.json")
    both = json.loads(run("inspect", marker, str(_root(store)), "--json").stdout)
    assert [one["kind"] for one in both] == ["marker of a store", "store"]
    assert json.loads(run("inspect", marker, "--json").stdout) == both[0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    assert "_PENSTOCK_COMPLETE" in script
    found = json.loads(run("completion", shell, "--json").stdout)
    assert found == {"shell": shell, "script": script.removesuffix("\n")}


def test_completion_answers_a_shell() -> None:
    asked = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock ins", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="penstock", env=asked)
    assert result.output.split() == ["plain,inspect"]


def test_every_command_has_help_examples_and_json() -> None:
    def commands(group: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        for command in group.commands.values():
            yield (*name, command.name), command
            if hasattr(command, "commands"):
                yield from commands(command, (*name, command.name))

    for name, command in commands(app):
        assert command.help, name
        assert "Examples:" in command.epilog, name
        if not hasattr(command, "commands"):
            options = [option for parameter in command.params for option in parameter.opts]
            assert "--json" in options, name


def _root(store: OpenStore) -> Path:
    return Path(store.url.removeprefix("file://"))


def _tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_store_that_is_written_to_is_not_called_damaged(tmp_path: Path) -> None:
    """Small segments, a retention and transactions: heads move, segments roll and go meanwhile."""
    root = tmp_path / "busy"
    numbers = Collection.define("n", "id BIGINT NOT NULL", key="id", retention_bytes=4_000)
    with open_store(root, durability="buffered", segment_bytes_max=700) as store:
        store.create(numbers)
        stop, written = threading.Event(), itertools.count()

        def write() -> None:
            with store.producer() as writer:
                while not stop.is_set() and next(written) < WRITTEN_MAX:
                    writer.append("n", [{"id": 1}])

        writing = Background(write)
        rounds = 0
        try:
            while writing.running or rounds < 2:
                report = inspect_folder(root, verify=True)
                assert not report.damages, report.damages
                rounds += 1
        finally:
            stop.set()
        writing.result()
    assert not inspect_folder(root, verify=True).damages
