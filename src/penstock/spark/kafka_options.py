"""The options of Spark's own Kafka source, with their names and meanings.

A program that reads by `format("kafka")` reads by `format("penstock")` with the same options. They
become a store's address, a collection and a few options of ours; what cannot be honoured is refused
by name. Spark gives options with names in lower case.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.formats.options import NAMES as VALUE_OPTIONS
from penstock.formats.options import USER_INFO
from penstock.journal.kafka.address import BOOTSTRAP, SCHEME, KafkaAddress, Subscription
from penstock.journal.kafka.edges import LATEST, Edge
from penstock.journal.kafka.headers import header_in
from penstock.journal.kafka.identities import Identity
from penstock.journal.kafka.shapes import DEAD_LETTERS_VIEW, with_schema
from penstock.journal.kafka.subscribing import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "kafka."
_STRATEGIES: Final = ("subscribe", "subscribepattern", "assign")
_NO_EFFECT: Final = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)
"""How Spark's own source drives its Java consumer: they change nothing of what is read."""
_REFUSED: Final = {
    "minoffsetspertrigger": "a batch begins when there is something for it; Spark's trigger "
    "interval is the way to larger batches",
    "maxtriggerdelay": "it goes with minOffsetsPerTrigger, which is not there either",
    "maxrecordsperpartition": "the option splits says into how many Spark partitions a member's "
    "rows go",
}
_STARTING: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_ENDING: Final = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_BY_TIMESTAMP: Final = "startingoffsetsbytimestampstrategy"
_OWN: Final = (
    *_STRATEGIES,
    *_STARTING,
    *_ENDING,
    _BY_TIMESTAMP,
    "failondataloss",
    "includeheaders",
    "maxoffsetspertrigger",
    "minpartitions",
)
KAFKA_OPTIONS: Final = (*_OWN, *_NO_EFFECT, *_REFUSED)


@dataclass(frozen=True, slots=True)
class KafkaRead:
    """What the options of a Kafka source say."""

    address: KafkaAddress
    collection: str
    starting: Edge | None
    """None: as Spark has it, the latest for a stream and the earliest for a batch."""
    ending: Edge | None
    max_offsets: int | None
    partitions_min: int | None

    @property
    def is_from_latest(self) -> bool:
        return self.starting == Edge(LATEST)

    @property
    def of_stream(self) -> KafkaAddress:
        """The address of a store that a stream begins to read: at the latest offsets, unless the
        options say otherwise."""
        one = self.address.subscriptions[self.collection]
        starting = replace(one, starting=self.starting or Edge(LATEST))
        return replace(self.address, subscriptions={self.collection: starting})


def parse_kafka(options: Mapping[str, str]) -> tuple[KafkaRead, dict[str, str]]:
    """The options of a Kafka source, and those that are not of it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    settings = _client_settings(given)
    store = given.pop("store", "")
    if store:
        if not store.startswith(f"{SCHEME}://"):
            raise ConfigurationError(
                f"options of Kafka ('kafka.*', 'subscribe', ...) do not go with store {store!r}"
            )
        settings = {**KafkaAddress.parse(store).options, **settings}
    if not settings.get(BOOTSTRAP):
        raise ConfigurationError(
            "option 'kafka.bootstrap.servers' is missing; say for example "
            ".option('kafka.bootstrap.servers', 'broker:9092')"
        )
    own = {name: given.pop(name) for name in list(given) if name in KAFKA_OPTIONS}
    subscription = replace(
        _subscription(own),
        view=_view(given),
        values=_values(given, own.get("subscribe", "")),
        identity=_identity(given),
        headers=_headers(given),
    )
    collection = subscription.topics[0] if len(subscription.topics) == 1 else "kafka"
    address = KafkaAddress(
        settings,
        {collection: subscription},
        with_headers=_flag(own, "includeheaders", default=False),
        fail_on_data_loss=_flag(own, "failondataloss", default=True),
    )
    read = KafkaRead(
        address,
        collection,
        _edge(own, _STARTING),
        _edge(own, _ENDING),
        _number(own, "maxoffsetspertrigger"),
        _number(own, "minpartitions"),
    )
    return read, given


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """What options say of Kafka where a feed file says the rest."""

    settings: Mapping[str, str]
    secrets: Mapping[str, str]
    """The registry's."""
    with_headers: bool
    fails_on_loss: bool
    starting: Edge | None
    """Of topics of which the feed file does not say it."""
    max_offsets: int | None
    partitions_min: int | None


def parse_feed_settings(options: Mapping[str, str]) -> tuple[FeedSettings, dict[str, str]]:
    """The options of a Kafka source that go with a feed file, and those that are not of it."""
    given = dict(options)
    settings = _client_settings(given)
    own = {name: given.pop(name) for name in list(given) if name in KAFKA_OPTIONS}
    for name in own.keys() & {*_STRATEGIES, *_ENDING}:
        raise ConfigurationError(
            f"option {name!r} does not go with 'feed': the feed file says what is read of topics"
        )
    if settings.get(BOOTSTRAP):
        given.setdefault("store", f"{SCHEME}://{settings.pop(BOOTSTRAP)}")
    found = FeedSettings(
        settings,
        {name: given.pop(name) for name in (USER_INFO,) if name in given},
        with_headers=_flag(own, "includeheaders", default=False),
        fails_on_loss=_flag(own, "failondataloss", default=True),
        starting=_edge(own, _STARTING),
        max_offsets=_number(own, "maxoffsetspertrigger"),
        partitions_min=_number(own, "minpartitions"),
    )
    return found, given


