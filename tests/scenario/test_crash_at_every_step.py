"""A producer dies at any of its changes to the disk: every transaction is whole or not there.

The story below is cut short after its first change to the disk, its second, and so on to the last,
once by SIGKILL and by power cuts (see `tests/power_cuts.py`). What must hold after:

- what was promised (an append or a commit that returned) is there, once
- a transaction is visible in all of its journals or in none, before and after recovery
- what was rolled back is never seen
- recovery can be repeated, and others can go on writing
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from penstock import disk
from penstock.errors import CommitStateUnknownError
from penstock.journal import Collection, OpenStore, open_store
from penstock.journal import transaction as transaction_module
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.journal.file import ledger as ledger_module
from penstock.journal.file import segment as segment_module
from tests.faults import Stage, copy_store, report
from tests.power_cuts import scratch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

TRANSACTIONS = {"first": 4, "long": 8, "second": 3, "third": 3}
"""Documents of each transaction, over the journals of both collections."""
SEGMENT_BYTES_MAX = 2_500
"""Small enough that the story rolls segments on its way."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def make_store(folder: Path) -> Path:
    with open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX) as store:
        orders = "id STRING NOT NULL, region STRING NOT NULL"
        store.create(Collection.define("orders", orders, "id", "region"))
        store.create(Collection.define("payments", "id STRING NOT NULL", "id"))
        with store.producer() as producer:
            producer.append("orders", [{"id": "before", "region": "eu"}])
    return folder


def story(folder: Path, reports: Path) -> None:
    store = open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX)
    producer = store.producer()
    producer.append("orders", [{"id": "outside-1", "region": "us"}])
    report(reports, "outside-1")
    with producer.transaction() as transaction:
        transaction.append("orders", [{"id": "first", "region": r} for r in ("eu", "us", "eu")])
        transaction.append("payments", [{"id": "first"}])
    report(reports, "first")
    discarded = producer.transaction()
    discarded.append("orders", [{"id": "discarded", "region": "eu"}])
    discarded.append("payments", [{"id": "discarded"}])
    discarded.rollback()
    retried = producer.stamp("payments", [{"id": "outside-2"}])
    producer.send(retried)
    producer.send(retried)
    report(reports, "outside-2")
    with producer.transaction() as transaction:  # the segment is rolled in its middle
        for _ in range(TRANSACTIONS["long"]):
            transaction.append("payments", [{"id": "long"}])
    report(reports, "long")
    for name in ("second", "third"):
        with producer.transaction() as transaction:
            transaction.append("orders", [{"id": name, "region": r} for r in ("us", "new")])
            transaction.append("payments", [{"id": name}])
        report(reports, name)
    producer.close()


def visible(store: OpenStore) -> Counter[str]:
    journals = [journal.name for name in ("orders", "payments") for journal in store.journals(name)]
    found: Counter[str] = Counter()
    for cut in take_cut(store, journals):
        for part in read_documents(store, cut, columns=["id"]):
            found.update(str(value) for value in part.documents.column("id").to_pylist())
    return found


def check_whole(found: Counter[str], promised: set[str], when: str) -> None:
    assert found["before"] == 1, when
    assert found["discarded"] == 0, when
    for name in ("outside-1", "outside-2"):
        assert found[name] <= 1, f"{name} twice, {when}"
        assert found[name] == 1 or name not in promised, f"{name} lost, {when}"
    for name, documents in TRANSACTIONS.items():
        assert found[name] in (0, documents), f"{name} torn: {found[name]}, {when}"
        assert found[name] == documents or name not in promised, f"{name} lost, {when}"


def check_store(folder: Path, promised: set[str], when: str) -> Counter[str]:
    """Everything that must hold after a crash; gives what is there after recovery."""
    with open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX) as store:
        # Without recovery a decided transaction may still be hidden, but then in all journals, and
        # with it what its producer wrote after it.
        early = visible(store)
        hides = any(early[name] == 0 for name in promised & TRANSACTIONS.keys())
        check_whole(early, set() if hides else promised, f"{when}, before recovery")
        store.recover()
        found = visible(store)
        check_whole(found, promised, f"{when}, after recovery")
        assert store.recover() == [], "the second recovery finds nothing to do"
        with store.producer() as producer, producer.transaction() as transaction:
            transaction.append("orders", [{"id": "after", "region": r} for r in ("eu", "us")])
            transaction.append("payments", [{"id": "after"}])
        later = visible(store)
        # An append that did not return may come to light when others make its journal durable.
        surfaced = later - found
        assert surfaced.pop("after") == 3, when
        assert set(surfaced) <= {"outside-1", "outside-2"} - promised, when
        check_whole(later, promised, f"{when}, later")
        frontier = store.frontier("orders", "payments")
        assert frontier.unresolved_hints == 0
    return found


