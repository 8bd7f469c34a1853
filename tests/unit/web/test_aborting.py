"""The page's one action, over real sockets and in a real store."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import CommitFailedError
from penstock.journal import Collection, open_store
from penstock.journal.errors import ProducerFencedError
from tests.unit.web.example_state import example_state, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal import OpenStore
    from tests.unit.web.conftest import Answer, Asker


@pytest.fixture
def store(feed: Path, tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as made:
        made.create(Collection.define("orders", "id BIGINT NOT NULL", "id"))
        put(feed, example_state(time.time(), store=made.url))
        yield made


def ask_to_abort(ask: Asker, producer: object, confirm: str = "abort", **more: Any) -> Answer:
    body = json.dumps({"producer": str(producer), "confirm": confirm}).encode()
    return ask("/abort?feed=orders", "POST", body, **more)


def test_an_open_transaction_is_rolled_back_and_its_producer_told(
    ask: Asker, store: OpenStore
) -> None:
    with store.producer("nightly") as producer:
        transaction = producer.transaction()
        transaction.append("orders", [{"id": 1}])
        done = ask_to_abort(ask, producer.id)
        assert (done.status, done.json["outcome"]) == (200, "rolled back")
        with pytest.raises(CommitFailedError, match=r"was aborted by .*\(page, from 127.0.0.1\)"):
            transaction.commit()
        with pytest.raises(ProducerFencedError, match="was aborted by"):
            producer.append("orders", [{"id": 2}])
        [told] = ask("/state").json["aborts"]
        assert told["producer"] == str(producer.id)
        assert (told["name"], told["outcome"]) == ("nightly", "rolled back")
        again = ask_to_abort(ask, producer.id)
        assert again.status == 409
        assert "has no transaction open" in again.text


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"confirm": "yes"}, 409, "it was not confirmed"),
        ({"producer": "no hex"}, 409, "12 hexadecimal digits"),
        ({"token": None}, 403, "The token is missing or wrong"),
        ({"Origin": "http://evil.example"}, 403, "Only the page itself"),
        ({"Origin": "null"}, 403, "Only the page itself"),
    ],
    ids=["not confirmed", "no producer", "no token", "other origin", "no origin"],
)
def test_what_is_not_right_changes_nothing(
    ask: Asker, store: OpenStore, change: dict[str, str], status: int, words: str
) -> None:
    with store.producer() as producer:
        with producer.transaction() as transaction:
            transaction.append("orders", [{"id": 1}])
            asked = {"producer": str(producer.id), **change}
            answer = ask_to_abort(ask, **asked)
            assert answer.status == status
            assert words in answer.text
        assert store.aborts() == []


def test_a_cookie_alone_may_not_change_anything(ask: Asker, store: OpenStore) -> None:
    """A browser that a page elsewhere sends here says so, or says nothing: not enough either."""
    cookie = f"penstock-{ask.server.port}={ask.server.token}"
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": 1}])
        assert ask_to_abort(ask, producer.id, token=None, Cookie=cookie).status == 403
        origin = ask.server.base
        ours = ask_to_abort(ask, producer.id, token=None, Cookie=cookie, Origin=origin)
        assert ours.status == 200
        transaction.rollback()


def test_too_much_is_refused(ask: Asker, store: OpenStore) -> None:
    assert ask("/abort?feed=orders", "POST", b"x" * 5_000).status == 413
    assert ask("/abort?feed=other", "POST", b"{}").status == 404
    assert ask("/other?feed=orders", "POST", b"{}").status == 404
