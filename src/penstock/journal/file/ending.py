"""The end of a journal: up to where it is whole, looked for by whoever opens it, and made durable.

After a power cut rows may be there that were acknowledged, and that the head does not show; and
what a killed appender left may be torn. The head's `trust` tells others how far this has come.
`repair.py` has what is done with the bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import TYPE_CHECKING, Final

from penstock.disk import explained, forget_cached, sync_folder
from penstock.journal.errors import CorruptJournalError
from penstock.journal.file.durable import locked, try_lock
from penstock.journal.file.head import DamagedHeadError, Kept, Position, Records, Trust, this_boot
from penstock.journal.file.repair import mend, unrest
from penstock.journal.file.segment import list_segments, segment_path
from penstock.locks import LockHeldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.journal.file.head import Head
    from penstock.journal.file.repair import Unrest

SYNC_WAIT_S_MAX: Final = 0.2
"""How long who opens a journal waits for one who makes rows durable: a sync takes milliseconds."""

log = logging.getLogger(__name__)


class JournalEnd:
    """Of a journal whose files are open to write."""

    def __init__(
        self,
        name: str,
        folder: Path,
        head: Head,
        head_descriptor: int,
        sync_descriptor: int,
        *,
        to_disk: bool,
        open_segment: Callable[[int], int],
        make_durable: Callable[[int, int], None],
    ) -> None:
        """`open_segment` gives a descriptor of the segment that begins at an offset. `make_durable`
        syncs one, and tells everybody if that fails."""
        self._name = name
        self._folder = folder
        self._head = head
        self._head_descriptor = head_descriptor
        self._sync_descriptor = sync_descriptor
        self._to_disk = to_disk
        self._open_segment = open_segment
        self._make_durable = make_durable

    def check(self) -> None:
        """At opening. If the journal is not at rest, the power may have failed: its end is looked
        for, and made durable, under both locks; the caller keeps other threads of this process out.
        Who finds the append lock taken goes on: a process that appends is alive, and so has opened
        the journal since, and has looked for its end."""
        with self._lock_to_check() as may_check:
            if may_check and try_lock(self._head_descriptor):
                try:
                    if self._unrest() is not None:
                        self.find()
                finally:
                    fcntl.flock(self._head_descriptor, fcntl.LOCK_UN)

    def _unrest(self) -> Unrest | None:
        return unrest(self._head, self._folder, to_disk=self._to_disk)

    @contextlib.contextmanager
    def _lock_to_check(self) -> Iterator[bool]:
        """Holds the sync lock, if there is something to check and nobody is at it for long."""
        with contextlib.ExitStack() as stack:
            yield self._unrest() is not None and self._locks_to_check(stack)

    def _locks_to_check(self, stack: contextlib.ExitStack) -> bool:
        try:
            stack.enter_context(locked(self._sync_descriptor, SYNC_WAIT_S_MAX))
        except LockHeldError:
            # Rows of a process that is paused while it makes them durable are seen later. But
            # before somebody has looked for the end, after a power cut, rows may be missing that
            # were seen: that is waited for.
            if not self._is_being_checked():
                return False
            stack.enter_context(locked(self._sync_descriptor))
        return True

    def _is_being_checked(self) -> bool:
        try:
            return self._head.all().trust is Trust.CHECKING
        except DamagedHeadError:
            return True

    def find(self) -> Position:
        """Under both locks: the end of what is whole. It is durable, and seen, from here on."""
        records = self._records_or_rebuilt()
        known = records.synced if records.synced.segment >= records.kept.first_offset else None
        if records.trust is Trust.DOUBTED:
            self._forget_cached(known)
        else:
            self._head.set_trust(Trust.CHECKING, records.boot)
        if not self._to_disk:
            known = None  # `synced` says what was written, and no more
        reached = mend(self._name, self._folder, known, to_disk=self._to_disk)
        self._make_durable(reached.segment, self._open_segment(reached.segment))
        if reached != records.written:
            # The one who made the newest segment may have died before its name was durable.
            sync_folder(self._folder)
            self._head.set_written(reached)
            self._tell_lost(records.written, reached)
        self._head.set_synced(reached)
        self._head.set_trust(Trust.SOUND, this_boot())
        if reached != records.written or records.trust is not Trust.SOUND:
            self._head.sync()
        return reached

    def _records_or_rebuilt(self) -> Records:
        """What the head says. If it is damaged: start over from the newest segment, and believe
        nothing that the disk does not say."""
        try:
            return self._head.all()
        except DamagedHeadError:
            segments = list_segments(self._folder)
        if not segments:
            raise CorruptJournalError(self._name, "head", 0, "the journal has no segments")
        log.warning("%s: its head was damaged; rebuilding it from its segments", self._name)
        kept = Kept(segments[0], suspended=False)
        self._head.set_kept(kept)
        begin = Position(-1, 0, 0)
        return Records(begin, begin, kept, Trust.DOUBTED, 0)

    def _forget_cached(self, known: Position | None) -> None:
        """What is behind the known durable position is then read from the disk."""
        segments = list_segments(self._folder)
        for segment in segments if known is not None else segments[-1:]:
            if known is None or segment >= known.segment:
                path = segment_path(self._folder, segment)
                with explained("open", path):
                    descriptor = os.open(path, os.O_RDWR)
                try:
                    self._make_durable(segment, descriptor)
                    forget_cached(descriptor)
                finally:
                    os.close(descriptor)

    def _tell_lost(self, written: Position, reached: Position) -> None:
        if not self._to_disk and reached.offset < written.offset:
            log.error(
                "%s: rows %d to %d are lost: the machine went down before they were on the disk. "
                "This store has durability 'buffered', which is safe against killed processes "
                "only. What is whole is kept; the rows' offsets will be given to others, so begin "
                "again with whatever has read them",
                self._name,
                reached.offset,
                written.offset - 1,
            )
