"""How a streaming query goes, in figures, and why it failed, in plain words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STATE: Final = re.compile(r" SQLSTATE: \w+")
"""A number for programs."""
_TRACEBACK: Final = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one query, at a moment."""

    name: str
    is_active: bool
    doing: str
    """In Spark's words."""
    batch: int | None = None
    """The last one that is done; None before the first."""
    documents: int = 0
    """Read by this run of the query."""
    documents_per_second: float = 0.0
    batch_ms: int = 0
    rows_behind: int = 0
    """In the journals, and in no queue yet."""
    epoch: int = 0
    stall: str = ""
    """The kind of wait that the feed is stuck in, if it is."""


class Progress:
    """Follows one query."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._documents = 0
        self._counted: int | None = None
        """The last batch that is in `_documents`."""
        self._rows = 0
        """Of that batch. Spark tells of it once more if it waited long before it began."""

    def look(self) -> Figures:
        query = self._query
        active, doing = query.isActive, _in_plain_words(str(query.status["message"]))
        last = query.lastProgress
        if last is None:
            return Figures(query.name, active, doing)
        self._count(last)
        latest = _latest(last)
        return Figures(
            query.name,
            active,
            doing,
            batch=int(last["batchId"]),
            documents=self._documents,
            documents_per_second=float(last["processedRowsPerSecond"] or 0),
            batch_ms=int(last["durationMs"].get("triggerExecution", 0)),
            rows_behind=sum(int(each.get("rows_behind", 0)) for each in latest),
            epoch=max((int(each["epoch"]) for each in latest), default=0),
            stall=next((str(each["stall"]) for each in latest if each.get("stall")), ""),
        )

    def _count(self, last: Any) -> None:
        """Spark remembers a hundred batches. They are asked for only if several came at once."""
        number, seen = int(last["batchId"]), self._counted
        is_same = number == seen
        is_next = seen is not None and number == seen + 1 and self._rows > 0
        for progress in [last] if is_same or is_next else self._query.recentProgress:
            number, rows = int(progress["batchId"]), int(progress["numInputRows"])
            if self._counted is None or number > self._counted:
                self._counted, self._rows = number, 0
            if number == self._counted:
                self._documents += max(rows - self._rows, 0)
                self._rows = max(rows, self._rows)


def _latest(progress: Any) -> list[dict[str, Any]]:
    """What our sources report of themselves."""
    found = []
    for source in progress["sources"]:
        try:
            latest = json.loads(source["latestOffset"])
        except (KeyError, TypeError, ValueError):
            continue  # not ours
        if isinstance(latest, dict) and "epoch" in latest:
            found.append(latest)
    return found


def is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def plain(error: BaseException) -> str:
    return _in_plain_words(str(error))


def _in_plain_words(text: str) -> str:
    """Spark's message without Java's stack and the plan, which are in Spark's log. Of a Python
    error that Spark quotes, only the last line; and if it is one of ours, not even its name."""
    text = text.partition("=== Streaming Query ===")[0]
    ours = [line for line in text.splitlines() if line.startswith("penstock.")]
    if ours:
        return ours[-1].partition(": ")[2]
    text = _STATE.sub("", text.partition("\n\tat ")[0]).strip()
    return text.splitlines()[-1].strip() if _TRACEBACK in text else text
