"""`penstock read`: committed documents once each, in every format."""

from __future__ import annotations

import csv
import datetime
import io
import json
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import penstock.journal.transaction
from penstock.cli.outputs import new_file
from penstock.cli.reading import Wanted
from penstock.cli.tail import follow
from penstock.journal.transaction import Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from penstock.journal import OpenStore

    Run = Callable[..., Result]


def _order(number: int, region: str = "eu") -> dict[str, Any]:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return {"id": number, "region": region, "amount": number, "at": moment}


@pytest.fixture
def orders(store: OpenStore) -> OpenStore:
    """Two committed transactions, a rolled-back one, a repeated batch, and an open transaction."""
    with store.producer() as producer:
        with producer.transaction() as transaction:
            transaction.append("orders", [_order(1), _order(2, "us")])
        transaction = producer.transaction()
        transaction.append("orders", [_order(90), _order(91, "us")])
        transaction.rollback()
        stamped = producer.stamp("orders", [_order(3)])
        producer.send(stamped)
        producer.send(stamped)
        with producer.transaction() as transaction:
            transaction.append("orders", [_order(4, "us"), _order(5)])
    return store


def _lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def _ids(result: Result) -> list[int]:
    return [line["id"] for line in _lines(result)]


@pytest.mark.usefixtures("orders")
def test_json_lines_hold_each_committed_document_once(run: Run) -> None:
    result = run("read", "orders")
    assert _ids(result) == [1, 3, 5, 2, 4]
    assert _lines(result)[0] == {
        "id": 1,
        "region": "eu",
        "amount": "1.00",
        "at": "2026-01-01T00:00:00+00:00",
    }


@pytest.mark.usefixtures("orders")
def test_by_clock_the_journals_are_mixed(run: Run) -> None:
    assert _ids(run("read", "orders", "--order", "clock")) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("orders")
def test_columns_limit_and_partitions_choose(run: Run) -> None:
    assert _lines(run("read", "orders", "--columns", "amount,id", "--limit", "1")) == [
        {"amount": "1.00", "id": 1}
    ]
    assert _ids(run("read", "orders", "--partitions", "!region=eu")) == [2, 4]
    assert _ids(run("read", "orders", "--limit", "0")) == []
    assert (
        "no column 'price'; it has id" in run("read", "orders", "--columns", "price", code=1).stderr
    )


@pytest.mark.usefixtures("orders")
def test_csv_has_a_header_and_the_same_documents(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run("read", "orders", "--format", "csv").stdout)))
    assert [row["id"] for row in rows] == ["1", "3", "5", "2", "4"]
    assert rows[0]["at"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.usefixtures("orders")
def test_a_table_is_shown_to_people(run: Run) -> None:
    shown = run("read", "orders", "--format", "table", "--limit", "2").stdout
    assert "region" in shown
    assert "3.00" in shown
    assert "5.00" not in shown


@pytest.mark.usefixtures("orders")
def test_an_output_file_gets_the_format_its_name_says(run: Run, tmp_path: Path) -> None:
    run("read", "orders", "--output", str(tmp_path / "x.parquet"))
    assert pq.read_table(tmp_path / "x.parquet")["id"].to_pylist() == [1, 3, 5, 2, 4]
    run("read", "orders", "--output", str(tmp_path / "x.jsonl"))
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "x.jsonl", "x.parquet"]
    run("read", "orders", "--format", "parquet", code=2)
    refused = run("read", "orders", "--output", str(tmp_path / "no" / "x.csv"), code=1)
    assert refused.stderr == (
        f"error: cannot write {tmp_path}/no/x.csv: there is no folder {tmp_path}/no\n"
    )


