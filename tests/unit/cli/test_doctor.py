"""`penstock doctor`: leftovers are found, and mended only where that was asked for."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.cli.checkup.findings import age
from penstock.cli.checkup.leftovers import check_leftovers, remove_feed
from penstock.cli.checkup.place import check_place
from penstock.errors import ConfigurationError
from penstock.ids import clock_duration, clock_from_unix
from penstock.journal import open_store
from penstock.journal.upkeep import newest_clock
from penstock.sinks.batches import Decisions
from penstock.sinks.collection import CollectionSink
from penstock.sinks.two_phase import Batch, Decision
from tests.unit.journal.journal_files import JOURNAL, Writer, ids_of, open_numbers
from tests.unit.journal.journal_files import append as append_payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from penstock.journal import OpenStore

    Run = Callable[..., Result]

HOUR = 3_600


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have in the machine's temporary folder is none of these tests' business."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def _found(run: Run, *arguments: str, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Findings by what was checked."""
    return _by_check(json.loads(run("doctor", "--json", *arguments, code=code).stdout))


def _left(store: OpenStore, *, repair: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The same of what is in the store only: to look for Java takes a while."""
    found = check_leftovers(store, _root(store), repair=repair)
    return _by_check([finding.as_json() for finding in found])


def _by_check(findings: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in findings:
        found.setdefault(finding["check"], []).append(finding)
    return found


def _severities(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["severity"] for finding in findings]


def _root(store: OpenStore) -> Path:
    return Path(store.url.removeprefix("file://"))


def _made_old(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_a_healthy_machine_and_store_need_nothing(run: Run, store: OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", [{"id": 1, "region": "eu"}])
        before = sorted(str(path) for path in _root(store).rglob("*"))
        said = run("doctor").stdout
        assert sorted(str(path) for path in _root(store).rglob("*")) == before
    assert "nothing needs attention" in said
    assert "python: Python 3" in said
    assert "file system: locks, atomic creation, renaming and syncing work" in said
    assert "no unfinished end in 1 journal" in said
    assert all(line.split()[0] in ("ok", "note") for line in said.splitlines() if ": " in line)


def test_without_a_store_only_the_machine_is_looked_at(run: Run, tmp_path: Path) -> None:
    found = _found(run, "--store", "")
    assert "disk" not in found
    assert _severities(found["store"]) == ["note"]
    found = _found(run, "--store", str(tmp_path / "nothing"), code=1)
    assert _severities(found["store"]) == ["error"]
    assert "--store" in run("doctor", "--remove-feed", "x", "--store", "", code=2).stderr


_DIES = """
import os, sys
import penstock.journal.transaction as transactions
from penstock.journal import open_store
wanted = transactions.Step[sys.argv[2]]
transactions.reached = lambda step: os._exit(9) if step is wanted else None
with open_store(sys.argv[1]) as store, store.producer("importer") as producer:
    with producer.transaction() as transaction:
        transaction.append("orders", [{"id": 7, "region": "eu"}, {"id": 8, "region": "us"}])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "said", "done"),
    [
        ("SYNCED", "with a transaction open in 2 journals", "rolled back in 2 journals"),
        ("DECIDED", "after its commit was decided, before 2 journals", "acknowledged in 2"),
    ],
)
def test_a_dead_producers_transaction_is_found_and_settled_on_request(
    *, run: Run, store: OpenStore, step: str, said: str, done: str
) -> None:
    command = [sys.executable, "-c", _DIES, store.url, step]
    died = subprocess.run(command, check=False, timeout=60, env=dict(os.environ))
    assert died.returncode == 9
    for found in (_left(store), _found(run, code=1)):  # looking changes nothing
        (finding,) = found["producers"]
        assert finding["severity"] == "warning"
        assert said in finding["what"]
        assert "--repair" in finding["todo"]
    repaired = _found(run, "--repair")["producers"]
    assert done in repaired[0]["what"]
    assert _severities(_left(store)["producers"]) == ["ok"]


