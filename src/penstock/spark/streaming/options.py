"""The options of a streaming read: what `spark.readStream.format("penstock")` takes."""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.shuffle.feed import BindingError, Feed, feed_name_of
from penstock.shuffle.feed_file import BINDING_SETTINGS, load_feed, parse_binding
from penstock.shuffle.feed_sources import described, resolved
from penstock.shuffle.running import MEMBERS_MAX
from penstock.spark.options import ReadOptions, has_feed_settings, is_kafka, number_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.spark.kafka_options import KafkaRead

MEMBERS_DEFAULT: Final = 2
SPLITS_MAX: Final = 128
LIMIT_MAX: Final = 2**62
_MOMENTS: Final = ("not_before", "not_after")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Checked options. The names of the fields are the names of the options, beside those of a
    binding: collection, key, partitions, priority, read_delay, not_before, not_after."""

    store: str = field(repr=False)
    """Its address, which may hold secrets."""
    feed: Feed
    """As an option it is the path of a feed file, in place of a binding's options. Resolved: its
    collections are those of the store."""
    folder: str = ""
    """For queues and epochs. Empty: in the store's own folder."""
    members: int = MEMBERS_DEFAULT
    splits: int = 1
    """Spark partitions for each member."""
    max_documents: int | None = None
    max_bytes: int | None = None
    cluster: str = ""
    """Where the cluster of `penstock.cluster` answers. Empty: the members run in Spark's source
    process."""
    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    kafka: KafkaRead | None = None
    """If the options are those of Spark's Kafka source."""
    noted: Sequence[Mapping[str, Any]] = ()
    """The bindings as they were given, for the feed's folder: a query keeps them."""

    @classmethod
    def names(cls) -> list[str]:
        own = [one.name for one in fields(cls) if one.name not in ("given", "kafka", "noted")]
        return [*own, *BINDING_SETTINGS]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Reads Spark's options: names in lower case, values as text."""
        values = {name.lower(): value.strip() for name, value in options.items()}
        given, kafka = values, None
        of_feed: dict[str, Any] = {}
        if values.get("feed") and (is_kafka(values) or has_feed_settings(values)):
            of_feed, values = _of_feed(values)
        elif is_kafka(values):
            kafka, values = _of_kafka(values)
        for name in values:
            if name not in cls.names():
                raise ConfigurationError(
                    f"there is no option {name!r} of a streaming read; choose from "
                    f"{', '.join(cls.names())}"
                )
        feed = feed_of(values)
        is_everywhere = all(one.source is not None and one.source.store for one in feed.bindings)
        if not values.get("store") and not is_everywhere:
            raise ConfigurationError(
                "option 'store' is missing; say for example "
                ".option('store', 'file:///data/journals')"
            )
        noted = described(feed)
        if kafka is None:
            feed, store = resolved(feed, values.get("store", ""), **of_feed)
        else:
            store = values["store"]
            identity = kafka.address.subscriptions[kafka.collection].identity
            noted = [{**one, **({"identity": dict(identity)} if identity else {})} for one in noted]
        return cls(
            store=store,
            feed=feed,
            folder=values.get("folder", ""),
            members=number_option(values, "members", 1, MEMBERS_MAX) or MEMBERS_DEFAULT,
            splits=number_option(values, "splits", 1, SPLITS_MAX) or 1,
            max_documents=number_option(values, "max_documents", 1, LIMIT_MAX),
            max_bytes=number_option(values, "max_bytes", 1, LIMIT_MAX),
            cluster=values.get("cluster", ""),
            given=given,
            kafka=kafka,
            noted=noted,
        )


