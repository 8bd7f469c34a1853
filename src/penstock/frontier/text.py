"""A frontier as JSON: for people to read, to keep, and to pass back as an option.

Producers are 12 hexadecimal digits and clocks 16. Fields that are zero or empty are left out.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import ConfigurationError, LocalProtocolError
from penstock.frontier.table import Frontier, JournalFrontier, ProducerFrontier
from penstock.frontier.validation import BINDING_MAX, LSN_MAX, OFFSET_MAX
from penstock.ids import Producer

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1

_HEX_PRODUCER: Final = re.compile("[0-9a-fA-F]{12}")
_HEX_CLOCK: Final = re.compile("[0-9a-fA-F]{16}")
_INT64: Final = (-(2**63), 2**63 - 1)
_BINDING: Final = re.compile("0|[1-9][0-9]{0,4}")

_Fields: TypeAlias = dict[str, object]


class FrontierTextError(ConfigurationError):
    """Text given as a frontier is not one. The message says where and why; correct it there."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"this is not a frontier: {self.where} {self.problem}"


def to_json(frontier: Frontier) -> str:
    """One line of JSON."""
    fields: _Fields = {
        "version": VERSION,
        "journals": [_journal_fields(journal) for journal in frontier.journals()],
        "flushed_lsn": frontier.flushed_lsn.tolist(),
        "backfill_begin": _clock_fields(frontier.backfill_begin),
        "backfill_complete": _clock_fields(frontier.backfill_complete),
        "gap_floor": _clock_fields(frontier.gap_floor),
    }
    return json.dumps(_without_zeros(fields, keep=("version", "journals")), ensure_ascii=False)


def _journal_fields(journal: JournalFrontier) -> _Fields:
    fields: _Fields = {
        "journal": journal.journal,
        "binding": journal.binding,
        "bytes_read_delta": journal.bytes_read_delta,
        "bytes_behind_delta": journal.bytes_behind_delta,
        "producers": [_entry_fields(entry) for entry in journal.producers],
    }
    return _without_zeros(fields, keep=("journal", "binding", "producers"))


def _entry_fields(entry: ProducerFrontier) -> _Fields:
    fields: _Fields = {
        "producer": str(entry.producer),
        "last_commit": f"{entry.last_commit:016x}" if entry.last_commit else "",
        "hinted_commit": f"{entry.hinted_commit:016x}" if entry.hinted_commit else "",
        "offset": entry.offset,
    }
    return _without_zeros(fields, keep=("producer", "offset"))


def _clock_fields(clocks: Mapping[int, int]) -> dict[str, str]:
    return {str(binding): f"{clocks[binding]:016x}" for binding in sorted(clocks)}


def _without_zeros(fields: _Fields, keep: tuple[str, ...]) -> _Fields:
    return {name: value for name, value in fields.items() if value or name in keep}


