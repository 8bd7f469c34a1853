"""Who reads what: owners where a journal has one key, an even draw elsewhere."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.journal.collection import Collection
from penstock.journal.rows import split_by_journal
from penstock.routing import Assignment, assign, vnodes_of
from penstock.shuffle.session.topology import Topology
from tests.unit.shuffle.session.plans import binding, plan_of

ORDERS = Collection.define("orders", "id BIGINT NOT NULL, region STRING, tier INT", "id", "region")
JOURNALS = [f"orders/region={number}/000" for number in range(10_000)]


def drawn(assignment: Assignment) -> Topology:
    return Topology(plan_of(binding(0), binding(1)), {"orders": ORDERS}, assignment)


def readers(topology: Topology, place: int = 0) -> list[int]:
    return [topology.reader(place, journal) for journal in JOURNALS]


def test_shares_are_even() -> None:
    for count in (2, 4, 7):
        share = len(JOURNALS) / count
        shares = Counter(readers(drawn(assign(range(1, count + 1)))))
        assert len(shares) == count
        assert all(abs(found - share) < 4 * share**0.5 for found in shares.values()), shares


def test_only_the_journals_of_who_leaves_move() -> None:
    four, three = readers(drawn(assign([1, 2, 3, 4]))), readers(drawn(assign([1, 2, 4])))
    moved = {old: Counter[int]() for old in (1, 2, 3, 4)}
    for old, new in zip(four, three, strict=True):
        moved[old][new] += old != new
    assert not moved[1].total() + moved[2].total() + moved[4].total()
    assert all(700 < moved[3][member] < 970 for member in (1, 2, 4))


def test_bindings_draw_apart() -> None:
    topology = drawn(assign([1, 2]))
    same = sum(a == b for a, b in zip(readers(topology, 0), readers(topology, 1), strict=True))
    assert 4_700 < same < 5_300


def test_the_draw_never_changes() -> None:
    """Other versions of this program have to choose alike: these are for ever."""
    topology = drawn(assign([1, 2, 3, 2**64 - 1]))
    found = [topology.reader(place, journal) for place in (0, 1) for journal in JOURNALS[:6]]
    assert found == PINNED
    weights = {
        member: xxhash.xxh3_64_intdigest(struct.pack("<QH", member, 1) + JOURNALS[3].encode())
        for member in topology.members
    }
    assert topology.reader(1, JOURNALS[3]) == max(weights, key=lambda member: weights[member])


PINNED = [2, 1, 1, 3, 2**64 - 1, 3, 2, 3, 2**64 - 1, 2**64 - 1, 1, 2]


def test_bindings_are_listed_in_turn() -> None:
    topology = drawn(assign([3, 5, 9]))
    assert [topology.lister(place) for place in range(5)] == [3, 5, 9, 3, 5]


# Journals with one key

TYPES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "flag": ("BOOLEAN", st.booleans()),
    "tiny": ("TINYINT", st.integers(-128, 127)),
    "number": ("INT", st.integers(-(2**31), 2**31 - 1)),
    "big": ("BIGINT", st.integers(-(2**63), 2**63 - 1)),
    "text": ("STRING", st.text(st.characters(exclude_categories=["Cs"]), max_size=6)),
    "raw": ("BINARY", st.binary(max_size=6)),
    "day": ("DATE", st.dates()),
    "moment": ("TIMESTAMP", st.datetimes(timezones=st.just(datetime.UTC))),
    "local": ("TIMESTAMP_NTZ", st.datetimes()),
    "price": (
        "DECIMAL(20,4)",
        st.decimals(min_value=-(10**15), max_value=10**15, places=4, allow_nan=False),
    ),
}
TYPED = Collection.define(
    "typed",
    "id BIGINT NOT NULL, " + ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items()),
    "id",
    tuple(TYPES),
)


@given(
    st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}),
        min_size=1,
        max_size=4,
    ),
    st.permutations(list(TYPES)),
    st.integers(1, len(TYPES)),
)
def test_a_journals_name_gives_the_vnode_of_its_documents(
    documents: list[dict[str, object]], order: list[str], width: int
) -> None:
    key = tuple(order[:width])
    plan = plan_of(binding(0, "typed", key=key, key_from_partitions=True))
    assignment = assign([1, 2, 3])
    topology = Topology(plan, {"typed": TYPED}, assignment)
    rows = [{"id": at, **document} for at, document in enumerate(documents)]
    batch = pa.RecordBatch.from_pylist(rows, schema=TYPED.schema)
    for name, part in split_by_journal(TYPED, batch):
        vnodes = vnodes_of([part.column(column) for column in key]).tolist()
        assert set(vnodes) == {topology.vnode(0, name)}
        assert topology.reader(0, name) == assignment.owner_of(vnodes[0])


@pytest.mark.parametrize(
    "label",
    [
        "%_300", "%_1.0", "%_01", "%_true", "x", "%_", "%_x", "%_%2B1", "1", "%_[1]", "%_1e1",
    ],
)  # fmt: skip
def test_a_label_that_is_not_just_what_would_be_written_tells_nothing(label: str) -> None:
    collection = Collection.define("typed", "id BIGINT NOT NULL, tiny TINYINT", "id", "tiny")
    plan = plan_of(binding(0, "typed", key=("tiny",), key_from_partitions=True))
    topology = Topology(plan, {"typed": collection}, assign([1, 2, 3]))
    name = f"typed/tiny={label}/000"
    assert topology.vnode(0, name) is None
    draw = Topology(plan_of(binding(0, "typed")), {"typed": collection}, assign([1, 2, 3]))
    assert topology.reader(0, name) == draw.reader(0, name)


def test_a_name_without_the_column_tells_nothing() -> None:
    plan = plan_of(binding(0, key=("region",), key_from_partitions=True))
    topology = Topology(plan, {"orders": ORDERS}, assign([1, 2]))
    assert topology.vnode(0, "orders/000") is None
    assert topology.vnode(0, "orders/region=eu/000") is not None


def test_decimals_of_any_notation() -> None:
    collection = Collection.define("typed", "id BIGINT NOT NULL, v DECIMAL(38,10)", "id", "v")
    plan = plan_of(binding(0, "typed", key=("v",), key_from_partitions=True))
    topology = Topology(plan, {"typed": collection}, assign([1, 2, 3]))
    zero = pa.array([decimal.Decimal("0E-10")], pa.decimal128(38, 10))
    assert topology.vnode(0, "typed/v=%_0E-10/000") == vnodes_of([zero])[0]
    assert topology.vnode(0, "typed/v=%_0/000") is None


def test_documents_of_several_keys_have_no_vnode() -> None:
    assert drawn(assign([1, 2])).vnode(0, JOURNALS[0]) is None
