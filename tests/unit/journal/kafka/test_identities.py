"""Producers that users name: which rows get which identity, and what falls away by it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from penstock.ddl import schema_from_ddl
from penstock.errors import ConfigurationError
from penstock.journal.kafka.address import Subscription
from penstock.journal.kafka.errors import RowIdentityError
from penstock.journal.kafka.identities import SEQUENCE_MAX, Identity
from penstock.journal.kafka.records.batches import Partition
from penstock.journal.kafka.records.columns import decode
from penstock.journal.kafka.rows import journal_batch
from penstock.journal.kafka.shapes import shape_of
from penstock.journal.offset_identity import PLAIN, clock_of
from penstock.sequence import Outcome, sequence_batch
from tests.unit.journal.kafka.record_bytes import Row, batch_of

PARTITION = Partition("payments", 2)
BY_HEADER = Identity.parse({"header": "id"})
BY_COLUMNS = {"producer": "writer", "sequence": "number"}
RAW = Subscription(("payments",))
JSON = Subscription(
    ("payments",),
    values={"format": "json", "schema": "writer STRING, number BIGINT", "on_error": "dead_letter"},
)


def rows_with(headers: list[list[tuple[str, bytes | None]]]) -> list[Row]:
    return [Row(place, 0, None, b"", tuple(each)) for place, each in enumerate(headers)]


def read(data: bytes, identity: Identity, subscription: Subscription = RAW) -> Any:
    """The journal's batch of these bytes."""
    shape = shape_of(subscription, with_headers=False)
    decoded = decode(PARTITION, data, 0, with_headers=True)
    documents, kept = shape.documents(PARTITION, decoded, None)
    named = identity.of(PARTITION, decoded, documents, kept)
    return journal_batch("p", PARTITION, decoded, 1_000, documents, kept=kept, named=named)


def fresh(batch: Any, states: Any = None) -> list[int]:
    """The offsets of the rows that count."""
    columns = (batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags)
    found = sequence_batch(*columns, states or {})
    assert found.fault is None
    return batch.offsets[found.outcomes == Outcome.OUTSIDE_COMMIT].tolist()  # type: ignore[no-any-return]


def test_a_row_counts_if_its_number_is_above_all_before_it() -> None:
    sent = [b"a:1", b"b:1", b"a:2", b"a:2", b"a:1", b"b:7", b"a:9", b"b:6", b"a:b:1", b"b:8"]
    batch = read(batch_of(rows_with([[("id", each)] for each in sent])), BY_HEADER)
    assert fresh(batch) == [0, 1, 2, 5, 6, 8, 9]
    assert len(set(batch.producers.tolist())) == 3
    assert batch.clocks.tolist() == [clock_of(int(each.rpartition(b":")[2])) for each in sent]


def test_any_bytes_are_a_name_and_the_last_header_counts() -> None:
    headers: list[list[tuple[str, bytes | None]]] = [
        [("id", b"x"), ("id", b"\xff\x00\n:3")],
        [("other", b"b:1"), ("id", b"\xff\x00\n:3"), ("more", None)],
        [("id", b"a:%d" % SEQUENCE_MAX)],
        [("id", b"a:%d" % (SEQUENCE_MAX - 1))],
    ]
    assert fresh(read(batch_of(rows_with(headers)), BY_HEADER)) == [0, 2]


@pytest.mark.parametrize(
    "header", [None, b"", b"a", b"a:", b":1", b"a:-1", b"a:1.5", b"a:%d" % (SEQUENCE_MAX + 1)]
)
def test_a_header_that_says_nothing_fails_the_read_or_counts(header: bytes | None) -> None:
    data = batch_of(rows_with([[("id", b"a:1")], [("id", header)], [], [("id", b"a:1")]]))
    with pytest.raises(RowIdentityError) as caught:
        read(data, BY_HEADER)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("payments", 2, 1)
    assert "'id'" in str(error)
    assert "on_error" in str(error)
    kept = read(data, Identity.parse({"header": "id", "on_error": "keep"}))
    assert fresh(kept) == [0, 1, 2]
    assert kept.producers.tolist()[1:3] == [PLAIN.int64] * 2
    assert kept.clocks.tolist()[1:3] == [clock_of(1), clock_of(2)]


def test_rows_of_transactions_keep_the_identity_they_have() -> None:
    data = batch_of(rows_with([[]] * 2), producer=(5, 0, 0), is_transactional=True)
    data += batch_of(rows_with([[("id", b"a:1")]] * 2), base=2, producer=(6, 0, 0))
    batch = read(data, BY_HEADER)
    assert (batch.flags & 3).tolist() == [1, 1, 0, 0]
    assert batch.clocks.tolist() == [clock_of(0), clock_of(1), clock_of(1), clock_of(1)]
    assert fresh(batch) == [2], "an idempotent producer that was started again repeats itself, too"


