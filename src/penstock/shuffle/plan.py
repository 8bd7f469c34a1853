"""A feed held against the store it reads: which columns, clocks and numbers its bindings mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.ids import CLOCK_MAX, CLOCK_UNIX_EPOCH, clock_duration, clock_from_datetime
from penstock.journal.names import Selector
from penstock.routing import check_key_type
from penstock.shuffle.feed import BindingError
from penstock.shuffle.parcels import ROW_BYTES, TIMED_ROW_BYTES

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.journal.collection import Collection
    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Binding, Feed


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """A binding with everything looked up that reading needs."""

    place: int
    collection: str
    key: tuple[str, ...]
    """The columns of the shuffle key."""
    key_from_partitions: bool
    """Every column of the key is a partition column: all documents of a journal have one key."""
    selector: Selector
    partition_by: tuple[str, ...]
    """The columns by which the collection has its journals."""
    lane: int
    cohort: int
    delay: int
    """Added to a document's time: the key it is ordered by."""
    not_before: int
    not_after: int
    """Documents are sent if `not_before <= time < not_after`."""
    by_offset: bool = False
    """Its rows are identified by their offsets, as their store says."""
    is_timed: bool = False
    """Its rows have times apart from their clocks, as their store says. They travel with them."""
    spreads_null_keys: bool = False
    """The key is the log's own, and rows without it may go to any member."""
    fails_on_loss: bool = False
    """Rows that are gone before they were read end the read, as their store says."""

    @property
    def row_bytes(self) -> int:
        """What a parcel has of each row beside the document."""
        return TIMED_ROW_BYTES if self.is_timed else ROW_BYTES


@dataclass(frozen=True, slots=True)
class Plan:
    feed: str
    bindings: tuple[BindingPlan, ...]
    lanes: tuple[int, ...]
    """The priority of each lane, the highest first."""

    @property
    def cohorts(self) -> tuple[int, ...]:
        """The cohort of each binding."""
        return tuple(binding.cohort for binding in self.bindings)

    def of_lane(self, lane: int) -> tuple[BindingPlan, ...]:
        return tuple(binding for binding in self.bindings if binding.lane == lane)


def make_plan(feed: Feed, store: ReadableStore) -> Plan:
    """Looks a feed's collections and columns up. What is not there is said with its binding."""
    cohorts = feed.cohorts
    return Plan(
        feed.name,
        tuple(
            _plan(place, binding, feed.lane_of(place), cohorts[place], store)
            for place, binding in enumerate(feed.bindings)
        ),
        feed.lanes,
    )


def _plan(
    place: int, binding: Binding, lane: int, cohort: int, store: ReadableStore
) -> BindingPlan:
    if binding.source is not None:
        raise LocalProtocolError(
            f"binding {place} says where and how its rows are read, and the feed was not resolved"
        )
    try:
        collection = store.collection(binding.collection)
    except ConfigurationError as error:
        raise BindingError(place, "collection", str(error)) from error
    if collection.reserved_columns:
        raise BindingError(
            place,
            "collection",
            f"{collection.name!r} has a column {collection.reserved_columns[0]!r}, which is a name "
            "of Penstock's own on the way through a shuffle. An earlier release let it in. Make a "
            "collection that names the column otherwise, copy the documents, and bind that one",
        )
    try:
        selector = Selector.parse(binding.partitions, collection.partition_by)
    except ConfigurationError as error:
        raise BindingError(place, "partitions", str(error)) from error
    key = binding.key or collection.key
    for column in key:
        _check_key(place, column, collection)
    holder = store.holding(binding.collection)
    seconds, rest = divmod(binding.read_delay_seconds, 1)
    return BindingPlan(
        place=place,
        collection=binding.collection,
        key=key,
        key_from_partitions=set(key) <= set(collection.partition_by),
        selector=selector,
        partition_by=collection.partition_by,
        lane=lane,
        cohort=cohort,
        delay=clock_duration(int(seconds), int(rest * 1e9)),
        not_before=_clock(place, "not_before", binding.not_before, CLOCK_UNIX_EPOCH),
        not_after=_clock(place, "not_after", binding.not_after, CLOCK_MAX),
        by_offset=holder.by_offset,
        is_timed=holder.is_timed,
        spreads_null_keys=holder.is_own_key(key),
        fails_on_loss=holder.fails_on_loss,
    )


def _clock(place: int, setting: str, moment: datetime | None, otherwise: int) -> int:
    try:
        return otherwise if moment is None else clock_from_datetime(moment)
    except ConfigurationError as error:
        raise BindingError(place, setting, str(error)) from error


def _check_key(place: int, column: str, collection: Collection) -> None:
    index = collection.schema.get_field_index(column)
    if index < 0:
        raise BindingError(
            place,
            "key",
            f"collection {collection.name!r} has no column {column!r}; it has "
            f"{', '.join(collection.schema.names)}",
        )
    try:
        check_key_type(collection.schema.field(index).type)
    except ConfigurationError as error:
        raise BindingError(place, "key", f"column {column!r}: {error}") from error
