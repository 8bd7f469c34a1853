"""Which bindings a hint concerns."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.journal.names import Selector, journal_name
from penstock.shuffle.session.hint_index import HintIndex
from tests.unit.shuffle.session.plans import binding, plan_of

BY_REGION = ("region",)
EU = "orders/region=eu/000"
US = "orders/region=us/000"


def choose(text: str) -> Selector:
    return Selector.parse(text, BY_REGION)


INDEX = HintIndex(
    plan_of(
        binding(0, cohort=0),
        binding(1, cohort=1, selector=choose("region=eu")),
        binding(2, cohort=0, selector=choose("!region=eu")),
        binding(3, "orders-archive", cohort=0),
        binding(4, cohort=0),
    )
)


def test_a_hint_concerns_the_readers_in_the_same_cohort() -> None:
    assert INDEX.targets(EU, 0) == (0, 4)
    assert INDEX.targets(US, 0) == (0, 2, 4)
    assert INDEX.targets(EU, 1) == (1,)


def test_hints_to_excluded_partitions_are_dropped() -> None:
    assert INDEX.targets(US, 1) == ()
    assert INDEX.targets("payments/000", 0) == ()
    assert INDEX.targets(EU, 7) == ()


def test_a_name_that_begins_like_another_is_another_collection() -> None:
    assert INDEX.targets("orders-archive/region=eu/000", 0) == (3,)


def test_the_other_readers_of_the_same_journal() -> None:
    assert INDEX.siblings(EU, 0) == (4,)
    assert INDEX.siblings(US, 2) == (0, 4)
    assert INDEX.siblings(EU, 1) == ()


def test_whether_a_binding_reads_a_journal() -> None:
    assert INDEX.reads(EU, 1)
    assert not INDEX.reads(US, 1)
    assert not INDEX.reads("payments/000", 0)


@pytest.mark.parametrize("name", ["orders/eu/000", "orders/region=eu", "", "orders/"])
def test_what_is_no_journal_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="names no journal"):
        INDEX.targets(name, 0)


@pytest.mark.parametrize(
    "name", ["orders/000", "orders/tier=eu/000", "orders/region=eu/tier=2/000"]
)
def test_a_journal_by_other_columns_than_the_collection_is_refused(name: str) -> None:
    """Whether a selector names them or not."""
    for index in (INDEX, HintIndex(plan_of(binding(0)))):
        with pytest.raises(RemoteProtocolError, match=r"'orders', which .* partitioned by region"):
            index.targets(name, 0)


def test_columns_in_another_order_are_another_journal() -> None:
    index = HintIndex(plan_of(binding(0, partition_by=("region", "tier"))))
    assert index.targets("orders/region=eu/tier=2/000", 0) == (0,)
    with pytest.raises(RemoteProtocolError, match="partitioned by region, tier"):
        index.targets("orders/tier=2/region=eu/000", 0)


values = st.sampled_from(["eu", "us", "a/b", "%_1", 1, None, True])


@given(st.lists(st.tuples(st.integers(0, 2), values, st.booleans()), max_size=6), values)
def test_as_asking_each_binding(choices: list[tuple[int, object, bool]], value: object) -> None:
    selectors = []
    for _, chosen, out in choices:
        shown = chosen if isinstance(chosen, str) else json.dumps(chosen)
        term = (("region", shown),)
        selectors.append(Selector((), term) if out else Selector(term))
    plan = plan_of(
        binding(0, "other"),
        *(
            binding(place, cohort=cohort, selector=selectors[place - 1])
            for place, (cohort, _, _) in enumerate(choices, 1)
        ),
    )
    index = HintIndex(plan)
    name = journal_name("orders", BY_REGION, [value])
    labels = {"region": name.split("/")[1].removeprefix("region=")}
    for cohort in range(3):
        expected = tuple(
            each.place
            for each in plan.bindings[1:]
            if each.cohort == cohort and each.selector.accepts(labels)
        )
        assert index.targets(name, cohort) == expected
        assert index.targets(name, cohort) == expected  # remembered
