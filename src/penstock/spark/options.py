"""The options of a read: what `spark.read.format("penstock").option(...)` may say."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import ConfigurationError
from penstock.journal.cut import AsOf, parse_as_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.kafka_options import KafkaRead

BINDING_MAX: Final = 2**16 - 1
"""A frontier has this many bindings."""
SHUFFLE_PARTITIONS_MAX: Final = 1_024
"""Every one of them reads all rows."""

OF_KAFKA_FEEDS: Final = frozenset(
    {
        "startingoffsets",
        "startingtimestamp",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "includeheaders",
        "failondataloss",
        "maxoffsetspertrigger",
        "minpartitions",
        "endingoffsets",
        "endingtimestamp",
        "endingoffsetsbytimestamp",
    }
)
"""Of the options of Spark's Kafka source, in lower case, those that users give beside a feed file.
The last three are refused by name."""

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


class View(enum.StrEnum):
    """What a row of the result is."""

    DOCUMENTS = "documents"
    """A committed document, once."""
    RAW = "raw"
    """A row of a journal as it was written: repeated, rolled back, acknowledging or not."""


class Order(enum.StrEnum):
    """How the rows within each Spark partition are sorted."""

    CLOCK = "clock"
    """By clock, then journal and offset."""
    OFFSET = "offset"
    """By journal and offset."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options. The names of the fields are the names of the options."""

    store: str = field(repr=False)
    """Its address, which may hold secrets."""
    collection: str
    partitions: str = ""
    as_of: str | None = None
    binding: int = 0
    shuffle_key: tuple[str, ...] = ()
    shuffle_partitions: int | None = None
    order: Order | None = None
    view: View = View.DOCUMENTS
    bounds: Mapping[str, tuple[int, int]] | None = None
    """Raw view, for `penstock.spark.documents`: the rows [begin, end) of each journal."""
    kafka: KafkaRead | None = None
    """If the options are those of Spark's Kafka source."""

    @classmethod
    def names(cls) -> list[str]:
        """What a user may say."""
        return [field.name for field in fields(cls) if field.name not in ("bounds", "kafka")]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Reads Spark's options: names in lower case, values as text."""
        kafka = None
        if is_kafka(given):
            kafka, given = _of_kafka(given)
        for name in given:
            if name.lower() not in (*cls.names(), "bounds"):
                raise ConfigurationError(
                    f"there is no option {name!r} of a batch read; {_choices(cls.names())}"
                )
        values = {name.lower(): value for name, value in given.items()}
        for name, example in (("store", "file:///data/journals"), ("collection", "orders")):
            if not values.get(name, "").strip():
                raise ConfigurationError(
                    f"option {name!r} is missing; say for example .option({name!r}, {example!r})"
                )
        as_of = values.get("as_of")
        if as_of is not None:
            parse_as_of(as_of)
        options = cls(
            store=values["store"].strip(),
            collection=values["collection"].strip(),
            partitions=values.get("partitions", ""),
            as_of=as_of,
            binding=number_option(values, "binding", 0, BINDING_MAX) or 0,
            shuffle_key=_names(values.get("shuffle_key", "")),
            shuffle_partitions=number_option(
                values, "shuffle_partitions", 1, SHUFFLE_PARTITIONS_MAX
            ),
            order=choice_option(values, "order", Order),
            view=choice_option(values, "view", View) or View.DOCUMENTS,
            bounds=_bounds(values.get("bounds")),
            kafka=kafka,
        )
        options._check_together()
        return options

    def cut_at(self) -> AsOf:
        return None if self.as_of is None else parse_as_of(self.as_of)

    def _check_together(self) -> None:
        if self.view is View.RAW:
            for name in ("as_of", "shuffle_key"):
                if getattr(self, name):
                    raise ConfigurationError(
                        f"option {name!r} does not go with view 'raw', which shows every row that "
                        "was written; leave one of the two out"
                    )
        elif self.bounds is not None:
            raise ConfigurationError("option 'bounds' goes with view 'raw' only; use 'as_of'")
        if self.shuffle_partitions is not None and not self.shuffle_key:
            raise ConfigurationError(
                "option 'shuffle_partitions' says into how many parts the keys go, but no "
                "'shuffle_key' is given"
            )


def is_kafka(options: Mapping[str, str]) -> bool:
    """Whether these are options of Spark's Kafka source (`kafka_options.py`)."""
    names = {name.lower() for name in options}
    asks = names & {"subscribe", "subscribepattern", "assign"}
    return bool(asks) or any(name.startswith("kafka.") for name in names)


def has_feed_settings(options: Mapping[str, str]) -> bool:
    """Whether a feed file has beside it what Kafka's source takes for all topics."""
    names = {name.lower() for name in options}
    return "feed" in names and bool(names & OF_KAFKA_FEEDS)


def _of_kafka(given: Mapping[str, str]) -> tuple[KafkaRead, dict[str, str]]:
    """Options of Spark's Kafka source, and what they are in those of a batch read."""
    from penstock.spark.kafka_options import parse_kafka  # noqa: PLC0415 - it is an extra

    kafka, rest = parse_kafka(given)
    if kafka.is_from_latest:
        raise ConfigurationError(
            "option 'startingOffsets' cannot be 'latest' in a batch read: nothing is behind it"
        )
    for name in ("collection", "as_of", "bounds"):
        if name in rest:
            raise ConfigurationError(
                f"option {name!r} does not go with those of Kafka's source; startingOffsets and "
                "endingOffsets say what is read"
            )
    return kafka, {**rest, "store": kafka.address.text, "collection": kafka.collection}


def _choices(names: list[str]) -> str:
    return f"choose from {', '.join(names)}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def number_option(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigurationError(
            f"option {name!r} is a whole number from {least} to {most}, not {text!r}"
        )
    return number


def choice_option(values: Mapping[str, str], name: str, kind: type[_Choice]) -> _Choice | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        return kind(text.strip().lower())
    except ValueError:
        raise ConfigurationError(
            f"option {name!r} is {' or '.join(repr(str(choice)) for choice in kind)}, not {text!r}"
        ) from None


def _bounds(text: str | None) -> dict[str, tuple[int, int]] | None:
    if text is None:
        return None
    try:
        return {
            str(name): (int(begin), int(end)) for name, (begin, end) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f"option 'bounds' is JSON like {{'journal': [begin, end]}}, not {text[:60]!r}"
        ) from None
