"""Log records that say whose they are: feed, member and epoch, where that is known.

Penstock logs under `penstock.*`, and is quiet unless something is wrong: a program that wants to
hear more sets the level of that logger. The fields are attributes of the record.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from pathlib import Path

    Adapter = logging.LoggerAdapter[logging.Logger]

FIELDS: Final = ("feed", "member", "epoch")


class _About(logging.LoggerAdapter):  # type: ignore[type-arg] # not generic at run time before 3.11
    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def about(logger: logging.Logger, *, feed: str | None = None, member: int | None = None) -> Adapter:
    """The logger, whose records say what is known. A call may add `extra={"epoch": 5}`."""
    known = {"feed": feed, "member": member}
    return _About(logger, {name: value for name, value in known.items() if value is not None})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says of whose it is."""
    found = {name: getattr(record, name, None) for name in FIELDS}
    return {name: value for name, value in found.items() if value is not None}


class JsonLines(logging.Formatter):
    """A line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "at": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **fields_of(record),
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextlib.contextmanager
def written_to(path: Path | None) -> Iterator[None]:
    """Within it, all records from INFO on go to the file too, as JSON. None: they do not."""
    if path is None:
        yield
        return
    logger = logging.getLogger("penstock")
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
