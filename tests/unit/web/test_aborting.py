"""The page's one action, over real sockets and in a real store."""

from __future__ import annotations

import fcntl
import json
import os
import threading
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


WAIT_SECONDS_MAX = 120.0


@pytest.fixture
def store(feed: Path, tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as made:
        made.create(Collection.define("orders", "id BIGINT NOT NULL", "id"))
        put(feed, example_state(time.time(), store=made.url))
        yield made


def ask_to_abort(
    ask: Asker,
    producer: object,
    confirm: str = "abort",
    seen: dict[str, Any] | None = None,
    **more: Any,
) -> Answer:
    body = json.dumps({"producer": str(producer), "confirm": confirm} | (seen or {})).encode()
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
            asked: dict[str, Any] = {"producer": str(producer.id), **change}
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


def test_only_the_transaction_that_was_seen_is_aborted(ask: Asker, store: OpenStore) -> None:
    with store.producer() as producer:
        first = producer.transaction()
        first.append("orders", [{"id": 1}])
        found = store.open_transaction(producer.id)
        saw = {"journals": found.journals, "since": found.since}
        first.commit()
        with producer.transaction() as second:
            second.append("orders", [{"id": 2}])
            answer = ask_to_abort(ask, producer.id, seen=saw)
            assert answer.status == 409
            assert "has another one open now" in answer.text
        third = producer.transaction()
        third.append("orders", [{"id": 3}])
        found = store.open_transaction(producer.id)
        saw = {"journals": found.journals, "since": found.since}
        assert ask_to_abort(ask, producer.id, seen=saw).json["outcome"] == "rolled back"
        third.rollback()
        assert ask_to_abort(ask, producer.id, seen={"journals": 7}).status == 409


def test_an_abort_that_waits_holds_nobody_up(ask: Asker, store: OpenStore, tmp_path: Path) -> None:
    """As for a producer that was stopped while it decided."""
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("orders", [{"id": 1}])
        path = tmp_path / "store" / "producers" / str(producer.id) / "touched"
        with path.open("rb") as touched:
            fcntl.flock(touched, fcntl.LOCK_EX)
            answers: list[Answer] = []
            asking = threading.Thread(
                target=lambda: answers.append(ask_to_abort(ask, producer.id)), daemon=True
            )
            asking.start()
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while path.exists():  # then it is fenced, and confirming is what comes next
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert ask("/state").status == 200
            closing = threading.Thread(target=ask.server.close, daemon=True)
            closing.start()
            closing.join(WAIT_SECONDS_MAX)
            assert not closing.is_alive()
            assert answers == []
        asking.join(WAIT_SECONDS_MAX)
        assert [answer.json["outcome"] for answer in answers] == ["rolled back"]
        transaction.rollback()


def test_a_store_that_cannot_be_written_is_told(
    ask: Asker, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "store" / "aborts").write_text("in the way")
    with store.producer() as producer, producer.transaction() as transaction:
        transaction.append("orders", [{"id": 1}])
        answer = ask_to_abort(ask, producer.id)
    assert answer.status == 500
    assert "The store cannot be used: " in answer.text


def test_a_user_without_a_name_can_abort(
    ask: Asker, store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with store.producer() as producer:
        transaction = producer.transaction()
        transaction.append("orders", [{"id": 1}])
        assert ask_to_abort(ask, producer.id).json["by"].startswith(f"uid {os.getuid()}@")
        transaction.rollback()


def test_too_much_is_refused(ask: Asker, store: OpenStore) -> None:
    assert ask("/abort?feed=orders", "POST", b"x" * 300_000).status == 413
    assert ask("/abort?feed=other", "POST", b"{}").status == 404
    assert ask("/other?feed=orders", "POST", b"{}").status == 404
