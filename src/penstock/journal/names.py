"""Journal names: `orders/region=eu/tier=%_2/000`, and selectors that choose among them.

A journal is one physical partition of a collection; its labels are the values of the partition
columns. Text values are percent-encoded; all others are written as `%_` and their JSON form, so
that the text `42` and the number 42 stay apart.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Labels = dict[str, str]
"""Partition column to encoded value, in the collection's order of partition columns."""

SPLIT: Final = "000"
"""The last part of a journal's name: which of the partition's journals it is."""
_IDENTITY: Final = "@"
"""Stands in no name: what is in labels and columns is percent-encoded."""
_LABEL_BYTES_MAX: Final = 200
"""A label is one path component on disk, and those end at 255 bytes on common filesystems."""


def encode_label(value: object) -> str:
    """One partition value as it stands in a journal's name."""
    if isinstance(value, str):
        return urllib.parse.quote(value, safe="")
    if isinstance(value, bytes):
        return "%_b" + value.hex()
    if isinstance(value, datetime.date | datetime.datetime | decimal.Decimal):
        return "%_" + urllib.parse.quote(str(value), safe="")
    return "%_" + urllib.parse.quote(json.dumps(value), safe="-")


def decode_label(text: str) -> str:
    """A label for people: the text itself, or the JSON form of what is not text."""
    return urllib.parse.unquote(text.removeprefix("%_"))


def journal_name(collection: str, partition_by: Sequence[str], values: Sequence[object]) -> str:
    parts = [collection]
    for column, value in zip(partition_by, values, strict=True):
        part = f"{urllib.parse.quote(column, safe='')}={encode_label(value)}"
        if len(part) > _LABEL_BYTES_MAX:
            raise ConfigurationError(
                f"partition value {column}={str(value)[:40]!r}... of collection {collection!r} is "
                f"too long for a journal's name: {len(part)} bytes of {_LABEL_BYTES_MAX}"
            )
        parts.append(part)
    return "/".join([*parts, SPLIT])


def parse_journal_name(name: str) -> tuple[str, Labels]:
    """Takes a name apart into its collection and labels."""
    collection, *middle, last = name.split("/") if "/" in name else (name, "")
    labels: Labels = {}
    for part in middle:
        column, separator, value = part.partition("=")
        if not separator:
            raise ConfigurationError(f"{name!r} is not a journal name: {part!r} has no '='")
        labels[urllib.parse.unquote(column)] = value
    if not collection or not last or "=" in last:
        raise ConfigurationError(f"{name!r} is not a journal name, like orders/region=eu/{SPLIT}")
    return collection, labels


def known_as(name: str, identity: str) -> str:
    """What frontiers and queues call a journal: several may have its name, one after another. One
    that was read before journals had identities keeps its plain name there."""
    return f"{name}{_IDENTITY}{identity}" if identity else name


def name_of(known: str) -> str:
    """The name of a journal that is known as this."""
    return known.partition(_IDENTITY)[0]


def identity_in(known: str) -> str:
    """The identity of a journal that is known as this; nothing if it keeps its plain name."""
    return known.partition(_IDENTITY)[2]


def shown(name: str) -> str:
    """A journal's name for people who know the collection and its partition columns."""
    collection, labels = parse_journal_name(name)
    parts = (f"{column} {decode_label(value)}" for column, value in labels.items())
    return ", ".join(parts) or f"collection {collection}"


def dashed(name: str) -> str:
    """The journal that is a partition of a topic, as Kafka's own tools call it: `orders-3`."""
    _, labels = parse_journal_name(name)
    return "-".join(map(decode_label, labels.values()))


NULL: Final = "null"
"""In a selector: no value. The text is written `"null"`."""
_TERMS: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
"""What stands between commas; those within quotes do not count."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which partitions to read. A journal passes if, for each column that `include` names, its
    value is among them, and none of its values is in `exclude`.

    A value is written as it is shown, or as text in quotes, as JSON has it: so the text `null` is
    told apart from no value, and commas and spaces can be in it."""

    include: tuple[tuple[str, str], ...] = ()
    exclude: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, partition_by: Sequence[str]) -> Selector:
        """Reads `region=eu,region="a,b",!tier=2`: columns or-ed within, and-ed between."""
        include: list[tuple[str, str]] = []
        exclude: list[tuple[str, str]] = []
        if _TERMS.sub("", text).strip(","):
            raise ConfigurationError(f"partitions {text!r} has a quote that does not end")
        for term in filter(None, (part.strip() for part in _TERMS.findall(text))):
            column, separator, value = term.removeprefix("!").partition("=")
            if not separator or not _is_value(value):
                raise ConfigurationError(
                    f"cannot read {term!r} in partitions {text!r}: write column=value, "
                    'or !column=value to leave it out, and text that has commas as "a,b"'
                )
            if column not in partition_by:
                there = ", ".join(partition_by) or "no column"
                raise ConfigurationError(f"partitions: {column!r} is not one; it is by {there}")
            (exclude if term.startswith("!") else include).append((column, value))
        return cls(tuple(include), tuple(exclude))

    def accepts(self, labels: Mapping[str, str]) -> bool:
        wanted: dict[str, bool] = {}
        for column, value in self.include:
            is_there = column in labels and _matches(labels[column], value)
            wanted[column] = is_there or wanted.get(column, False)
        return all(wanted.values()) and not any(
            column in labels and _matches(labels[column], value) for column, value in self.exclude
        )


def _matches(label: str, value: str) -> bool:
    if value == NULL:
        return label == encode_label(None)
    if value.startswith('"'):
        return label == encode_label(json.loads(value))
    return decode_label(label) == value and label != encode_label(None)


def _is_value(text: str) -> bool:
    if not text.startswith('"'):
        return True
    try:
        return isinstance(json.loads(text), str)
    except ValueError:
        return False


EVERYTHING: Final = Selector()
