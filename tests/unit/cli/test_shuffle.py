"""`penstock shuffle` with all members in this process: every committed document once, at its owner.

Real journals, real queues on disk, real epochs. What is expected is worked out here from what was
appended, not asked from the journals; --verify asks those.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.cli.shuffle_run import POSITION_NAME, Position, Run
from penstock.cli.shuffle_view import View, sized
from penstock.cli.terminal import messages
from penstock.frontier import Frontier
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents
from penstock.routing import assign, vnodes_of
from penstock.shuffle import upkeep
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.plan import make_plan
from penstock.shuffle.resume import Epoch, load_record
from penstock.shuffle.session.actor import MemberLostError, Session
from penstock.shuffle.verify import Delivered, verify
from penstock.storage import Storage
from penstock.watch import load
from tests.conformance.waiting import Background, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from penstock.journal import OpenStore

    Run_ = Callable[..., Result]

pytestmark = pytest.mark.slow

LOCAL = ("--collection", "orders", "--carrier", "local", "--epoch-seconds", "0.05")


def _orders(begin: int, end: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "region": "eu" if number % 3 else "us", "amount": number}
        for number in range(begin, end)
    ]


def _write_faulty(store: OpenStore, begin: int) -> int:
    """A committed transaction over two journals, a rollback, a batch sent twice, and a transaction
    that stays open. How many documents count."""
    with store.producer() as producer:
        with producer.transaction() as transaction:
            transaction.append("orders", _orders(begin, begin + 300))
        transaction = producer.transaction()
        transaction.append("orders", _orders(begin + 300, begin + 350))
        transaction.rollback()
        stamped = producer.stamp("orders", _orders(begin + 350, begin + 400))
        producer.send(stamped)
        producer.send(stamped)
    return 350


@pytest.fixture
def open_transaction(store: OpenStore) -> Any:
    """Its documents are in the journals, and in no epoch."""
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("orders", _orders(9_000, 9_100))
        yield transaction
        transaction.rollback()


def _report(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("open_transaction")
def test_every_committed_document_comes_once_and_to_its_owner(store: OpenStore, run: Run_) -> None:
    count = _write_faulty(store, 0)
    report = _report(run("shuffle", *LOCAL, "--verify", "--json"))
    assert report["documents"] == report["new_documents"] == count
    assert report["verified"] == {
        "equal": True,
        "documents": count,
        "unchecked": 0,
        "differences": [],
    }
    assert report["caught_up"]
    assert [each["member"] for each in report["members"]] == [1, 2, 3]
    assert sum(each["vnodes"] for each in report["members"]) == 256
    assert sum(each["documents"] for each in report["members"]) == count
    assert all(each["documents"] and each["bytes"] for each in report["members"])
    assert report["folder"] is None


def test_people_get_a_table_and_a_word_on_the_folder(store: OpenStore, run: Run_) -> None:
    count = _write_faulty(store, 0)
    result = run("shuffle", *LOCAL, "--members", "2", "--verify")
    assert f"{count} new documents in" in result.stdout
    assert "caught up at epoch" in result.stdout
    assert f"the batch reader has the same {count} documents" in result.stdout
    assert "all" in result.stdout
    assert "which is removed at the end" in result.stderr
    place = result.stderr.split("working in ")[1].split(",")[0]
    assert not os.path.exists(place)  # noqa: PTH110 - it is text


def test_a_second_run_goes_on_and_reads_nothing_twice(
    store: OpenStore, run: Run_, tmp_path: Path
) -> None:
    folder = ("--folder", str(tmp_path / "shuffle"), "--verify", "--json")
    first = _write_faulty(store, 0)
    assert _report(run("shuffle", *LOCAL, *folder))["new_documents"] == first
    again = _report(run("shuffle", *LOCAL, *folder))
    assert (again["new_documents"], again["documents"]) == (0, first)
    assert again["verified"]["equal"]
    second = _write_faulty(store, 1_000)
    third = _report(run("shuffle", *LOCAL, *folder))
    assert (third["new_documents"], third["documents"]) == (second, first + second)
    assert third["verified"] == {
        "equal": True,
        "documents": second,
        "unchecked": 0,
        "differences": [],
    }
    assert third["folder"] == str(tmp_path / "shuffle")


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2)])
def test_lost_queues_are_built_anew(
    store: OpenStore, run: Run_, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """What the consumer was done with stays done, whatever happens to the queues."""
    folder = ("--members", "2", "--folder", str(tmp_path / "shuffle"), "--verify", "--json")
    first = _write_faulty(store, 0)
    run("shuffle", *LOCAL, *folder)
    second = _write_faulty(store, 1_000)
    for member in lost:
        shutil.rmtree(tmp_path / "shuffle" / f"member-{member}")
    result = run("shuffle", *LOCAL, *folder)
    report = _report(result)
    assert (report["new_documents"], report["documents"]) == (second, first + second)
    assert report["verified"]["equal"]
    assert "queues are built anew" in result.stderr


def test_what_was_queued_and_not_consumed_comes_back_after_a_loss(
    store: OpenStore, run: Run_, tmp_path: Path
) -> None:
    """The consumer had seen nothing of it: a recovery session has to read it again."""
    place = tmp_path / "shuffle"
    count = _write_faulty(store, 0)
    feed = Feed("shuffle", (Binding("orders"),))
    with EmbeddedShuffle(feed, store, place, members=2, epoch_seconds=0.05) as shuffle:
        assert shuffle.session.wait_caught_up(30)
    shutil.rmtree(place / "member-1")
    report = _report(
        run("shuffle", *LOCAL, "--members", "2", "--folder", str(place), "--verify", "--json")
    )
    assert report["new_documents"] == count
    assert report["verified"]["equal"]


def test_a_rebuild_that_was_cut_short_is_begun_again(
    store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-built queues have as many blocks as the lost ones had, with less in them: nobody takes
    them for those."""
    _write_faulty(store, 0)
    feed = Feed("shuffle", (Binding("orders"),))
    place = tmp_path / "shuffle"

    def made() -> EmbeddedShuffle:
        return EmbeddedShuffle(feed, store, place, members=2, epoch_seconds=0.05)

    with made() as shuffle:
        assert shuffle.session.wait_caught_up(30)
        before = _read_all(shuffle)
    shutil.rmtree(place / "member-1")
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_lead_epoch", lambda _: None)
        patched.setattr("penstock.shuffle.slice.state.ROUND_ROWS_MAX", 10)
        patched.setattr(Session, "wait_epoch", _crash_when_queued)
        with pytest.raises(_CrashedError):
            made().start()
    with made() as shuffle:
        assert shuffle.session.wait_caught_up(30)
        assert _read_all(shuffle) == before


