"""What a binding of a feed file says of its topics: which they are, and where reading them begins.

The settings are the options of Spark's Kafka source, spelt as those of feed files are, with tables
in place of JSON. Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from penstock.errors import ConfigurationError
from penstock.journal.kafka.address import Subscription
from penstock.journal.kafka.edges import EARLIEST, LATEST, Edge

WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_STRATEGY: Final = "starting_offsets_by_timestamp_strategy"
_BEGINNINGS: Final = ("starting_offsets", "starting_timestamp", "starting_offsets_by_timestamp")
_OFFSETS: Final = 'write "earliest", "latest", or a table of partitions: {0 = 23, 1 = "latest"}'
_TIMES: Final = "write a table of partitions: {0 = 2026-01-31T12:00:00Z, 1 = 1769860800000}"

_Offset: TypeAlias = Callable[[Any], int]


class SubscribingError(ConfigurationError):
    """A setting of a binding's topics is wrong. It says what to write instead."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(setting, problem)
        self.setting, self.problem = setting, problem

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}"


def subscription_of(settings: Mapping[str, Any], collection: str) -> Subscription:
    """Without settings, it is the one topic of the collection's name, which has to be there."""
    if not settings:
        return Subscription((collection,), is_topic=True)
    if len(settings) > 1:
        names = " and ".join(sorted(settings))
        raise SubscribingError(min(settings), f"{names} are given, and one of them says it all")
    ((setting, value),) = settings.items()
    match setting:
        case "subscribe":
            return Subscription(topics_in(value))
        case "subscribe_pattern":
            if not isinstance(value, str) or not value:
                raise SubscribingError(setting, f"{value!r} is not a regular expression")
            try:
                return Subscription(pattern=value)
            except ConfigurationError as error:
                raise SubscribingError(setting, str(error)) from error
        case _:
            return Subscription(assigned=_assigned(value))


def topics_in(value: object) -> tuple[str, ...]:
    """Of `subscribe`: a list, or a text with commas as Spark has it."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SubscribingError("subscribe", f'{value!r} is not a list of topics: ["orders"]')
    found = tuple(dict.fromkeys(filter(None, (name.strip() for name in names))))
    if not found:
        raise SubscribingError("subscribe", "it names no topic")
    return found


def _assigned(value: object) -> dict[str, tuple[int, ...]]:
    problem = f"{value!r} is not a table of topics and partitions: {{orders = [0, 1]}}"
    if not isinstance(value, Mapping) or not value:
        raise SubscribingError("assign", problem)
    for numbers in value.values():
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise SubscribingError("assign", problem)
    return {str(topic): tuple(numbers) for topic, numbers in value.items()}


def edge_of(settings: Mapping[str, Any], subscription: Subscription) -> Edge | None:
    """Where reading begins; None if the settings say nothing of it."""
    given = [name for name in _BEGINNINGS if name in settings]
    falls = settings.get(_STRATEGY, "error")
    if falls not in ("error", "latest"):
        raise SubscribingError(_STRATEGY, f"it is 'error' or 'latest', not {falls!r}")
    if not given:
        if _STRATEGY in settings:
            raise SubscribingError(_STRATEGY, "it goes with a time to begin at, and none is given")
        return None
    if len(given) > 1:
        raise SubscribingError(given[1], f"{given[0]} says already where reading begins")
    (setting,) = given
    value = settings[setting]
    rest = {"option": setting, "falls_to_latest": falls == "latest"}
    if setting == "starting_timestamp":
        problem = "write a moment like 2026-01-31T12:00:00Z, or milliseconds since 1970"
        return Edge(_checked(setting, value, _time, problem), is_time=True, **rest)
    if setting == "starting_offsets":
        if isinstance(value, str) and value.lower() in WORDS:
            return Edge(WORDS[value.lower()], option=setting)
        return Edge(each=_each(setting, value, subscription, _offset, _OFFSETS), option=setting)
    each = _each(setting, value, subscription, _time, _TIMES)
    return Edge(each=each, is_time=True, **rest)


def _each(
    setting: str, value: object, subscription: Subscription, read: _Offset, problem: str
) -> dict[str, dict[str, int]]:
    """By topic and partition. Of one topic, its name may be left out."""
    if not isinstance(value, Mapping) or not value:
        raise SubscribingError(setting, f"{value!r}: {problem}")
    names = subscription.names or ()
    if not any(isinstance(one, Mapping) for one in value.values()):
        if len(names) != 1:
            raise SubscribingError(
                setting, "of several topics, write a table for each: {orders = {0 = 23}}"
            )
        value = {names[0]: value}
    found: dict[str, dict[str, int]] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, Mapping) or not all(map(str.isdecimal, partitions)):
            raise SubscribingError(setting, f"{partitions!r}: {problem}")
        found[topic] = {
            str(int(number)): _checked(setting, one, read, problem)
            for number, one in partitions.items()
        }
    return found


def _checked(setting: str, value: object, read: _Offset, problem: str) -> int:
    try:
        return read(value)
    except (KeyError, TypeError, ValueError):
        raise SubscribingError(setting, f"{value!r}: {problem}") from None


def _offset(value: Any) -> int:
    if isinstance(value, str):
        return WORDS[value.lower()]
    if type(value) is not int or value < EARLIEST:
        raise ValueError(value)
    return value


def _time(value: Any) -> int:
    """In milliseconds since 1970."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise ValueError(value)
        return int(value.timestamp() * 1000)
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