def _client_settings(given: dict[str, str]) -> dict[str, str]:
    """The settings of the client; they are taken out of the options."""
    for name, reason in _REFUSED.items():
        if name in given:
            raise ConfigurationError(f"option {name!r} of Spark's Kafka source: {reason}")
    return {
        name.removeprefix(_PREFIX): given.pop(name)
        for name in list(given)
        if name.startswith(_PREFIX)
    }


def _identity(given: dict[str, str]) -> dict[str, str]:
    """How users name producers: as a feed file has it, in JSON."""
    text = given.pop("identity", "")
    if not text:
        return {}
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError
    except (ValueError, TypeError):
        raise ConfigurationError(
            "option 'identity' is JSON like "
            '{"header": "id"} or {"producer": "writer", "sequence": "number"}'
            f", not {text!r}"
        ) from None
    try:
        Identity.parse(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"option 'identity': {error}") from error
    return found


def _headers(given: Mapping[str, str]) -> tuple[str, ...]:
    """Those that a key names, in a stream or in a batch."""
    columns = [*given.get("key", "").split(","), *given.get("shuffle_key", "").split(",")]
    found = (header_in(column.strip()) for column in columns)
    return tuple(dict.fromkeys(name for name in found if name))


def _view(given: dict[str, str]) -> str:
    """Of the views, those that a Kafka source has; they are taken out of the options."""
    view = given.pop("view", "documents").lower()
    if view not in ("documents", DEAD_LETTERS_VIEW):
        raise ConfigurationError(
            f"option 'view' of a read from Kafka is 'documents' or {DEAD_LETTERS_VIEW!r}, not "
            f"{view!r}"
        )
    return "" if view == "documents" else view


def _values(given: dict[str, str], topics: str) -> dict[str, str]:
    """The options of values, with the registry's newest schema if none is given."""
    values = {name: given.pop(name) for name in list(given) if name in VALUE_OPTIONS}
    return with_schema(values, "" if "," in topics else topics.strip())


def _subscription(own: Mapping[str, str]) -> Subscription:
    chosen = [name for name in _STRATEGIES if own.get(name)]
    if len(chosen) != 1:
        what = " and ".join(chosen) or "none"
        raise ConfigurationError(
            "one of the options 'subscribe', 'subscribePattern' and 'assign' says what to read; "
            f"{what} is given"
        )
    text = own[chosen[0]]
    match chosen[0]:
        case "subscribe":
            topics = tuple(dict.fromkeys(filter(None, (one.strip() for one in text.split(",")))))
            return Subscription(topics)
        case "subscribepattern":
            return Subscription(pattern=text)
        case _:
            return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"orders": [0, 1]}'
    try:
        return {
            str(topic): tuple(int(number) for number in numbers)
            for topic, numbers in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(f"option 'assign' is JSON like {example}, not {text!r}") from None


def _edge(own: Mapping[str, str], names: tuple[str, str, str]) -> Edge | None:
    """Spark's order: one time for all, times by partition, offsets."""
    offsets, time, times = names
    falls = own.get(_BY_TIMESTAMP, "error").lower()
    if falls not in ("error", "latest"):
        raise ConfigurationError(
            f"option 'startingOffsetsByTimestampStrategy' is 'error' or 'latest', not {falls!r}"
        )
    # A partition without a row of the time to end at is read to its end, whatever is said.
    falls_to_latest = falls == "latest" or names == _ENDING
    option = "startingOffsets" if names == _STARTING else "endingOffsets"
    if own.get(time):
        return Edge(
            _number(own, time), is_time=True, falls_to_latest=falls_to_latest, option=option
        )
    if own.get(times):
        each = _by_partition(times, own[times])
        return Edge(each=each, is_time=True, falls_to_latest=falls_to_latest, option=option)
    text = own.get(offsets)
    if not text:
        return None
    if text.lower() in WORDS:
        if (offsets, text.lower()) == ("endingoffsets", "earliest"):
            raise ConfigurationError("option 'endingOffsets' cannot be 'earliest'")
        return Edge(WORDS[text.lower()], option=option)
    return Edge(each=_by_partition(offsets, text), option=option)


def _by_partition(name: str, text: str) -> dict[str, dict[str, int]]:
    try:
        found: dict[str, Any] = json.loads(text)
        return {
            str(topic): {str(int(number)): int(value) for number, value in partitions.items()}
            for topic, partitions in found.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f"option {name!r} is 'earliest', 'latest', or JSON like "
            f'{{"orders": {{"0": 23, "1": -2}}}}, not {text!r}'
        ) from None


def _flag(own: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = own.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"option {name!r} is 'true' or 'false', not {text!r}")
    return text == "true"


def _number(own: Mapping[str, str], name: str) -> int | None:
    text = own.get(name)
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"option {name!r} is a whole number above 0, not {text!r}")
    return number