class _CrashedError(Exception):
    pass


def _crash_when_queued(session: Session, *_: object) -> None:
    def some() -> bool:
        return [each.blocks > 0 for each in session.queues.values()] == [True, True]

    eventually(some, "blocks in both queues")
    raise _CrashedError


def _read_all(shuffle: EmbeddedShuffle) -> dict[int, list[Any]]:
    """The documents of each member."""
    begin = Epoch(0, Frontier.of())
    return {
        member: sorted(
            number
            for found in shuffle.read(member, begin, shuffle.session.newest)
            for number in found.batch.column("id").to_pylist()
        )
        for member in shuffle.members
    }


def test_a_feed_file_names_keys_and_priorities(store: OpenStore, run: Run_, tmp_path: Path) -> None:
    count = _write_faulty(store, 0)
    feed = tmp_path / "feed.toml"
    feed.write_text(
        """
        [[binding]]
        collection = "orders"
        key = ["region"]
        priority = 2
        [[binding]]
        collection = "orders"
        key = ["amount"]
        partitions = "region=us"
        """
    )
    options = ("--feed", str(feed), "--carrier", "local", "--epoch-seconds", "0.05")
    report = _report(run("shuffle", *options, "--verify", "--json"))
    us = sum(1 for order in [*_orders(0, 300), *_orders(350, 400)] if order["region"] == "us")
    assert report["documents"] == count + us
    assert report["verified"]["equal"]
    assert report["verified"]["documents"] == count + us


def test_documents_outside_of_a_bindings_times_are_not_expected(
    store: OpenStore, run: Run_, tmp_path: Path
) -> None:
    _write_faulty(store, 0)
    feed = tmp_path / "feed.toml"
    feed.write_text('[[binding]]\ncollection = "orders"\nnot_before = 2999-01-01T00:00:00Z\n')
    report = _report(
        run("shuffle", "--feed", str(feed), "--carrier", "local", "--verify", "--json")
    )
    assert report["documents"] == 0
    assert report["verified"]["equal"]


