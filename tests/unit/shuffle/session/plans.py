"""Plans without a store."""

from __future__ import annotations

from penstock.ids import CLOCK_MAX
from penstock.journal.names import EVERYTHING, Selector
from penstock.shuffle.plan import BindingPlan, Plan


def binding(
    place: int,
    collection: str = "orders",
    *,
    key: tuple[str, ...] = ("id",),
    key_from_partitions: bool = False,
    selector: Selector = EVERYTHING,
    partition_by: tuple[str, ...] = ("region",),
    lane: int = 0,
    cohort: int = 0,
) -> BindingPlan:
    return BindingPlan(
        place=place,
        collection=collection,
        key=key,
        key_from_partitions=key_from_partitions,
        selector=selector,
        partition_by=partition_by,
        lane=lane,
        cohort=cohort,
        delay=0,
        not_before=0,
        not_after=CLOCK_MAX,
    )


def plan_of(*bindings: BindingPlan) -> Plan:
    lanes = 1 + max(each.lane for each in bindings)
    return Plan("feed", bindings, tuple(range(lanes, 0, -1)))