def changes_of_story(stage: Stage, tmp_path: Path) -> int:
    reports = tmp_path / "complete.txt"
    folder = make_store(tmp_path / "complete")
    changes = stage.count_changes(story, folder, reports)
    promised = set(reports.read_text().split())
    found = check_store(folder, promised, "after the whole story")
    assert set(found) == {"before", "outside-1", "outside-2", *TRANSACTIONS}
    return changes


def test_producer_killed_after_every_change(stage: Stage, tmp_path: Path) -> None:
    original = make_store(tmp_path / "original")
    changes = changes_of_story(stage, tmp_path)
    assert changes > 100
    outcomes = set()
    for change in range(1, changes + 1):
        reports = tmp_path / f"reports-{change}.txt"
        reports.touch()
        with scratch() as folder:
            stage.kill_at(change, story, copy_store(original, folder), reports)
            promised = set(reports.read_text().split())
            found = check_store(folder, promised, f"killed after change {change}")
        outcomes.add(tuple(name for name in TRANSACTIONS if found[name]))
    # The story is cut in all of its chapters.
    names = tuple(TRANSACTIONS)
    assert outcomes == {names[:count] for count in range(len(names) + 1)}


def test_power_cut_after_every_change(stage: Stage, tmp_path: Path) -> None:
    recording = stage.record(story, make_store(tmp_path / "store"), tmp_path / "reports")
    for change, chance, when in recording.cuts():
        with scratch() as left:
            promised = recording.cut(change, chance, left)
            check_store(left, set(promised), when)


def test_power_cut_while_another_is_recovered_from(stage: Stage, tmp_path: Path) -> None:
    """What mends must not build on what a second cut takes away."""
    recording = stage.record(story, make_store(tmp_path / "store"), tmp_path / "reports")
    for change in range(9, recording.changes, 29):
        left = tmp_path / f"left-{change}"
        promised = set(recording.cut(change, random.Random(change), left))
        again = stage.record(recovering, left, tmp_path / f"again-{change}")
        for second, chance, when in again.cuts(every=7, fresh=1):
            with scratch() as twice:
                again.cut(second, chance, twice)
                check_store(twice, promised, f"after change {change}, and then: {when}")


def doubtful(folder: Path, reports: Path) -> None:
    """The disk fails just when a segment's name, and then a decision, was to become durable. Who
    goes on from there must not build on what may still be lost."""
    store = open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX)
    real = disk.sync_folder
    failing: list[str] = []

    def sync_folder(place: Path) -> None:
        if failing and len(list(place.glob(failing[0]))) > failing.count("*.segment"):
            failing.clear()
            raise OSError(errno.EIO, "the disk failed")
        real(place)

    for module in (segment_module, ledger_module):
        setattr(module, "sync_folder", sync_folder)  # noqa: B010 - not theirs by name
    producer = store.producer()
    for count in range(12):  # far enough to fill a segment
        if count == 6:
            failing.append("*.segment")
        try:
            producer.append("payments", [{"id": f"outside-{count}"}])
        except OSError:
            continue
        report(reports, f"outside-{count}")
    failing[:] = ["decision"]
    transaction = producer.transaction()
    transaction.append("orders", [{"id": "third", "region": r} for r in ("us", "eu")])
    transaction.append("payments", [{"id": "third"}])
    with pytest.raises(CommitStateUnknownError):
        transaction.commit()
    assert store.recover() == [producer.id]
    report(reports, "third")


