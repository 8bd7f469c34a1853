"""`penstock append`: every format, all or nothing, and errors that name the place."""

from __future__ import annotations

import decimal
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from penstock.journal import OpenStore

    Run = Callable[..., Result]


def _documents(store: OpenStore, collection: str = "orders") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    journals = [journal.name for journal in store.journals(collection)]
    for cut in take_cut(store, journals):
        for documents in read_documents(store, cut):
            found += documents.documents.to_pylist()
    return sorted(found, key=lambda document: int(document["id"]))


def _piped(store: OpenStore, *arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", "append", *arguments],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "PENSTOCK_STORE": store.url},
        timeout=60,
        check=False,
    )


def test_json_lines_csv_and_parquet_go_into_one_transaction(
    run: Run, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "region": "eu", "amount": 1.1}\n\n{"id": 2}\n')
    (tmp_path / "b.csv").write_text("id,amount,region\n3,2.50,us\n4,,\n")
    table = pa.table({"id": [5], "amount": [decimal.Decimal("9.99")], "region": ["eu"]})
    pq.write_table(table, tmp_path / "c.parquet")
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.csv", "c.parquet")]
    result = run("append", "orders", *files, "--json")
    assert json.loads(result.stdout) == {
        "collection": "orders",
        "created": False,
        "transaction": True,
        "documents": 5,
        "files": [
            {"file": file, "documents": rows} for file, rows in zip(files, (2, 2, 1), strict=True)
        ],
    }
    assert [(row["id"], row["region"], row["amount"]) for row in _documents(store)] == [
        (1, "eu", decimal.Decimal("1.10")),
        (2, None, None),
        (3, "us", decimal.Decimal("2.50")),
        (4, None, None),
        (5, "eu", decimal.Decimal("9.99")),
    ]
    commits = {
        int(clock)
        for cut in take_cut(store, [journal.name for journal in store.journals("orders")])
        for found in read_documents(store, cut)
        for clock in found.commit_clocks
    }
    assert len(commits) == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.jsonl", '{"id": 1}\n{"id": 2,\n', "x.jsonl line 2: is not JSON"),
        ("x.jsonl", '{"id": 1}\n\n{"id": 2, "amount": "a lot"}\n', "line 3, column 'amount'"),
        ("x.jsonl", '{"id": 1}\n{"region": "eu"}\n', "x.jsonl line 2, column 'id': has no value"),
        ("x.jsonl", '{"id": 1, "price": 2}\n', "x.jsonl line 1, column 'price'"),
        ("x.jsonl", '[{"id": 1}]\n', "x.jsonl line 1: is an array"),
        ("x.csv", "id,amount\n1,2\n2,x\n", "x.csv line 3, column 'amount': 'x' does not fit DEC"),
        ("x.csv", 'id,region\n1,"two\nlines"\nx,eu\n', "x.csv line 4, column 'id'"),
        ("x.csv", 'id,region\nx,"two\nlines"\n3,eu\n', "x.csv line 2, column 'id'"),
        ("x.csv", "id,amount\n1\n", "x.csv line 2: has 1 fields, but the header has 2"),
        ("x.csv", "id,price\n1,2\n", "x.csv, column 'price': the collection has no such column"),
        ("x.csv", "id,id\n1,2\n", "column 'id' appears twice"),
        ("x.csv", "", "x.csv: is empty"),
        ("x.parquet", "no", "x.parquet: is not a Parquet file"),
    ],
)
def test_a_refused_row_is_named_and_nothing_is_kept(
    *, run: Run, store: OpenStore, tmp_path: Path, name: str, text: str, said: str
) -> None:
    good = tmp_path / "good.csv"
    good.write_text("id\n100\n101\n")
    (tmp_path / name).write_text(text)
    result = run("append", "orders", str(good), str(tmp_path / name), "--batch-rows", "1", code=1)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert "nothing was appended" in result.stderr
    assert "Traceback" not in result.stderr
    assert _documents(store) == []
    # Mended, the same command goes through.
    run("append", "orders", str(good))
    assert [row["id"] for row in _documents(store)] == [100, 101]


def test_without_a_transaction_the_batches_before_a_refused_row_stay(
    run: Run, store: OpenStore, tmp_path: Path
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"id": 1}\n{"id": 2}\n{"id": 3}\n{"id": "x"}\n')
    result = run("append", "orders", str(file), "--no-transaction", "--batch-rows", "2", code=1)
    assert "2 documents before it were appended and stay" in result.stderr
    assert [row["id"] for row in _documents(store)] == [1, 2]


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(
    run: Run, store: OpenStore, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1, 2, None]}), tmp_path / "x.parquet")
    result = run("append", "orders", str(tmp_path / "x.parquet"), code=1)
    assert "x.parquet row 3, column 'id': has no value" in result.stderr
    assert _documents(store) == []


def test_standard_input_is_json_lines_unless_a_format_is_given(store: OpenStore) -> None:
    done = _piped(store, "orders", "-", text='{"id": 1}\n{"id": 2}')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "appended 2 documents to orders in one transaction\n"
    done = _piped(store, "orders", "-", "--format", "csv", text="id\n3\n")
    assert done.returncode == 0
    assert [row["id"] for row in _documents(store)] == [1, 2, 3]
    done = _piped(store, "orders", "-", text='{"id": oops}\n')
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard input line 1: is not JSON")


def test_a_collection_is_created_from_the_first_file(
    run: Run, store: OpenStore, tmp_path: Path
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("id,region,at\n1,eu,2026-01-01T00:00:00Z\n2,us,\n")
    arguments = ("append", "new", str(file), "--create", "--key", "id", "--partition-by", "region")
    result = run(*arguments)
    assert "created new: id BIGINT NOT NULL, region STRING, at TIMESTAMP" in result.stdout
    assert store.collection("new").partition_by == ("region",)
    assert [row["id"] for row in _documents(store, "new")] == [1, 2]
    result = run(*arguments)  # it is there by now
    assert "created" not in result.stdout
    assert len(_documents(store, "new")) == 4


def test_a_collection_that_is_missing_is_not_made_by_accident(
    run: Run, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("id\n1\n")
    result = run("append", "ordres", str(tmp_path / "x.csv"), code=1)
    assert "no collection 'ordres' in this store; it has: orders" in result.stderr
    assert store.collections() == ["orders"]


def test_a_file_of_unknown_kind_or_none_is_refused_before_anything_is_done(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "x.xls").write_text("")
    assert (
        "cannot tell its format" in run("append", "orders", str(tmp_path / "x.xls"), code=1).stderr
    )
    assert "no such file" in run("append", "orders", "nowhere.csv", code=1).stderr
    assert "go together" in run("append", "orders", "x.csv", "--create", code=2).stderr