def from_json(text: str) -> Frontier:
    """The frontier that the text describes, or a `FrontierTextError` that says what is wrong."""
    try:
        document = json.loads(text, object_pairs_hook=_distinct_fields)
    except json.JSONDecodeError as error:
        raise FrontierTextError("the text", f"is not JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise FrontierTextError("the text", f"cannot be read: {error}") from None
    top = _Reader("the frontier", document)
    version = top.integer("version", 0, LSN_MAX)
    if version != VERSION:
        raise FrontierTextError(
            "the frontier", f"is of version {version}; this reader knows {VERSION}"
        )
    journals = [_read_journal(item) for item in top.items("journals", "journal")]
    lsns = [
        _integer(value, f"flushed_lsn {index}", 0, LSN_MAX)
        for index, value in enumerate(top.listed("flushed_lsn"))
    ]
    backfill_begin, backfill_complete, gap_floor = (
        top.clocks(name) for name in ("backfill_begin", "backfill_complete", "gap_floor")
    )
    top.finish()
    try:
        return Frontier.of(
            journals,
            flushed_lsn=lsns,
            backfill_begin=backfill_begin,
            backfill_complete=backfill_complete,
            gap_floor=gap_floor,
        )
    except LocalProtocolError as error:
        raise FrontierTextError("the list of journals", f"is wrong: {error}") from error


def _read_journal(fields: _Reader) -> JournalFrontier:
    journal = JournalFrontier(
        journal=fields.text("journal"),
        binding=fields.integer("binding", 0, BINDING_MAX),
        producers=tuple(_read_entry(item) for item in fields.items("producers", "producer")),
        bytes_read_delta=fields.integer("bytes_read_delta", *_INT64, default=0),
        bytes_behind_delta=fields.integer("bytes_behind_delta", *_INT64, default=0),
    )
    fields.finish()
    return journal


def _read_entry(fields: _Reader) -> ProducerFrontier:
    entry = ProducerFrontier(
        producer=fields.producer("producer"),
        last_commit=fields.clock("last_commit"),
        hinted_commit=fields.clock("hinted_commit"),
        offset=fields.integer("offset", -OFFSET_MAX, OFFSET_MAX),
    )
    fields.finish()
    return entry


class _Reader:
    """Takes the fields of one JSON object, and knows how to say where it is."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise FrontierTextError(where, f"must be an object, not {_shown(value)}")
        self._where = where
        self._fields: _Fields = dict(value)

    def _take(self, name: str) -> object:
        if name not in self._fields:
            raise FrontierTextError(self._where, f"has no {name!r}")
        return self._fields.pop(name)

    def _at(self, name: str) -> str:
        return f"{name!r} of {self._where}"

    def integer(self, name: str, least: int, most: int, default: int | None = None) -> int:
        if default is not None and name not in self._fields:
            return default
        return _integer(self._take(name), self._at(name), least, most)

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            raise FrontierTextError(self._at(name), f"must be text, not {_shown(value)}")
        return value

    def producer(self, name: str) -> Producer:
        value = self.text(name)
        if not _HEX_PRODUCER.fullmatch(value):
            problem = f"must be 12 hexadecimal digits, not {_shown(value)}"
            raise FrontierTextError(self._at(name), problem)
        return Producer.from_hex(value)

    def clock(self, name: str) -> int:
        return _clock(self._take(name), self._at(name)) if name in self._fields else 0

    def clocks(self, name: str) -> dict[int, int]:
        if name not in self._fields:
            return {}
        found = _Reader(self._at(name), self._take(name))
        clocks = {}
        for key, value in found._fields.items():
            if not _BINDING.fullmatch(key) or int(key) > BINDING_MAX:
                problem = f"has {_shown(key)} where a binding from 0 to {BINDING_MAX} must be"
                raise FrontierTextError(self._at(name), problem)
            clocks[int(key)] = _clock(value, f"binding {key} in {self._at(name)}")
        return clocks

    def listed(self, name: str) -> list[object]:
        value = self._fields.pop(name, [])
        if not isinstance(value, list):
            raise FrontierTextError(self._at(name), f"must be a list, not {_shown(value)}")
        return value

    def items(self, name: str, item: str) -> list[_Reader]:
        inside = "" if self._where == "the frontier" else f" of {self._where}"
        return [
            _Reader(f"{item} {index}{inside}", value)
            for index, value in enumerate(self.listed(name))
        ]

    def finish(self) -> None:
        if self._fields:
            names = ", ".join(sorted(self._fields))
            raise FrontierTextError(self._where, f"has fields that a frontier has not: {names}")


def _integer(value: object, where: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FrontierTextError(where, f"must be a whole number, not {_shown(value)}")
    if not least <= value <= most:
        raise FrontierTextError(where, f"must be from {least} to {most}, not {value}")
    return value


def _clock(value: object, where: str) -> int:
    if not isinstance(value, str) or not _HEX_CLOCK.fullmatch(value):
        raise FrontierTextError(where, f"must be 16 hexadecimal digits, not {_shown(value)}")
    return int(value, 16)


def _distinct_fields(pairs: list[tuple[str, object]]) -> _Fields:
    fields: _Fields = {}
    for name, value in pairs:
        if name in fields:
            raise FrontierTextError("the text", f"has two fields {name!r} in one object")
        fields[name] = value
    return fields


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