def test_power_cut_after_a_doubtful_disk(stage: Stage, tmp_path: Path) -> None:
    original = make_store(tmp_path / "original")
    reference, told = copy_store(original, tmp_path / "reference"), tmp_path / "told.txt"
    recording = stage.record(doubtful, reference, told)
    promised = set(told.read_text().split())
    assert "third" in promised
    assert len(promised) == 12, "one append failed with the disk"
    for change, chance, when in recording.cuts():
        with scratch() as left:
            promised = set(recording.cut(change, chance, left))
            with open_store(left, segment_bytes_max=SEGMENT_BYTES_MAX) as store:
                early = visible(store)
                assert early["third"] in (0, 3), f"torn, before recovery, {when}"
                store.recover()
                found = visible(store)
        assert found["third"] == (3 if "third" in promised else found["third"]), when
        assert found["third"] in (0, 3), f"torn, {when}"
        lost = {name for name in promised if not found[name]}
        assert not lost, when


def decided_then_killed(folder: Path, reports: Path) -> None:
    """Leaves a transaction that is decided, and acknowledged in one of three journals."""

    def die(step: transaction_module.Step) -> None:
        if step is transaction_module.Step.ACKNOWLEDGED_ONE:
            report(reports, "decided")
            os.kill(os.getpid(), signal.SIGKILL)

    transaction_module.reached = die
    store = open_store(folder)
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": "third", "region": r} for r in ("eu", "us")])
        transaction.append("payments", [{"id": "third"}])


def recovering(folder: Path, reports: Path) -> None:
    open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX).recover()
    report(reports, "recovered")


def test_recovery_killed_after_every_change(stage: Stage, tmp_path: Path) -> None:
    original = make_store(tmp_path / "original")
    reports = tmp_path / "reports.txt"
    stage.kill_at(-1, decided_then_killed, original, reports)
    with open_store(original) as store:
        assert visible(store)["third"] == 0, "acknowledged in one journal: hidden in all"
    reference = copy_store(original, tmp_path / "reference")
    recording = stage.record(recovering, reference, tmp_path / "reference.txt")
    assert check_store(reference, set(), "after recovery")["third"] == TRANSACTIONS["third"]
    for change in range(1, recording.changes + 1):
        with scratch() as folder:
            stage.kill_at(change, recovering, copy_store(original, folder), reports)
            found = check_store(folder, set(), f"killed in recovery after change {change}")
        assert found["third"] == TRANSACTIONS["third"], "a decision is never taken back"
    for change, chance, when in recording.cuts():
        with scratch() as left:
            recording.cut(change, chance, left)
            found = check_store(left, set(), f"in recovery: {when}")
            assert found["third"] == TRANSACTIONS["third"], "a decision is never taken back"


def aborting(folder: Path, reports: Path) -> None:
    """A transaction is aborted by hand, while its producer lives."""
    store = open_store(folder, segment_bytes_max=SEGMENT_BYTES_MAX)
    producer = store.producer()
    transaction = producer.transaction()
    transaction.append("orders", [{"id": "discarded", "region": "eu"}])
    transaction.append("payments", [{"id": "discarded"}])
    done = store.abort(producer.id, "ada")
    report(reports, str(done.outcome).replace(" ", "-"))


def test_abort_cut_short_after_every_change(stage: Stage, tmp_path: Path) -> None:
    """Nobody is fenced without a note of who did it, and what was aborted is never seen."""
    original = make_store(tmp_path / "original")
    before = {path.name for path in (original / "retired").iterdir()}
    reference = copy_store(original, tmp_path / "reference")
    recording = stage.record(aborting, reference, tmp_path / "reference.txt")
    assert (tmp_path / "reference.txt").read_text().split() == ["rolled-back"]
    outcomes: set[str | None] = set()

    def check(left: Path, promised: list[str], when: str) -> None:
        fenced = {path.name for path in (left / "retired").iterdir()} - before
        with open_store(left, segment_bytes_max=SEGMENT_BYTES_MAX) as store:
            noted = {str(one.producer): one.outcome for one in store.aborts()}
        assert fenced <= noted.keys(), when
        if promised:
            assert list(noted.values()) == ["rolled back"], when
        outcomes.update(noted.values() if noted else ["none"])
        check_store(left, set(), f"in an abort: {when}")

    for change in range(1, recording.changes + 1):
        reports = tmp_path / f"killed-{change}.txt"
        reports.touch()
        with scratch() as folder:
            stage.kill_at(change, aborting, copy_store(original, folder), reports)
            check(folder, reports.read_text().split(), f"killed after change {change}")
    for change, chance, when in recording.cuts():
        with scratch() as left:
            check(left, recording.cut(change, chance, left), when)
    assert outcomes == {"none", None, "rolled back"}, "the story is cut in all of its chapters"
