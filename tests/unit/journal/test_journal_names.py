"""Names of journals: different values are never mixed, and selectors choose as they say."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.journal.names import (
    EVERYTHING,
    Selector,
    decode_label,
    encode_label,
    journal_name,
    parse_journal_name,
)

texts = st.text(max_size=12)
awkward = st.sampled_from(
    ["", "42", "true", "null", "%_42", "%_null", "/", "+", "%", "=", "a/b=c", ".", "..", "é", "%2F"]
)
# One column has one type, or null: values of different kinds meet only as text and the rest.
others: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1)
)
columns: list[st.SearchStrategy[Any]] = [
    texts | awkward | others,
    st.none() | st.binary(max_size=6),
    st.none() | st.dates(),
    st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    st.none() | st.datetimes(),
    st.none() | st.decimals(-999, 999, places=2),
]


def is_same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


@given(st.sampled_from(columns).flatmap(lambda kind: st.tuples(kind, kind)))
@example(("42", 42))
@example(("true", True))
@example((1, True))
@example(("null", None))
@example(("", None))
@example(("%_42", 42))
@example((b"", None))
def test_different_values_have_different_labels(pair: tuple[object, object]) -> None:
    left, right = pair
    assert (encode_label(left) == encode_label(right)) == is_same(left, right)


@given(texts | awkward | others | st.binary(max_size=6))
def test_a_label_is_one_harmless_path_component(value: object) -> None:
    label = encode_label(value)
    assert label.isascii()
    assert not set(label) & set("/+=\\\0 ")


def test_labels_as_they_stand_on_disk() -> None:
    assert [encode_label(v) for v in ("42", 42, True, None, "a/b", "ü", -1, b"\x00\xff")] == [
        "42", "%_42", "%_true", "%_null", "a%2Fb", "%C3%BC", "%_-1", "%_b00ff",
    ]  # fmt: skip
    assert encode_label(datetime.date(2026, 11, 15)) == "%_2026-11-15"
    assert encode_label(decimal.Decimal("1.50")) == "%_1.50"


@given(texts | awkward)
def test_text_is_shown_as_it_was(text: str) -> None:
    assert decode_label(encode_label(text)) == text


@given(
    st.dictionaries(st.text(min_size=1, max_size=6), texts | awkward | others, max_size=3),
)
def test_a_name_comes_apart_again(values: dict[str, object]) -> None:
    name = journal_name("orders", list(values), list(values.values()))
    collection, labels = parse_journal_name(name)
    assert collection == "orders"
    assert list(labels) == list(values)
    assert labels == {column: encode_label(value) for column, value in values.items()}
    assert name.endswith("/000")
    assert name.count("/") == len(values) + 1


@pytest.mark.parametrize("name", ["orders", "", "/000", "orders/", "orders/region=eu"])
def test_what_is_not_a_journal_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a journal name"):
        parse_journal_name(name)


def test_a_part_without_a_value_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'region' has no '='"):
        parse_journal_name("orders/region/000")


def test_a_value_too_long_for_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"partition value note='y{40}'.* 605 bytes of"):
        journal_name("orders", ["note"], ["y" * 600])


LABELS = [
    {"region": encode_label(region), "tier": encode_label(tier)}
    for region in ("eu", "us", "a/b", None)
    for tier in (1, 2, None)
]


def chosen(text: str) -> set[tuple[str, str]]:
    selector = Selector.parse(text, ["region", "tier"])
    return {
        (decode_label(labels["region"]), decode_label(labels["tier"]))
        for labels in LABELS
        if selector.accepts(labels)
    }


def test_columns_are_ored_within_and_anded_between() -> None:
    everything = {(r, t) for r in ("eu", "us", "a/b", "null") for t in ("1", "2", "null")}
    assert chosen("") == chosen(" , ") == everything
    assert chosen("region=eu") == {("eu", "1"), ("eu", "2"), ("eu", "null")}
    assert chosen("region=eu,region=us,tier=2") == {("eu", "2"), ("us", "2")}
    assert chosen(" region=a/b , tier=null ") == {("a/b", "null")}
    assert chosen("tier=null") == {(r, "null") for r in ("eu", "us", "a/b", "null")}
    assert chosen("region=nowhere") == set()


def test_exclude_wins_over_include() -> None:
    assert chosen("region=eu,!tier=2") == {("eu", "1"), ("eu", "null")}
    assert chosen("region=eu,!region=eu") == set()
    assert chosen("!region=eu,!region=us,!region=a/b,!tier=null") == {("null", "1"), ("null", "2")}


def test_everything_accepts_everything() -> None:
    assert EVERYTHING.accepts({})
    assert all(EVERYTHING.accepts(labels) for labels in LABELS)


def test_a_wrong_selector_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read 'eu'.*write column=value, or !"):
        Selector.parse("region=eu,eu", ["region"])
    with pytest.raises(ConfigurationError, match="'zone' is not one; it is by region, tier"):
        Selector.parse("zone=1", ["region", "tier"])
    with pytest.raises(ConfigurationError, match="'zone' is not one; it is by no column"):
        Selector.parse("!zone=1", [])


TEXTS = ["null", "a,b", "eu ", ' "q" ', "%_null", "42", "a=b", "!x", "\\", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_quoted_text_chooses_that_text_alone(text: str) -> None:
    """And no value is not the text `null`."""
    selector = Selector.parse(f"region={json.dumps(text)}", ["region"])
    values = [*TEXTS, None, 42, True]
    assert [one for one in values if selector.accepts({"region": encode_label(one)})] == [text]


def test_null_is_no_value() -> None:
    labels = [{"region": encode_label(value)} for value in (None, "null", "eu")]
    for text, wanted in (
        ("region=null", [True, False, False]),
        ("!region=null", [False, True, True]),
        ('region=null,region="null"', [True, True, False]),
    ):
        selector = Selector.parse(text, ["region"])
        assert [selector.accepts(each) for each in labels] == wanted, text


@pytest.mark.parametrize("text", ['region="eu', 'region="eu"x', 'region="\\q"'])
def test_a_quote_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="partitions"):
        Selector.parse(text, ["region"])
