"""Files of releases before seals: read as they are, and rewritten with a checksum, once."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.epoch.decisions import Decision as EpochDecision
from penstock.epoch.decisions import DecisionLog, Verdict
from penstock.journal import Collection, open_store
from penstock.sealed import is_sealed
from penstock.shuffle.assigned import settle_assignment
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.feed_sources import described
from penstock.sinks.batches import Decisions
from penstock.sinks.two_phase import Batch, Decision
from penstock.spark.streaming.folders import settle_folder
from penstock.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.spark.streaming.options import StreamOptions


def unseal(*paths: Path) -> None:
    """Makes of them what an older release wrote."""
    for path in paths:
        fields = json.loads(path.read_bytes())
        del fields["checksum"]
        path.write_text(json.dumps(fields, indent=2))
        assert not is_sealed(path.read_bytes())


def test_a_store_of_an_older_release(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        made = store.create(Collection.define("a", "id BIGINT NOT NULL", "id"))
    files = (tmp_path / "penstock.json", tmp_path / "collections" / "a.json")
    sealed = [path.read_bytes() for path in files]
    unseal(*files)
    with open_store(tmp_path) as store:
        assert store.collection("a") == made
        store.producer().append("a", {"id": 1})
    assert [path.read_bytes() for path in files] == sealed
    unseal(*files)
    with open_store(tmp_path) as store:
        assert store.evolve("a", "id BIGINT NOT NULL, more STRING").version == 2
        assert store.collection("a").version == 2
    assert all(is_sealed(path.read_bytes()) for path in files)


def test_records_of_an_older_release(tmp_path: Path) -> None:
    place = Storage.open(tmp_path)
    log, decisions = DecisionLog(place), Decisions(place, "q")
    epoch = log.decide(EpochDecision(1, Verdict.COMMIT, 1, 0, (0, 1)))
    batch = decisions.decide(Decision(Batch("q", 3), 0, (), "{}"))
    assigned = settle_assignment(place, (1, 2), 0)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    unseal(*files)
    assert log.read(1) == epoch
    assert decisions.newest() == batch
    assert settle_assignment(place, (1, 2), 0) == assigned
    assert all(is_sealed(path.read_bytes()) for path in files)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)


def test_the_note_of_a_feed_of_an_older_release(tmp_path: Path) -> None:
    noted = described(Feed("feed", (Binding("orders"),)))
    options = cast("StreamOptions", SimpleNamespace(noted=noted))
    settle_folder(tmp_path, options, is_new=True)
    note = tmp_path / "feed.json"
    unseal(note)
    settle_folder(tmp_path, options, is_new=False)
    assert is_sealed(note.read_bytes())


@pytest.mark.parametrize("member", ["format", "durability"])
def test_members_of_an_old_file_are_still_checked(tmp_path: Path, member: str) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "penstock.json"
    unseal(path)
    fields: dict[str, Any] = json.loads(path.read_bytes())
    fields[member] = "strange"
    path.write_text(json.dumps(fields))
    with pytest.raises(Exception, match="strange"):
        open_store(tmp_path)
    assert not is_sealed(path.read_bytes())  # what is not understood is not sealed