def test_the_log_is_written_as_json_and_the_state_says_how_it_ended(
    store: OpenStore, run: Run_, tmp_path: Path
) -> None:
    _write_faulty(store, 0)
    folder, log = tmp_path / "shuffle", tmp_path / "log"
    run("shuffle", *LOCAL, "--folder", str(folder), "--log-json", str(log))
    shutil.rmtree(folder / "member-1")
    run("shuffle", *LOCAL, "--folder", str(folder), "--log-json", str(log))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (lost,) = (line for line in lines if line["level"] == "warning")
    assert (lost["feed"], lost["logger"]) == ("shuffle", "penstock.shuffle")
    assert lost["text"].startswith("queues are built anew")
    state = load(folder)
    assert (state.phase, state.verdict, state.feed) == ("stopped", "down", "shuffle")
    assert state.epochs[-1].verdict == "commit"


def test_an_empty_collection_is_caught_up_at_once(run: Run_) -> None:
    report = _report(run("shuffle", *LOCAL, "--verify", "--json"))
    assert report["documents"] == 0
    assert report["caught_up"]
    assert report["verified"]["equal"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 2, "either --collection NAME or --feed FILE"),
        (("--collection", "orders", "--feed", __file__), 2, "either --collection"),
        (("--feed", __file__, "--key", "id"), 2, "--key goes with --collection"),
        (("--feed", __file__), 1, "not TOML"),
        (("--collection", "oders"), 1, "oders"),
        (("--collection", "orders", "--key", "price"), 1, "no column 'price'; it has id"),
        (("--collection", "orders", "--members", "257"), 2, "257"),
        (("--collection", "orders", "--carrier", "pigeon"), 2, "pigeon"),
        (("--collection", "orders", "--epoch-seconds", "0"), 2, "--epoch-seconds"),
        (("--collection", "orders", "--disk-budget", "0"), 2, "--disk-budget"),
    ],
)
def test_wrong_options_are_named(run: Run_, options: tuple[str, ...], code: int, said: str) -> None:
    assert said in run("shuffle", *options, code=code).stderr


def test_a_folder_of_another_shuffle_is_refused(
    store: OpenStore, run: Run_, tmp_path: Path
) -> None:
    _write_faulty(store, 0)
    folder = ("--folder", str(tmp_path / "shuffle"))
    run("shuffle", *LOCAL, *folder)
    other = run("shuffle", *LOCAL, *folder, "--members", "2", code=1).stderr
    assert "members differ: there 3, now 2. Use another --folder" in other
    other = run("shuffle", *LOCAL, *folder, "--key", "region", code=1).stderr
    assert "bindings differ" in other
    (tmp_path / "shuffle" / POSITION_NAME).write_text("{}")
    assert "cannot be used" in run("shuffle", *LOCAL, *folder, code=1).stderr
    run("shuffle", *LOCAL, "--folder", str(tmp_path / "other"))
    run("shuffle", *LOCAL, "--folder", str(tmp_path / "other"))  # the first is on record now
    (tmp_path / "other" / POSITION_NAME).unlink()
    refused = run("shuffle", *LOCAL, "--folder", str(tmp_path / "other"), code=1).stderr
    assert "another consumer has read epochs up to" in refused


