"""What an epoch has to cover to be up to date, against the journals themselves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.frontier import Frontier, JournalFrontier, ProducerFrontier
from penstock.journal.cut import take_cut
from penstock.journal.offset_identity import READER
from penstock.journal.progress import frontier_of
from penstock.shuffle import target as target_module
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.plan import make_plan
from penstock.shuffle.target import Target, covers, target_of_now

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> ps.OpenStore:
    store = ps.open_store(tmp_path / "store", durability="buffered", segment_bytes_max=2_000)
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL", "id"))
    return store


def target(store: ps.OpenStore, *bindings: Binding) -> Frontier:
    return target_of_now(store, make_plan(Feed("f", bindings or (Binding("orders"),)), store))


def read_all(store: ps.OpenStore) -> Frontier:
    return frontier_of(store, take_cut(store, ["orders/000"]))


def test_what_is_committed_is_wanted_and_nothing_else(store: ps.OpenStore) -> None:
    assert covers(Frontier.of(), target(store))
    with store.producer() as producer:
        producer.append("orders", {"id": 1})
        first = target(store)
        assert not covers(Frontier.of(), first)
        before = read_all(store)
        assert covers(before, first)
        with producer.transaction() as transaction:
            transaction.append("orders", {"id": 2})
            assert covers(before, target(store))  # it is open
        assert not covers(before, target(store))
        assert covers(read_all(store), target(store))
        assert covers(read_all(store), first)
        after = read_all(store)
        transaction = producer.transaction()
        transaction.append("orders", {"id": 3})
        transaction.rollback()
        assert covers(after, target(store))


def test_a_producer_that_never_committed_is_not_waited_for(store: ps.OpenStore) -> None:
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", {"id": 1})
        assert covers(Frontier.of(), target(store))


def test_of_a_delayed_binding_what_is_not_yet_due_is_not_wanted(store: ps.OpenStore) -> None:
    with store.producer() as producer:
        producer.append("orders", {"id": 1})
    assert covers(Frontier.of(), target(store, Binding("orders", read_delay_seconds=3600)))
    both = target(store, Binding("orders", read_delay_seconds=3600), Binding("orders"))
    assert [(each.journal, each.binding) for each in both.journals() if each.producers] == [
        ("orders/000", 1)
    ]


def test_commits_that_retention_has_dropped_are_not_waited_for(store: ps.OpenStore) -> None:
    with store.producer() as old:
        old.append("orders", {"id": 1})
    with store.producer() as young:
        for number in range(200):
            young.append("orders", {"id": number})
        first = store.ranges("orders/000", 0, store.probe("orders/000").write_head)[-1].begin
        store.drop_before("orders/000", first)
        wanted = target(store)
    (journal,) = wanted.journals()
    assert [entry.producer for entry in journal.producers] == [young.id]


def test_of_a_journal_that_is_deleted_nothing_is_wanted_any_more(
    store: ps.OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "LOOK_SECONDS", 0.0)
    with store.producer() as producer:
        producer.append("orders", {"id": 1})
    wanted = Target(store, make_plan(Feed("f", (Binding("orders"),)), store))
    assert not wanted.is_reached(Frontier.of())
    assert wanted.is_reached(read_all(store))
    shutil.rmtree(next((tmp_path / "store").rglob("orders/000")))
    assert wanted.is_reached(Frontier.of())


def test_a_journal_that_is_not_read_yet_is_looked_at_before_all_others(
    store: ps.OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that waits asks again and again, and a topic may have a thousand partitions."""
    monkeypatch.setattr(target_module, "LOOK_SECONDS", 1e9)
    wanted = Target(store, make_plan(Feed("f", (Binding("orders"),)), store))
    names = [f"orders/{number:03}@t" for number in range(200)]

    def up_to(*commits: int) -> Frontier:
        return Frontier.of(
            JournalFrontier(name, 0, (ProducerFrontier(READER, commit),))
            for name, commit in zip(names, commits, strict=True)
        )

    wanted._wanted = up_to(*[10] * 200)
    asked = 0
    entry = Frontier.entry

    def counting(self: Frontier, *key: Any) -> Any:
        nonlocal asked
        asked += 1
        return entry(self, *key)

    monkeypatch.setattr(Frontier, "entry", counting)
    almost = up_to(*[10] * 150, 9, *[10] * 49)
    assert not any(wanted.is_reached(almost) for _ in range(100))
    assert asked <= 151 + 99
    assert not wanted.is_reached(up_to(*[10] * 199, 9)), "another one is missing now"
    assert wanted.is_reached(up_to(*[10] * 200))
    assert not wanted.is_reached(almost), "a frontier may be lower than the one before"