def test_a_living_producer_is_left_alone(run: Run, store: OpenStore) -> None:
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": 1, "region": "eu"}])
        found = _left(store, repair=True)["producers"]
        assert [one["what"] for one in found] == ["1 producer alive, none dead"]
        transaction.append("orders", [{"id": 2, "region": "eu"}])
    assert len(run("read", "orders").stdout.splitlines()) == 2


def test_a_torn_end_is_noted_and_mended_on_request(store: OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", [{"id": 1, "region": "eu"}])
    store.close()
    (path,) = _root(store).glob("journals/orders/*/*.segment")
    whole = path.read_bytes()
    path.write_bytes(whole + b"PSF1 half a frame")
    (finding,) = _left(store)["journals"]
    assert finding["severity"] == "note"
    assert "orders/region=eu/000: 17 bytes of an unfinished append" in finding["what"]
    assert path.read_bytes() != whole
    assert "mended orders/region=eu/000" in _left(store, repair=True)["journals"][0]["what"]
    assert path.read_bytes() == whole
    kept, fine = _left(store)["journals"]
    assert (kept["severity"], fine["severity"]) == ("note", "ok")
    assert "1 torn end kept (17 B)" in kept["what"]


def _store_with_a_short_segment(folder: Path, durability: str) -> OpenStore:
    store = open_numbers(folder / durability, durability=durability)
    for number in range(3):
        append_payloads(store, Writer().documents([number]))
    store.close()
    (path,) = _root(store).glob("journals/numbers/*/*.segment")
    os.truncate(path, path.stat().st_size - 8)
    return store


def test_what_a_power_cut_took_from_a_buffered_store_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = _store_with_a_short_segment(tmp_path, "buffered")
    (finding,) = _left(store)["journals"]
    assert finding["severity"] == "warning"
    assert "ends 8 bytes early: it is not safe against power cuts" in finding["what"]
    assert "keeps what is whole" in finding["todo"]
    found = _left(store, repair=True)["journals"]
    assert "mended numbers/000" in found[0]["what"]
    assert "rows 2 to 2 are lost" in caplog.text
    assert _severities(_left(store)["journals"]) == ["note", "ok"], "the torn end is kept"
    assert ids_of(store) == [0, 1]
    assert append_payloads(store, Writer().documents([9])) == 2


def test_a_journal_whose_last_rows_nobody_sees_is_told_and_mended(tmp_path: Path) -> None:
    store = open_numbers(tmp_path / "store")
    append_payloads(store, Writer().documents([0]))
    store.append(JOURNAL, Writer().documents([1, 2]), None)
    store.close()
    (finding,) = _left(store)["journals"]
    assert finding["severity"] == "note"
    assert "its last 2 rows are not known to be durable" in finding["what"]
    assert "mended" in _left(store, repair=True)["journals"][0]["what"]
    assert ids_of(store) == [0, 1, 2]


def test_a_journal_that_lost_durable_bytes_cannot_be_mended(tmp_path: Path) -> None:
    store = _store_with_a_short_segment(tmp_path, "synced")
    (finding,) = _left(store)["journals"]
    assert finding["severity"] == "error"
    assert "ends 8 bytes early: rows that were acknowledged are lost" in finding["what"]
    assert "restore the file from a copy" in finding["todo"]
    (finding,) = _left(store, repair=True)["journals"]
    assert finding["severity"] == "error"
    assert "shorter than" in finding["what"]
    assert "penstock inspect" in finding["todo"]


def test_unfinished_files_are_swept_when_they_are_old(store: OpenStore) -> None:
    folder = _root(store) / "sinks" / "staged" / "q"
    folder.mkdir(parents=True)
    old, new = folder / ".aaaa.tmp", folder / ".bbbb.tmp"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    _made_old(old, 2 * HOUR)
    (finding,) = _left(store)["unfinished files"]
    assert finding["what"].startswith("1 file of writers that died")
    assert old.exists()
    assert "removed 1 file" in _left(store, repair=True)["unfinished files"][0]["what"]
    assert not old.exists()
    assert new.exists()


def test_a_feed_is_told_and_removed_only_by_name_and_never_while_it_runs(
    run: Run, store: OpenStore
) -> None:
    feeds = _root(store) / "feeds"
    for name in ("idle", "busy"):
        (feeds / name / "member-1").mkdir(parents=True)
        (feeds / name / "feed.json").write_text("{}")
        (feeds / name / "lock").touch()
    _made_old(feeds / "idle" / "feed.json", 3 * 24 * HOUR)
    _made_old(feeds / "idle" / "lock", 3 * 24 * HOUR)
    with (feeds / "busy" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy, idle = _left(store, repair=True)["feeds"]
        assert (busy["severity"], busy["what"]) == ("ok", "busy is running")
        assert "idle is not running: 2 B, last used 3 days ago" in idle["what"]
        assert "--remove-feed idle" in idle["todo"]
        assert "another shuffle works in" in run("doctor", "--remove-feed", "busy", code=1).stderr
    for name in ("none", "../collections", ""):
        with pytest.raises(ConfigurationError, match="it has: busy, idle"):
            remove_feed(_root(store), name)
    assert "removed idle" in run("doctor", "--remove-feed", "idle").stdout
    assert sorted(path.name for path in feeds.iterdir()) == ["busy"]
    assert (_root(store) / "collections" / "orders.json").exists()


def test_staged_parts_tell_of_batches_that_were_not_finished(store: OpenStore) -> None:
    sink, batch = CollectionSink(store.url, "orders"), Batch("query-a", 4)
    part = sink.stage(batch, 0, iter([pa.RecordBatch.from_pylist([{"id": 1, "region": "eu"}])]))
    assert part is not None
    (finding,) = _left(store)["sinks"]
    assert "query query-a: 1 staged part" in finding["what"]
    assert "not decided" in finding["what"]
    Decisions(sink.records, "query-a").decide(Decision(batch, 0, (part,), "{}"))
    assert _severities(_left(store)["sinks"]) == ["note"]  # it may be under way
    _made_old(_root(store) / "sinks" / part.name, HOUR)
    (finding,) = _left(store)["sinks"]
    assert finding["severity"] == "warning"
    assert "batch 4 is decided and was not finished" in finding["what"]


def test_folders_of_killed_clusters_and_shuffles(run: Run, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    for name in ("penstock-cluster-dead", "penstock-cluster-live", "penstock-shuffle-dead"):
        (temporary / name).mkdir()
        (temporary / name / "lock").touch()
    with (temporary / "penstock-cluster-live" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster, shuffle = _found(run)["temporary folders"]
        assert cluster["what"].startswith("1 of clusters that were killed")
        assert shuffle["todo"] == f"rm -r {temporary / 'penstock-shuffle-dead'}"
        _found(run, "--repair")
        left = sorted(path.name for path in temporary.glob("penstock-*"))
        assert left == ["penstock-cluster-live", "penstock-shuffle-dead"]


def test_a_clock_behind_the_store_is_a_warning(tmp_path: Path) -> None:
    now = clock_from_unix(int(time.time()))
    with open_numbers(tmp_path / "numbers") as store:
        append_payloads(store, Writer(clock=now - clock_duration(60)).documents([1, 2]))
        assert _clock(tmp_path / "numbers") == "ok"
        ahead = Writer(clock=now + clock_duration(7_200))
        append_payloads(store, ahead.documents([3]), JOURNAL)
        assert newest_clock(tmp_path / "numbers") == ahead.clock
    assert _clock(tmp_path / "numbers") == "warning"


def _clock(root: Path) -> str:
    (found,) = (finding for finding in check_place(root) if finding.check == "clock")
    return str(found.severity)


def test_an_empty_store_has_no_clock(tmp_path: Path) -> None:
    with open_store(tmp_path / "new"):
        assert newest_clock(tmp_path / "new") == 0
        assert _clock(tmp_path / "new") == "ok"


def test_ages_are_in_the_largest_unit() -> None:
    now = time.time()
    said = [age(now - seconds) for seconds in (5, 61, 7_300, 90_000)]
    assert said == ["less than a minute", "1 minute", "2 hours", "1 day"]