def test_a_folder_in_use_is_refused(
    store: OpenStore, run: Run_, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.shuffle.running.LOCK_SECONDS_MAX", 0.1)
    feed = Feed("shuffle", (Binding("orders"),))
    place = tmp_path / "shuffle"
    with EmbeddedShuffle(feed, store, place, members=2, epoch_seconds=0.05):
        said = run("shuffle", *LOCAL, "--folder", str(place), code=1).stderr
    assert f"another shuffle works in {place}" in said
    run("shuffle", *LOCAL, "--members", "2", "--folder", str(place))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_in_order_at_ctrl_c(
    store: OpenStore, run: Run_, tmp_path: Path, number: signal.Signals
) -> None:
    """New documents are read meanwhile, and the next run has nothing left to do."""
    place = tmp_path / "shuffle"
    first = _write_faulty(store, 0)
    written: list[int] = []

    def interrupt() -> None:
        eventually(lambda: _held(place) == first, "the first documents")
        written.append(_write_faulty(store, 1_000))
        eventually(lambda: _held(place) == first + written[0], "the second documents")
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    background = Background(interrupt, "interrupts")
    options = (*LOCAL, "--folder", str(place), "--verify", "--json")
    report = _report(run("shuffle", *options, "--follow"))
    background.result()
    assert report["documents"] == first + written[0]
    assert report["verified"]["equal"]
    assert signal.getsignal(number) is before
    assert _report(run("shuffle", *options))["new_documents"] == 0


def test_the_session_is_told_what_is_consumed(store: OpenStore, tmp_path: Path) -> None:
    """Else queues would only ever grow. The last epoch has it on record."""
    at_stop: list[int] = []

    def stop(run: Run) -> None:
        if run.position.documents:
            at_stop.append(run.position.last.number)
            run.stopping.set()

    _write_faulty(store, 0)
    _, run = _made(store, tmp_path / "shuffle", _Notes(stop), follow=True)
    run.run()
    assert run.position.last.number > at_stop[0]
    record = load_record(Storage.open(tmp_path / "shuffle" / "cluster"), run.position.last.number)
    assert record.consumed.number == at_stop[0]


CRASH = """
import os, sys
import penstock.journal.transaction as transactions
from penstock.journal import open_store

def die(step):
    if step is transactions.Step.DECIDED:
        os._exit(9)

transactions.reached = die
producer = open_store(sys.argv[1]).producer()
with producer.transaction() as transaction:
    transaction.append("orders", [{"id": n, "region": f"r{n % 3}"} for n in range(60)])
"""


def test_what_a_dead_producer_decided_is_read(store: OpenStore, run: Run_) -> None:
    """Its acknowledgements are missing: somebody has to write them."""
    died = subprocess.run([sys.executable, "-c", CRASH, store.url], check=False)
    assert died.returncode == 9
    report = _report(run("shuffle", *LOCAL, "--verify", "--json"))
    assert report["documents"] == 60
    assert report["verified"]["equal"]


def _held(place: Path) -> int:
    try:
        found = json.loads((place / POSITION_NAME).read_text())
    except FileNotFoundError:
        return -1
    return sum(each["documents"] for each in found["holdings"].values())


class _Notes:
    """A watcher that remembers what it was told."""

    def __init__(self, on_show: Callable[[Run], None] = lambda _: None) -> None:
        self.said: list[str] = []
        self._on_show = on_show

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, run: Run) -> None:
        self._on_show(run)


def _made(store: OpenStore, place: Path, notes: _Notes, **more: Any) -> tuple[EmbeddedShuffle, Run]:
    feed = Feed("shuffle", (Binding("orders"),))
    shuffle = EmbeddedShuffle(feed, store, place, members=2, epoch_seconds=0.05)
    position = Position.load(place, store, feed, 2)
    return shuffle, Run(shuffle, store, position, notes, **more)


@pytest.mark.parametrize("is_queue_lost", [False, True])
def test_a_failure_is_followed_by_a_restart(
    store: OpenStore, tmp_path: Path, is_queue_lost: bool
) -> None:
    first = _write_faulty(store, 0)
    failed = threading.Event()
    delivered = Delivered()

    def break_once(run: Run) -> None:
        if run.position.documents == first and not failed.is_set():
            failed.set()
            _write_faulty(store, 1_000)
            if is_queue_lost:
                shutil.rmtree(tmp_path / "shuffle" / "member-2")
            shuffle.session.fail(MemberLostError("the process of member 2 was killed"))

    notes = _Notes(break_once)
    shuffle, run = _made(store, tmp_path / "shuffle", notes, delivered=delivered)
    run.run()
    assert run.restarts == 1
    assert run.position.documents == 2 * first
    (said,) = notes.said
    assert said.startswith("the process of member 2 was killed; all begin anew after epoch ")
    plan = make_plan(Feed("shuffle", (Binding("orders"),)), store)
    end = run.position.last.frontier
    found = verify(store, plan, assign([1, 2]), delivered, start=Frontier.of(), end=end)
    assert found.is_equal
    assert found.documents == 2 * first


