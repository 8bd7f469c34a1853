"""Offsets that a user asks to begin or end at, for the partitions that are there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import ConfigurationError
from penstock.journal.kafka.records.batches import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.journal.kafka.client.offsets import Bounds

EARLIEST: Final = -2
LATEST: Final = -1

Offsets = dict[Partition, int]
Lookup: TypeAlias = "Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]]"


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading begins, or ends: by offsets, or by times in milliseconds."""

    everywhere: int | None = None
    """An offset, `EARLIEST` or `LATEST`; or a time."""
    each: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic and partition."""
    is_time: bool = False
    falls_to_latest: bool = False
    """A partition without a row of that time begins at its end, in place of an error."""
    option: str = field(default="startingOffsets", compare=False)
    """Who asks for it, as errors name it."""

    def of(self, partitions: Iterable[Partition]) -> Edge:
        """The same for these only, of those that are named."""
        if self.everywhere is not None:
            return self
        each: dict[str, dict[str, int]] = {}
        for partition in partitions:
            number = str(partition.number)
            if number in self.each.get(partition.topic, {}):
                each.setdefault(partition.topic, {})[number] = self.each[partition.topic][number]
        return replace(self, each=each)

    @property
    def named(self) -> set[Partition]:
        return {
            Partition(topic, int(number))
            for topic, partitions in self.each.items()
            for number in partitions
        }

    def resolved(self, bounds: Mapping[Partition, Bounds], lookup: Lookup) -> Offsets:
        """The offsets for partitions that hold so much; `lookup` finds offsets by time."""
        if not self.is_time:
            if self.everywhere is not None:
                return _by_word(bounds, self.everywhere)
            return _by_partition(bounds, self.each, self.option)
        times = (
            dict.fromkeys(bounds, self.everywhere)
            if self.everywhere is not None
            else _by_partition(bounds, self.each, self.option)
        )
        return _by_time(bounds, lookup(times), self.option, falls_to_latest=self.falls_to_latest)


def _by_word(bounds: Mapping[Partition, Bounds], word: int) -> Offsets:
    """`EARLIEST`, `LATEST`, or an offset that is there."""
    return {partition: _resolved(each, word) for partition, each in bounds.items()}


def _by_partition(
    bounds: Mapping[Partition, Bounds], each: Mapping[str, Mapping[str, int]], option: str
) -> Offsets:
    """As Spark has it, all partitions that are read have to be named, and no others."""
    named = {
        Partition(topic, int(number)): value
        for topic, partitions in each.items()
        for number, value in partitions.items()
    }
    missing, strange = bounds.keys() - named.keys(), named.keys() - bounds.keys()
    if missing:
        raise misnamed(option, f"does not name {min(map(str, missing))}")
    if strange:
        raise misnamed(option, f"names {min(map(str, strange))}, which is not read or not there")
    return {partition: _resolved(bounds[partition], word) for partition, word in named.items()}


def misnamed(option: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"option {option!r} {what}: name every partition that is read, -2 for its earliest and -1 "
        "for its latest offset"
    )


def _by_time(
    bounds: Mapping[Partition, Bounds],
    found: Mapping[Partition, int | None],
    option: str,
    *,
    falls_to_latest: bool,
) -> Offsets:
    """The first offset of its time or later in each partition."""
    offsets: Offsets = {}
    for partition, each in bounds.items():
        offset = found.get(partition)
        if offset is None and not falls_to_latest:
            raise ConfigurationError(
                f"option {option!r}: {partition} has no row of that time or later. Set "
                "startingOffsetsByTimestampStrategy to 'latest' to begin at its end"
            )
        offsets[partition] = each.high_watermark if offset is None else offset
    return offsets


def _resolved(bounds: Bounds, word: int) -> int:
    if word == EARLIEST:
        return bounds.earliest
    return bounds.high_watermark if word == LATEST else word
