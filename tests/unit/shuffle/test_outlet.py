"""Where a consumer draws from, over a shuffle that runs here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.shuffle import outlet as outlets
from penstock.shuffle.embedded import EmbeddedShuffle
from penstock.shuffle.feed import Binding, Feed
from penstock.shuffle.outlet import Outlet
from penstock.shuffle.target import Target
from tests.conformance.waiting import WAIT_SECONDS_MAX, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FEED = Feed("orders", (Binding("orders"),))


@pytest.fixture
def outlet(tmp_path: Path) -> Iterator[Outlet]:
    store = ps.open_store(tmp_path / "store", durability="buffered")
    store.create(ps.Collection.define("orders", "id BIGINT NOT NULL", "id"))
    with store.producer() as producer:
        producer.append("orders", [{"id": number} for number in range(10)])
    made = Outlet(EmbeddedShuffle(FEED, store, tmp_path / "feed", members=2), store, FEED)
    yield made
    made.close()


def test_epochs_come_while_the_target_is_found_out(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_find = threading.Event()

    def slow(*given: Any) -> Target:
        assert may_find.wait(WAIT_SECONDS_MAX)
        return Target(*given)

    monkeypatch.setattr(outlets, "Target", slow)
    outlet.set_target()
    assert outlet.has_target
    found = outlet.wait_epoch(0, WAIT_SECONDS_MAX)
    assert found is not None
    assert not outlet.has_reached(found), "nobody knows yet"
    may_find.set()
    eventually(lambda: outlet.has_reached(found), "now it is known")


def test_a_target_that_cannot_be_found_out_is_told(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Target:
        raise OSError("the disk is gone")

    monkeypatch.setattr(outlets, "Target", broken)
    outlet.set_target()
    newest = outlet.newest()

    def told() -> bool:
        try:
            return outlet.has_reached(newest)
        except OSError as error:
            return "the disk is gone" in str(error)

    eventually(told, "it goes on as if nothing was wrong")
