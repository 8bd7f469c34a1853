"""Reads the transaction log for the Session, in a thread of its own: brokers take their time.

A *look* asks for the ends of all journals between two reads of the log (see `matching.py`). It
lists journals anew: one that it does not name is taken for younger than the look.

After a restart it also reads markers again that Slices have told to an earlier session.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.journal.errors import OffsetDroppedError, RowsTakenBackError, UnknownJournalError
from penstock.journal.markers import markers_again
from penstock.shuffle.session.log_matching import LogRead, MarkersFound
from penstock.threads import supervised

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.store import ReadableStore
    from penstock.journal.transaction_log import Marker, NamedProducer, TransactionLog
    from penstock.shuffle.plan import Plan
    from penstock.shuffle.resume import Resume
    from penstock.shuffle.session.log_matching import FindMarkers
    from penstock.shuffle.session.remembered import Remembered

IDLE_SECONDS: Final = 1.0
"""The log is read so often even if nobody waits for it: what is compacted away is lost."""
PAUSE_SECONDS: Final = 0.01
"""Between two reads. A producer that is just committing is still a moment later."""


class LogReader:
    """`tell` gets what was read, `fail` what went wrong; both from its thread."""

    def __init__(
        self,
        store: ReadableStore,
        transactions: TransactionLog,
        plan: Plan,
        *,
        tell: Callable[[LogRead | MarkersFound], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._log = transactions
        self._plan = plan
        self._tell = tell
        self._changed = threading.Condition()
        self._is_wanted = self._looks = self._is_closing = False
        self._sought: FindMarkers | None = None
        self._thread = supervised(
            "session reads transactions", self._run, fail=fail, until=lambda: self._is_closing
        )

    def start(self) -> None:
        self._thread.start()

    def want(self, *, looks: bool) -> None:
        """Somebody waits for it."""
        with self._changed:
            self._is_wanted = True
            self._looks |= looks
            self._changed.notify_all()

    def named(self, producer: int) -> NamedProducer | None:
        """What the log had of a producer, as far as it was read."""
        return self._log.named(producer)

    def find(self, sought: FindMarkers) -> None:
        with self._changed:
            self._is_wanted, self._sought = True, sought
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._log.close()

    def _run(self) -> None:
        while not self._is_closing:
            with self._changed:
                looks, self._is_wanted, self._looks = self._looks, False, False
                sought, self._sought = self._sought, None
            if sought is not None:
                self._tell(found_markers(self._store, sought))
            self._tell(self._look() if looks else LogRead(tuple(self._log.read())))
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, PAUSE_SECONDS)
                self._changed.wait_for(lambda: self._is_wanted or self._is_closing, IDLE_SECONDS)

    def _look(self) -> LogRead:
        entries = tuple(self._log.read())
        journals = self._listed()
        look = self._log.look(journals)
        if self._listed() != journals:
            # A journal came or went meanwhile: it is not known whether the look has its end.
            return LogRead((*entries, *look.before, *look.around, *look.later))
        return LogRead(entries, look)

    def _listed(self) -> list[str]:
        return sorted(
            {
                journal.name
                for binding in self._plan.bindings
                if binding.by_offset
                for journal in self._store.journals(binding.collection, binding.selector)
            }
        )


def found_markers(store: ReadableStore, sought: FindMarkers) -> MarkersFound:
    found: list[Marker] = []
    try:
        for key, each in sought.sought.items():
            found += markers_again(store, key, each)
    except (OffsetDroppedError, RowsTakenBackError, UnknownJournalError):
        return MarkersFound(None)
    return MarkersFound(tuple(found))


def opened_log(
    resume: Resume, store: ReadableStore
) -> tuple[TransactionLog | None, Remembered | None]:
    """The log, if there is one to be read, and where in it matching goes on. If queues are lost,
    that is nowhere: what they had is read again."""
    remembered = None if resume.epoch is None else resume.record.matching
    begins = None if remembered is None else remembered.begins()
    return store.transaction_log(begins), remembered
