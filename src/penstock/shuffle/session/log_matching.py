"""Progress that waits for the transaction log, and then for nothing else. Event in, effects out.

Progress is matched in the order in which Slices told it (`matching.py` has the rules). What cannot
be matched yet waits, with all behind it, for the log to be read once more, or looked at. After a
restart it may also wait for markers: the Slices that were restored have told them to an earlier
session, so they are read again from the journals.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import LocalProtocolError
from penstock.journal.offset_identity import READER, offset_of
from penstock.shuffle.session.ledger import entries_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.frontier import Frontier
    from penstock.journal.markers import MarkersSought
    from penstock.journal.transaction_log import LogEntry, Look, Marker
    from penstock.shuffle.session.ledger import ReadKey
    from penstock.shuffle.session.looks import Matched
    from penstock.shuffle.session.matching import Matching
    from penstock.shuffle.session.remembered import Remembered
    from penstock.shuffle.session.state import Progressed


@dataclass(frozen=True, slots=True, eq=False)
class LogRead:
    """Event: what the transaction log has had since it was read last, and then what a look (see
    `matching.py`) brought."""

    entries: tuple[LogEntry, ...] = ()
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class MarkersFound:
    """Event: the answer to FindMarkers. None: they cannot be had any more."""

    markers: tuple[Marker, ...] | None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Effect: read the transaction log to its end, and tell by LogRead; with a look if `looks`."""

    looks: bool


@dataclass(frozen=True, slots=True)
class FindMarkers:
    """Effect: read these markers again, and tell by MarkersFound."""

    sought: Mapping[ReadKey, MarkersSought]
    """By what frontiers call the journal, and binding."""


LogEffect: TypeAlias = ReadLog | FindMarkers


@dataclass(slots=True)
class MatchedProgress:
    matched: list[tuple[Progressed, Matched]] = field(default_factory=list)
    """For the checkpoints, in this order."""
    through: Frontier | None = None
    """Behind it: what nobody has to wait for any more."""
    wanted: LogEffect | None = None
    """What the rest waits for. None: nothing waits, or it was asked for."""


@dataclass(slots=True, eq=False)
class _Waiting:
    event: Progressed
    since: float
    reads: int = 0
    """How often the log was read since."""
    is_asked: bool = False
    """Its markers are being looked for."""


class LogMatching:
    def __init__(self, rules: Matching, restored: Remembered | None) -> None:
        """`restored` is what an earlier session remembered of reads that restored Slices have."""
        self.rules = rules
        self._waiting: deque[_Waiting] = deque()
        self._restored = restored
        self._heard: set[ReadKey] = set()
        """Of others the Slices may have told markers to an earlier session."""

    @property
    def waiting_since(self) -> float | None:
        return self._waiting[0].since if self._waiting else None

    def on_progressed(self, event: Progressed, now: float) -> MatchedProgress:
        self._waiting.append(_Waiting(event, now))
        return self._match()

    def on_log(self, read: LogRead, ends: Mapping[str, int]) -> MatchedProgress:
        """`ends` are those of the look, by what frontiers call the journals."""
        self.rules.on_log(read.entries)
        if read.look is not None:
            self.rules.on_look(read.look.before, ends, read.look.around)
            self.rules.on_log(read.look.later)
        for waiting in self._waiting:
            waiting.reads += 1
        found = self._match()
        through = self.rules.through()
        found.through = through if len(through.producers) else None
        return found

    def on_markers(self, found: MarkersFound) -> MatchedProgress:
        if not self._waiting or not self._waiting[0].is_asked:
            raise LocalProtocolError("nobody has asked for markers")
        waiting = self._waiting[0]
        sought = self._sought(waiting.event)
        if found.markers is None:
            self.rules.forget("markers that an earlier session was told cannot be read again")
        else:
            told = waiting.event.markers
            others = [one for one in told if not _is_among(one, sought)]
            waiting.event = replace(waiting.event, markers=(*others, *found.markers))
        self._heard |= sought.keys()
        return self._match()

    def _sought(self, event: Progressed) -> dict[ReadKey, MarkersSought]:
        """The first progress of a restored read says how far it has come, and lacks the markers on
        the way."""
        if self._restored is None:
            return {}
        sought = {
            entry.key: self._restored.sought(entry.key, offset_of(entry.last_commit))
            for entry in entries_of(event.delta, event.delta.producers == READER.int64)
            if entry.key not in self._heard
        }
        self._heard |= {key for key, each in sought.items() if each.begin >= each.end}
        return {key: each for key, each in sought.items() if key not in self._heard}

    def _match(self) -> MatchedProgress:
        found, rules = MatchedProgress(), self.rules
        while self._waiting:
            waiting = self._waiting[0]
            if sought := self._sought(waiting.event):
                if not waiting.is_asked:
                    waiting.is_asked, found.wanted = True, FindMarkers(sought)
                return found
            event = waiting.event
            # Who waits for a marker that is lost is known once the log was read behind the loss.
            is_early = not waiting.reads and any(marker.is_lost for marker in event.markers)
            matched = None if is_early else rules.match(event.delta, event.markers)
            if matched is None:
                if waiting.reads and not rules.needs_look:
                    rules.mismatched(event.delta, event.markers)
                found.wanted = ReadLog(rules.needs_look)
                return found
            self._waiting.popleft()
            found.matched.append((event, matched))
        if rules.needs_look:
            # Nobody waits for it yet. The sooner it is, the less is below it.
            found.wanted = ReadLog(looks=True)
        return found


def _is_among(marker: Marker, sought: Mapping[ReadKey, MarkersSought]) -> bool:
    found = sought.get((marker.journal, marker.binding))
    return found is not None and marker.offset >= found.begin
