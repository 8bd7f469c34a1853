"""The watch over a shuffle: it outlives sessions, and writes what there is to know into the folder.

Whatever becomes of the writing, the feed goes on: a full disk or a folder that is gone cost the
view of it, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.logs import about
from penstock.shuffle.gathering import Gathering
from penstock.shuffle.status import ended_threads
from penstock.threads import supervised
from penstock.watch.causes import Restart, Starting
from penstock.watch.encoding import encode_state
from penstock.watch.loading import STATE_NAME
from penstock.watch.standing import Seen
from penstock.watch.state import FeedState, RestartEvent, Restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.routing import Assignment
    from penstock.shuffle.gathering import Consumer
    from penstock.shuffle.session.actor import Session
    from penstock.shuffle.session.view import SessionView
    from penstock.watch.state import Phase

WRITE_SECONDS: Final = 0.5
RESTARTS_KEPT: Final = 20

_LOG: Final = logging.getLogger("penstock.shuffle")


class Watch:
    """Of one shuffle. From `start` to `stop` it writes; both as often as the folder is taken and
    left. Safe for any thread."""

    def __init__(
        self,
        folder: Path,
        feed: str,
        store: str,
        session: Callable[[], Session | None],
        assignment: Callable[[], Assignment],
        *,
        on_spark: bool,
    ) -> None:
        """`session` gives the one that runs now."""
        self.consumer: Consumer = "shuffle"
        """Who draws the epochs."""
        self._folder = folder
        self._feed = feed
        self._store = store
        self._session = session
        self._assignment = assignment
        self._on_spark = on_spark
        self._lock = threading.Lock()
        self._gathering = Gathering()
        self._started = time.time()
        self._phase: Phase = "starting"
        self._phase_began = self._started
        self._reason: str | None = None
        self._restarts = Restarts()
        self._in_a_row = 0
        self._state: FeedState | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained = False

    # What happens to the shuffle

    def opening(self) -> None:
        """Members are being started: for the first time, or anew."""
        self._enter("restarting" if self._restarts.count and self._in_a_row else "starting")

    def recovering(self) -> None:
        self._enter("recovering")

    def opened(self) -> None:
        with self._lock:
            events = self._restarts.events
            if events and events[-1].recovered is None:
                last = replace(events[-1], recovered=time.time())
                self._restarts = replace(self._restarts, events=(*events[:-1], last))
        self._enter("running")

    def lost(self, reason: str, member: int | None) -> None:
        """All of it begins anew."""
        with self._lock:
            self._in_a_row += 1
            events = (*self._restarts.events, RestartEvent(time.time(), reason, member, None))
            self._restarts = Restarts(self._restarts.count + 1, events[-RESTARTS_KEPT:])
        self._enter("restarting", reason)

    def epoch_came(self) -> None:
        self._in_a_row = 0

    def failed(self, reason: str) -> None:
        """For good."""
        self._enter("failed", reason)

    def session_ends(self) -> None:
        """What it did since the last look is not to be forgotten with it. Whatever goes wrong
        here, the session has to end."""
        with contextlib.suppress(Exception):
            self.state()
            with self._lock:
                self._gathering.session_ends()

    def _enter(self, phase: Phase, reason: str | None = None) -> None:
        with self._lock:
            if phase != self._phase:
                self._phase_began = time.time()
            if phase != self._phase or reason is not None:
                self._phase, self._reason = phase, reason

    # Looking and writing

    def state(self) -> FeedState:
        """As it is now."""
        with self._lock:
            session = self._session()
            view = None if session is None else session.view()
            assignment = self._assignment()
            begun = self._begun()
            waits = list(self._waits(view, assignment.members))
            if session is not None and session.failure is not None and begun.phase == "running":
                # The consumer finds out when it next asks, and begins anew: perhaps much later.
                reason, member = str(session.failure), getattr(session.failure, "member", None)
                begun = replace(begun, phase="restarting", reason=reason)
                waits.append(Seen(Restart(reason, member, self._in_a_row + 1)))
            self._state = self._gathering.look(begun, view, assignment, self.consumer, waits)
            return self._state

    @property
    def last(self) -> FeedState | None:
        """As it was when somebody last looked, at most half a second ago while it runs."""
        return self._state

    def start(self) -> None:
        if self._thread is None:
            self._stopping.clear()
            self._thread = supervised("watch", self._run, until=self._stopping.is_set)
            self._thread.start()

    def stop(self) -> None:
        """With a last word, as long as the folder is still this process's."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        if self._phase != "failed":
            self._enter("stopped")
        self._write()

    def _run(self) -> None:
        self._write()
        while not self._stopping.wait(WRITE_SECONDS):
            self._write()

    def _write(self) -> None:
        """A temporary file renamed over the old one: a reader has one or the other. Nothing is
        synced: after a power cut there is nothing to watch."""
        path = self._folder / STATE_NAME
        temporary = self._folder / f".{STATE_NAME}.tmp"
        try:
            temporary.write_text(encode_state(self.state()), encoding="utf-8")
            temporary.replace(path)
        except Exception as error:  # noqa: BLE001 - the feed goes on without being watched
            if not self._complained:
                log = about(_LOG, feed=self._feed)
                log.warning("the state of feed %s cannot be written: %s", self._feed, error)
            self._complained = True
            with contextlib.suppress(OSError):
                temporary.unlink()  # half a file may be what fills the disk
        else:
            self._complained = False

    def _begun(self) -> FeedState:
        return FeedState(
            feed=self._feed,
            store=self._store,
            folder=str(self._folder),
            process=os.getpid(),
            host=socket.gethostname(),
            started=self._started,
            written=time.time(),
            phase=self._phase,
            reason=self._reason,
            restarts=self._restarts,
        )

    def _waits(self, view: SessionView | None, members: tuple[int, ...]) -> Iterator[Seen]:
        """Those that the Session does not know of."""
        yield from ended_threads()
        heard = set() if view is None else {member for member, _ in view.heard}
        silent = tuple(member for member in members if member not in heard)
        if silent and self._phase not in ("stopped", "failed"):
            yield Seen(Starting(silent, self._on_spark), since=self._phase_began)
        if self._phase == "restarting" and self._restarts.events:
            last = self._restarts.events[-1]
            yield Seen(Restart(last.reason, last.member, self._in_a_row), since=last.at)