def test_an_output_file_that_could_not_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("old")
    writing = ExitStack()
    writing.enter_context(new_file(tmp_path / "x.csv")).write(b"new")
    with pytest.raises(KeyError), writing:
        raise KeyError
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.usefixtures("orders")
def test_what_was_read_can_be_appended_again(run: Run, tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        run("read", "orders", "--output", str(tmp_path / name), "--limit", "5")
        before = len(_ids(run("read", "orders")))
        run("append", "orders", str(tmp_path / name))
        lines = [json.dumps(line) for line in _lines(run("read", "orders"))]
        assert len(lines) == before + 5
        assert len(set(lines)) == 5


def test_meta_tells_where_a_document_comes_from(run: Run, orders: OpenStore) -> None:
    first = _lines(run("read", "orders", "--meta", "--columns", "id", "--limit", "1"))[0]
    meta = first["_meta"]
    assert (meta["journal"], meta["offset"]) == ("orders/region=eu/000", 0)
    batch = next(iter(orders.read("orders/region=eu/000", 0)))
    assert meta["clock_raw"] == int(batch.clocks[0])
    assert len(meta["producer"]) == 12
    assert datetime.datetime.fromisoformat(meta["clock"]).tzinfo is not None


@pytest.mark.usefixtures("orders")
def test_raw_shows_every_row_as_it_was_written(run: Run) -> None:
    rows = _lines(run("read", "orders", "--raw", "--partitions", "region=eu"))
    assert [(row["id"], row["_kind"]) for row in rows] == [
        (1, "CONTINUE"),
        (None, "ACK"),
        (90, "CONTINUE"),
        (None, "ACK"),
        (3, "OUTSIDE"),
        (3, "OUTSIDE"),
        (5, "CONTINUE"),
        (None, "ACK"),
    ]
    assert [row["_offset"] for row in rows] == list(range(8))
    assert rows[1]["_hints"] == ["orders/region=us/000"]
    assert rows[0]["_hints"] is None


def test_as_of_a_moment_shows_what_was_committed_by_then(run: Run, store: OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", [_order(1)])
        between = datetime.datetime.now(datetime.UTC)
        with producer.transaction() as transaction:
            transaction.append("orders", [_order(2), _order(3, "us")])
    assert _ids(run("read", "orders", "--as-of", between.isoformat())) == [1]
    assert len(_ids(run("read", "orders"))) == 3
    assert "no time zone" in run("read", "orders", "--as-of", "2026-01-01T00:00:00", code=1).stderr


def test_an_open_transaction_is_not_shown(run: Run, store: OpenStore) -> None:
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("orders", [_order(1)])
        assert _ids(run("read", "orders")) == []
        transaction.commit()
    assert _ids(run("read", "orders")) == [1]


@pytest.mark.parametrize(
    "options",
    [
        ("--raw", "--meta"),
        ("--raw", "--as-of", "2026-01-01T00:00:00Z"),
        ("--follow", "--format", "table"),
        ("--follow", "--order", "clock"),
        ("--json", "--format", "csv"),
    ],
)
def test_options_that_contradict_each_other_are_refused(run: Run, options: tuple[str, ...]) -> None:
    assert "Error: " in run("read", "orders", *options, code=2).stderr


class _Following:
    """Follows a collection one step at a time, as long as a test needs."""

    def __init__(self, store: OpenStore) -> None:
        self._batches = follow(
            store, Wanted.of(store.collection("orders"), ("id",)), threading.Event()
        )

    def new(self) -> list[int]:
        """What one more look brings."""
        found: list[int] = []
        while (batch := next(self._batches)) is not None:
            found += batch.column("id").to_numpy().tolist()
        return found


def test_following_shows_each_document_once_as_it_is_committed(orders: OpenStore) -> None:
    following = _Following(orders)
    assert following.new() == [1, 3, 5, 2, 4]
    assert following.new() == []
    with orders.producer() as one, orders.producer() as other:
        first, second = one.transaction(), other.transaction()
        first.append("orders", [_order(6), _order(7, "us"), _order(8, "asia")])
        second.append("orders", [_order(9)])
        assert following.new() == []
        second.commit()
        assert following.new() == [9]
        other.append("orders", [_order(10)])
        assert following.new() == [10]
        first.append("orders", [_order(11)])
        first.commit()
        assert sorted(following.new()) == [6, 7, 8, 11]  # a journal that was not there before, too
        rolled_back = one.transaction()
        rolled_back.append("orders", [_order(12)])
        rolled_back.rollback()
        stamped = one.stamp("orders", [_order(13)])
        one.send(stamped)
        one.send(stamped)
        assert following.new() == [13]
    assert following.new() == []


def test_following_holds_back_what_is_not_acknowledged_everywhere_yet(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = _Following(store)
    seen: list[list[int]] = []

    def look(step: Step) -> None:
        # The ACKs are there to be read, but nobody can know yet that they are everywhere.
        if step is Step.ACKNOWLEDGED:
            with store.producer() as other:
                other.append("orders", [_order(9)])
            seen.extend([following.new(), following.new()])

    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [_order(1), _order(2, "us")])
        monkeypatch.setattr(penstock.journal.transaction, "reached", look)
    assert seen == [[9], []]
    assert following.new() == [1, 2]
    assert following.new() == []


@pytest.mark.slow
def test_following_agrees_with_reading_after_many_interleaved_transactions(
    store: OpenStore, run: Run
) -> None:
    following = _Following(store)
    shown: list[int] = []
    with store.producer() as one, store.producer() as other:
        for number in range(30):
            first = one.transaction()
            first.append("orders", [_order(1_000 + number), _order(2_000 + number, "us")])
            shown += following.new()
            with other.transaction() as second:
                second.append("orders", [_order(3_000 + number)])
                shown += following.new()
            if number % 3:
                first.commit()
            else:
                first.rollback()
            if number % 4 == 0:
                shown += following.new()
    shown += following.new()
    assert len(shown) == len(set(shown)) == 30 + 2 * 20
    assert sorted(shown) == sorted(_ids(run("read", "orders")))
