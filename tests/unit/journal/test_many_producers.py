"""What it takes to open one more producer does not grow with those that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.journal.file.ledger import FileLedger
from tests.unit.journal.journal_files import open_numbers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_opening_a_producer_looks_at_no_ledger_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    alive = [store.producer() for _ in range(6)]
    for _ in range(6):
        store.producer().close()
    store.recover()  # has seen that they are settled
    looked: list[str] = []
    for name in ("record", "is_dead", "is_settled"):
        _count(monkeypatch, name, looked)
    alive.append(store.producer())
    assert looked == []
    other = open_numbers(tmp_path, durability="buffered")
    other.recover()
    assert sorted(set(looked)) == ["is_dead", "is_settled"]
    assert len(looked) == 7 + 6


def test_a_dead_producer_among_many_is_found(tmp_path: Path) -> None:
    store = open_numbers(tmp_path, durability="buffered")
    alive = [store.producer() for _ in range(3)]
    transaction = alive[1].transaction()
    transaction.append("numbers", [{"id": 1}])
    for ledger in store._own.values():
        if ledger.producer == alive[1].id:
            ledger.let_go_after_fork()  # as the system does when a process ends
    assert store.recover() == [alive[1].id]
    alive[0].append("numbers", [{"id": 2}])


def _count(monkeypatch: pytest.MonkeyPatch, name: str, looked: list[str]) -> None:
    method = getattr(FileLedger, name)

    def counted(self: FileLedger) -> object:
        looked.append(name)
        return method(self)

    monkeypatch.setattr(FileLedger, name, counted)