def _of_feed(values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Of options of Kafka beside a feed file, what `resolved` takes; and the others."""
    from penstock.spark.kafka_options import parse_feed_settings  # noqa: PLC0415 - it is an extra

    found, rest = parse_feed_settings(values)
    resolving = {
        name: getattr(found, name)
        for name in ("settings", "secrets", "with_headers", "fails_on_loss", "starting")
    }
    return resolving, rest | _limits(found.max_offsets, found.partitions_min, rest)


def _limits(
    max_offsets: int | None, partitions_min: int | None, rest: Mapping[str, str]
) -> dict[str, str]:
    """What Kafka's source calls maxOffsetsPerTrigger and minPartitions, in our options."""
    ours = {}
    if max_offsets is not None:
        ours["max_documents"] = str(max_offsets)
    if partitions_min is not None:
        members = number_option(rest, "members", 1, MEMBERS_MAX) or MEMBERS_DEFAULT
        ours["splits"] = str(min(-(-partitions_min // members), SPLITS_MAX))
    for name in ours.keys() & rest.keys():
        raise ConfigurationError(
            f"option {name!r} does not go with those of Kafka's source, which say the same"
        )
    return ours


def _of_kafka(values: Mapping[str, str]) -> tuple[KafkaRead, dict[str, str]]:
    """Options of Spark's Kafka source, and what they are in ours."""
    from penstock.spark.kafka_options import parse_kafka  # noqa: PLC0415 - it is an extra

    kafka, rest = parse_kafka(values)
    if kafka.ending is not None:
        raise ConfigurationError(
            "the options 'ending...' go with a batch read only: a stream has no end. Trigger "
            "AvailableNow reads what is there and ends"
        )
    ours = {"store": kafka.of_stream.text, "collection": kafka.collection}
    ours |= _limits(kafka.max_offsets, kafka.partitions_min, rest)
    for name in ours.keys() & rest.keys():
        raise ConfigurationError(
            f"option {name!r} does not go with those of Kafka's source, which say the same"
        )
    return kafka, {**ours, **rest}


def check_known(options: Mapping[str, str]) -> None:
    """Spark asks for a schema before it says what for. What fits no kind of read is told then."""
    if is_kafka(options) or has_feed_settings(options):
        return  # they are checked when they are read
    for name in options:
        if name.lower() not in {*ReadOptions.names(), "bounds", *StreamOptions.names()}:
            raise ConfigurationError(
                f"there is no option {name!r}; a batch read has {', '.join(ReadOptions.names())}; "
                f"a streaming read has {', '.join(StreamOptions.names())}"
            )


def is_streaming(options: Mapping[str, str]) -> bool:
    """Whether options are of a streaming read only. Those that fit both kinds of read give the same
    schema."""
    names = {name.lower() for name in options}
    return bool(names & (set(StreamOptions.names()) - set(ReadOptions.names())))


def feed_of(values: Mapping[str, str]) -> Feed:
    """The feed file's, or one with a single binding."""
    settings = {name: values[name] for name in BINDING_SETTINGS if name in values}
    path = values.get("feed", "")
    if path:
        if settings:
            raise ConfigurationError(
                f"option {min(settings)!r} does not go with 'feed': the feed file has its bindings "
                "in it"
            )
        return load_feed(path)
    if not settings.get("collection"):
        raise ConfigurationError(
            "option 'collection' is missing; say for example .option('collection', 'orders'), or "
            ".option('feed', 'orders.toml') for several"
        )
    try:
        binding = parse_binding(0, _table(settings))
        return Feed(feed_name_of(binding.collection), (binding,))
    except BindingError as error:
        raise ConfigurationError(f"option {error.setting!r}: {error.problem}") from error


def _table(settings: Mapping[str, str]) -> dict[str, Any]:
    """The options of a binding, as a feed file would have them."""
    table: dict[str, Any] = dict(settings)
    if "key" in table:
        table["key"] = [name.strip() for name in table["key"].split(",") if name.strip()]
    for name in _MOMENTS:
        if name in table:
            table[name] = _moment(name, table[name])
    for name, kind in (("priority", int), ("read_delay", float)):
        # What is not a number is either a time with its unit, or refused with the binding.
        with contextlib.suppress(KeyError, ValueError):
            table[name] = kind(table[name])
    return table


def _moment(name: str, text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        raise BindingError(
            0, name, f"{text!r} is not a moment: write it like 2026-01-31T12:00:00Z"
        ) from None