def test_what_fails_again_and_again_is_given_up(
    store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PAUSE_SECONDS_MIN", 0.0)
    monkeypatch.setattr(upkeep, "RESTARTS_MAX", 2)

    def lose(*_: object) -> None:
        raise MemberLostError("the process of member 1 ended with code 1")

    monkeypatch.setattr(EmbeddedShuffle, "_open_parts", lose)
    notes = _Notes()
    _, run = _made(store, tmp_path / "shuffle", notes)
    with pytest.raises(MemberLostError, match=r"given up after 2 restarts .*: the process of"):
        run.run()
    assert len(notes.said) == 2


# The comparison notices what it is there to notice.


class _Batch:
    """As much of a QueueBatch as is looked at."""

    def __init__(self, journal: str, offsets: list[int]) -> None:
        self.names = {7: (0, journal)}
        self.batch = pa.record_batch({"_read": [7] * len(offsets), "_offset": offsets})


def _compared(
    store: OpenStore, rows: list[tuple[int, str, int]], unchecked: int = 0
) -> dict[str, int]:
    """By kind of difference, how many documents."""
    plan = make_plan(Feed("shuffle", (Binding("orders"),)), store)
    delivered = Delivered()
    for member, journal, offset in rows:
        delivered.add(member, _Batch(journal, [offset]))  # type: ignore[arg-type]
    frontier = store.frontier("orders")
    found = verify(store, plan, assign([1, 2]), delivered, start=Frontier.of(), end=frontier)
    assert found.is_equal == (not found.differences)
    assert found.unchecked == unchecked
    return {each.kind: each.documents for each in found.differences}


def test_differences_are_found_and_named(store: OpenStore) -> None:
    _write_faulty(store, 0)
    shuffled: list[tuple[int, str, int]] = []
    names = [journal.name for journal in store.journals("orders")]
    for cut in take_cut(store, names):
        for found in read_documents(store, cut, ("id",)):
            owners = assign([1, 2]).owners_array[vnodes_of([found.documents.column("id")])]
            shuffled += zip(
                owners.tolist(), [cut.journal] * len(owners), found.offsets.tolist(), strict=True
            )
    assert len(shuffled) == 350
    assert _compared(store, shuffled) == {}
    assert _compared(store, shuffled[3:]) == {"missing": 3}
    assert _compared(store, [*shuffled, *shuffled[:2]]) == {"repeated": 2}
    member, journal, offset = shuffled[0]
    assert _compared(store, [(3 - member, journal, offset), *shuffled[1:]]) == {"misplaced": 1}
    assert _compared(store, [*shuffled, (1, journal, 10**6)]) == {"unexpected": 1}
    gone = (1, "orders/region=gone/000", 0)
    assert _compared(store, [*shuffled, gone], unchecked=1) == {}, "it was deleted since"
    wrong = [*shuffled[1:], (member, journal, 10**6)]
    assert _compared(store, wrong) == {"missing": 1, "unexpected": 1}


def test_a_difference_makes_the_exit_code_1_and_is_said(
    store: OpenStore, run: Run_, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_faulty(store, 0)
    kept = Delivered.add

    def forget_first(self: Delivered, member: int, found: Any) -> None:
        if member == 1:
            kept(self, member, found)

    monkeypatch.setattr(Delivered, "add", forget_first)
    result = run("shuffle", *LOCAL, "--members", "2", "--verify", code=1)
    assert "NOT equal to what the batch reader has" in result.stderr
    assert "missing in orders/region=eu/000, at offsets" in result.stderr
    report = _report(run("shuffle", *LOCAL, "--members", "2", "--verify", "--json", code=1))
    assert not report["verified"]["equal"]
    assert {each["kind"] for each in report["verified"]["differences"]} == {"missing"}


def test_the_view_has_a_line_for_everything(store: OpenStore, tmp_path: Path) -> None:
    lines: list[str] = []

    def look(run: Run) -> None:
        view.show(run)
        lines.append(view._line(run))
        view._console.begin_capture()
        view._console.print(view._table(run))
        lines.append(view._console.end_capture())
        told = () if run.state is None else run.state.members
        if run.position.documents == 350 and len([one for one in told if one.slices]) == 2:
            run.stopping.set()

    view = View(messages(), [0])
    _write_faulty(store, 0)
    _, run = _made(store, tmp_path / "shuffle", _Notes(look), follow=True)
    run.run()
    run.restarts = 2
    look(run)
    line, table = lines[-2:]
    assert f"epoch {run.position.last.number} at " in line
    assert "350 documents" in line
    assert "0 rows behind" in line
    assert "2 restarts" in line
    for word in ("documents/s", "bytes/s", "waiting", "disk", "Ctrl-C", "2 restarts"):
        assert word in table
    assert [sized(size) for size in (0, 1023, 1536, 5 * 1024**3)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
