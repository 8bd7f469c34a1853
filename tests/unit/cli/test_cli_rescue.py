"""`penstock backup`, `restore` and `salvage`, as a person types them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal import OpenStore
    from tests.unit.cli.conftest import Run

ORDERS = [{"id": number, "region": "eu", "amount": None, "at": None} for number in range(5)]


def test_a_store_is_copied_and_comes_back(store: OpenStore, run: Run, tmp_path: Path) -> None:
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    with store.producer() as producer:
        producer.append("orders", ORDERS[:3])
        assert "point 1: 3 rows in 1 journal" in run("backup", backup).output
        producer.append("orders", ORDERS[3:])
    assert json.loads(run("backup", backup, "--json").output)["rows"] == 5
    assert [
        one["rows"] for one in json.loads(run("restore", backup, "--list", "--json").output)
    ] == [3, 5]
    assert "point 2 is sound: 5 rows" in run("restore", backup, "--check").output
    assert "restored point 1" in run("restore", backup, "--point", "1", "--store", restored).output
    read = run("read", "orders", "--store", restored, "--format", "json").output
    assert [json.loads(line)["id"] for line in read.splitlines()] == [0, 1, 2]
    refused = run("restore", backup, "--store", restored, code=1)
    assert "not empty" in refused.output


def test_what_is_damaged_is_named_by_each(store: OpenStore, run: Run, tmp_path: Path) -> None:
    with store.producer() as producer:
        for order in ORDERS:
            producer.append("orders", [order])
    (segment,) = tmp_path.glob("store/journals/orders/*/*.segment")
    data = bytearray(segment.read_bytes())
    data[data.index(b"PSF1", data.index(b"PSF1") + 1) + 30] ^= 1
    segment.write_bytes(data)
    refused = run("backup", str(tmp_path / "backup"), code=1).output
    assert segment.name in refused
    assert "penstock salvage" in refused
    told = run("salvage", str(tmp_path / "rescued"), code=1).output
    assert "4 documents; offsets 1 to 1 are missing" in told
    again = run("salvage", str(tmp_path / "rescued 2"), "--json", code=1).output
    assert json.loads(again)[0]["missing"] == [{"begin": 1, "end": 2}]