def test_columns_name_producers_and_what_does_not_parse_does_not_count() -> None:
    sent = [("a", 1), ("a", 1), None, ("a", 3), ("b", 2), ("a", 2)]
    values = [
        b"{" if one is None else json.dumps({"writer": one[0], "number": one[1]}).encode()
        for one in sent
    ]
    data = batch_of([Row(place, 0, b"k", value) for place, value in enumerate(values)])
    batch = read(data, Identity.parse(BY_COLUMNS), JSON)
    assert batch.offsets.tolist() == [0, 1, 3, 4, 5]
    assert fresh(batch) == [0, 3, 4]


@pytest.mark.parametrize("value", [None, b'{"writer": "a"}', b'{"writer": "a", "number": -1}'])
def test_columns_that_say_nothing(value: bytes | None) -> None:
    data = batch_of([Row(0, 0, None, value)], base=7)
    with pytest.raises(RowIdentityError, match=r"offset 7 of payments-2.*'writer' and 'number'"):
        read(data, Identity.parse(BY_COLUMNS), JSON)
    assert fresh(read(data, Identity.parse({**BY_COLUMNS, "on_error": "keep"}), JSON)) == [7]


def test_batches_of_any_size_give_the_same() -> None:
    """By the rule one row after the other, and by batches with the states between them."""
    choices = random.Random(3)
    sent = [(choices.choice("abc"), choices.randrange(60)) for _ in range(300)]
    highest: dict[str, int] = {}
    expected = []
    for place, (who, number) in enumerate(sent):
        if number > highest.get(who, -1):
            highest[who] = number
            expected.append(place)
    states: Any = {}
    found: list[int] = []
    place = 0
    while place < len(sent):
        size = choices.randrange(1, 40)
        part = sent[place : place + size]
        headers: list[list[tuple[str, bytes | None]]] = [
            [("id", f"{who}:{number}".encode())] for who, number in part
        ]
        batch = read(batch_of(rows_with(headers), base=place), BY_HEADER)
        columns = (batch.offsets, batch.ends, batch.producers, batch.clocks, batch.flags)
        sequenced = sequence_batch(*columns, states)
        found += batch.offsets[sequenced.outcomes == Outcome.OUTSIDE_COMMIT].tolist()
        states = sequenced.states
        place += size
    assert found == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "header"),
        ({"header": "a", "producer": "b"}, "sequence"),
        ({"producer": "b"}, "sequence"),
        ({"header": ""}, "must be a text"),
        ({"header": 3}, "must be a text"),
        ({"head": "a"}, "no 'head'"),
        ({"header": "a", "on_error": "null"}, "fail, or keep"),
    ],
)
def test_what_is_no_identity_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Identity.parse(given)


def test_columns_are_checked() -> None:
    identity = Identity.parse(BY_COLUMNS)
    identity.check(schema_from_ddl("writer STRING, number INT"))
    with pytest.raises(ConfigurationError, match="no column 'number'; there are writer"):
        identity.check(schema_from_ddl("writer STRING"))
    with pytest.raises(ConfigurationError, match="'number' is string"):
        identity.check(schema_from_ddl("writer STRING, number STRING"))
    with pytest.raises(ConfigurationError):
        identity.check(schema_from_ddl("writer ARRAY<STRING>, number BIGINT"))


def test_headers_are_columns() -> None:
    shape = shape_of(Subscription(headers=("tenant",)), with_headers=False)
    assert shape.schema.names[-1] == "header:tenant"
    headers: list[list[tuple[str, bytes | None]]] = [[("tenant", b"a"), ("tenant", b"b")], []]
    decoded = decode(PARTITION, batch_of(rows_with(headers)), 0, with_headers=True)
    for columns in (None, ["header:tenant"], ["offset", "header:tenant"]):
        found, _ = shape.documents(PARTITION, decoded, columns)
        assert found.column("header:tenant").to_pylist() == [b"b", None]
        assert shape.needs_headers(columns)
    assert not shape.needs_headers(["offset"])
    assert shape.documents(PARTITION, decoded, ())[0].num_rows == 2


def test_headers_beside_values_that_were_put_aside() -> None:
    values = (b"{", b'{"writer": "w", "number": 1}')
    rows = [Row(place, 0, None, one, (("t", b"%d" % place),)) for place, one in enumerate(values)]
    decoded = decode(PARTITION, batch_of(rows), 0, with_headers=True)
    shape = shape_of(Subscription(values=JSON.values, headers=("t",)), with_headers=False)
    found, kept = shape.documents(PARTITION, decoded, ["header:t"])
    assert found.to_pylist() == [{"header:t": b"1"}]
    assert np.array_equal(kept if kept is not None else [], [1])
