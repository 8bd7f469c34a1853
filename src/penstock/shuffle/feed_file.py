"""Feed files: a feed in TOML.

name = "orders-by-customer"

[[binding]]
collection = "orders"
key = ["customer"]
partitions = "region=eu"
priority = 1
read_delay = "5m"
not_before = 2026-01-01T00:00:00Z

[[binding]]
store = "kafka://broker:9092"
collection = "payments"
format = "json"
schema = "customer BIGINT, cents BIGINT, writer STRING, number BIGINT"
key = ["header:tenant"]
partitions = "partition=0,partition=1"
identity = {producer = "writer", sequence = "number"}

A binding without a store is in the feed's own, a setting beside the name; or, without that too, in
the one that whoever runs the feed names.
"""

from __future__ import annotations

import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigurationError
from penstock.journal.sources import (
    FORMS,
    SECRET_SETTING,
    STARTING_SETTINGS,
    SUBSCRIPTION_SETTINGS,
    VALUE_SETTINGS,
    Source,
)
from penstock.shuffle.feed import Binding, BindingError, Feed

_FEED_SETTINGS: Final = ("name", "store", "binding")
BINDING_SETTINGS: Final = (
    "collection",
    "key",
    "partitions",
    "priority",
    "read_delay",
    "not_before",
    "not_after",
)
SOURCE_SETTINGS: Final = (
    "store",
    *SUBSCRIPTION_SETTINGS,
    *STARTING_SETTINGS,
    "identity",
    *VALUE_SETTINGS,
)
"""Where a binding's collection is, and how its rows become documents."""
_TABLES: Final = ("identity", "assign", *STARTING_SETTINGS)
"""Settings that are tables: their names have no dots."""
SEVERAL_TOPICS: Final = "kafka"
"""What the collection is called that several topics are together."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DELAY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_HEADER: Final = re.compile(r"\s*\[\[\s*binding\s*\]\]")


class FeedFileError(ConfigurationError):
    """A feed file cannot be used. It says where, and what to write instead."""


def load_feed(path: str | Path) -> Feed:
    """Reads a feed file. A feed without a name has that of its file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FeedFileError(f"the feed file {path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise FeedFileError(f"the feed file {path} is not UTF-8 text: {error}") from error
    return parse_feed(text, str(path), path.stem)


def parse_feed(text: str, place: str = "feed", name: str = "feed") -> Feed:
    """`place` is named in errors, and `name` is the feed's if the text has none."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FeedFileError(f"{place}: not TOML: {error}") from error
    try:
        return _feed(tables, name)
    except BindingError as error:
        line = _line_of(text, error.place, error.setting)
        raise FeedFileError(f"{place}, line {line}: {error.setting}: {error.problem}") from error


def _feed(tables: dict[str, Any], name: str) -> Feed:
    _check_settings(tables, None, _FEED_SETTINGS)
    found = _text(tables, None, "name", name)
    bindings = tables.get("binding", [])
    if not isinstance(bindings, list) or not all(isinstance(each, dict) for each in bindings):
        raise BindingError(None, "binding", "each binding is a table of its own: [[binding]]")
    store = _text(tables, None, "store", "")
    made = (parse_binding(place, table, store) for place, table in enumerate(bindings))
    return Feed(found, tuple(made))


def parse_binding(place: int, table: dict[str, Any], store: str = "") -> Binding:
    """From settings as a feed file has them. `store` is the feed's own."""
    table = _flat(table)
    _check_settings(table, place, (*BINDING_SETTINGS, *SOURCE_SETTINGS))
    return Binding(
        collection=_collection(table, place),
        key=_columns(table, place),
        partitions=_text(table, place, "partitions", ""),
        priority=_priority(table, place),
        read_delay_seconds=_delay(table, place),
        not_before=_moment(table, place, "not_before"),
        not_after=_moment(table, place, "not_after"),
        source=_source(table, place, store),
    )


def _collection(table: dict[str, Any], place: int) -> str:
    subscribed = [name for name in SUBSCRIPTION_SETTINGS if name in table]
    if "collection" in table:
        if subscribed:
            raise BindingError(
                place,
                subscribed[0],
                "collection names the one topic to read; leave one of both out",
            )
        return _text(table, place, "collection", "")
    if not subscribed:
        raise BindingError(
            place,
            "collection",
            "it is missing; name the collection to read, or topics of Kafka by subscribe",
        )
    topics = table.get("subscribe", table.get("assign"))
    names = topics.split(",") if isinstance(topics, str) else list(topics or ())
    return str(names[0]).strip() if len(names) == 1 else SEVERAL_TOPICS


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """Names with dots are nested tables in TOML: schema.registry.url."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and name not in _TABLES:
            found |= {f"{name}.{rest}": each for rest, each in _flat(value).items()}
        else:
            found[name] = value
    return found


def _source(table: dict[str, Any], place: int, store: str) -> Source | None:
    """None: in the store of whoever runs the feed, and nothing special."""
    identity = table.get("identity", {})
    if not isinstance(identity, dict):
        raise BindingError(place, "identity", f"{identity!r} is not a table: write {FORMS}")
    values = {name: _text(table, place, name, "") for name in VALUE_SETTINGS if name in table}
    found = Source(
        _text(table, place, "store", "") or store,
        values,
        identity,
        {name: table[name] for name in SUBSCRIPTION_SETTINGS if name in table},
        {name: table[name] for name in STARTING_SETTINGS if name in table},
    )
    return None if found == Source() else found


def _check_settings(table: dict[str, Any], place: int | None, known: tuple[str, ...]) -> None:
    for setting in table:
        if setting == SECRET_SETTING:
            raise BindingError(
                place,
                setting,
                "a secret does not stand in a feed file: give it as an option of the read",
            )
        if setting not in known:
            # Spark's own spelling: startingOffsets.
            spelt = re.sub(r"([A-Z])", r"_\1", setting).lower()
            meant = f"write {spelt}" if spelt in known else f"there are {', '.join(known)}"
            raise BindingError(place, setting, f"there is no such setting; {meant}")


def _text(table: dict[str, Any], place: int | None, setting: str, default: str) -> str:
    value = table.get(setting, default)
    if not isinstance(value, str):
        raise BindingError(place, setting, f"{value!r} is not a text")
    return value


def _priority(table: dict[str, Any], place: int) -> int:
    value = table.get("priority", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BindingError(place, "priority", f"{value!r} is not a whole number")
    return value


def _columns(table: dict[str, Any], place: int) -> tuple[str, ...]:
    value = table.get("key", [])
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(column, str) for column in value):
        raise BindingError(place, "key", f"{value!r} is not a list of columns")
    return tuple(value)


def _delay(table: dict[str, Any], place: int) -> float:
    value = table.get("read_delay", 0)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _DELAY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise BindingError(
            place,
            "read_delay",
            f'{value!r} is not a time: write a number of seconds, or like "90s", "5m", "1.5h"',
        )
    return float(match[1]) * _UNITS[match[2]]


def _moment(table: dict[str, Any], place: int, setting: str) -> datetime | None:
    value = table.get(setting)
    if value is None or isinstance(value, datetime):
        return value
    raise BindingError(
        place, setting, f"{value!r} is not a moment: write it plain, like 2026-01-31T12:00:00Z"
    )


def _line_of(text: str, place: int | None, setting: str) -> int:
    """Where a setting is; where its binding begins, if it is not there; else the first line."""
    begin, headers = 1, -1
    mentioned = re.compile(
        rf"\s*[\"']?{re.escape(setting)}[\"']?\s*[=.]|\s*\[+\s*{re.escape(setting)}\b"
    )
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.match(line):
            headers += 1
            if headers == place:
                begin = number
        if headers == (-1 if place is None else place) and mentioned.match(line):
            return number
    return begin
