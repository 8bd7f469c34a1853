"""The names by which sessions of a shuffle have met at a server.

Every session meets under a name of its own, so that no other one is disturbed by it, whichever
folder, feed or machine that is of. What a session leaves at the server is removed when it ends. An
empty file in the shuffle's folder stands for each name, so that the session after one that was
killed removes it instead. Somebody who copied the folder has other files: see `_here`.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final

from penstock.checksum import checksum
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.directory.meeting import ServerMeeting
    from penstock.storage import Storage

_LOG: Final = logging.getLogger("penstock.shuffle")


class Meetings:
    """Of one shuffle. Whoever uses it has locked the folder: no earlier session lives."""

    def __init__(self, place: Storage, folder: Path) -> None:
        self._notes = place.within(f"meetings/{_here(folder)}")

    def begin(self, meeting: ServerMeeting) -> None:
        """Before anybody meets there."""
        self.end(meeting)
        self._notes.create_empty(meeting.cluster)

    def end(self, meeting: ServerMeeting) -> None:
        """Removes what this and earlier sessions have left at the server. If it is out of reach,
        the next session does."""
        try:
            for name in self._notes.names():
                meeting.forget(name)
                self._notes.delete(name)
        except PenstockError as error:
            _LOG.warning("what sessions have left at the server stays there for now: %s", error)


def _here(folder: Path) -> str:
    """The folder on this machine. A copy of it, elsewhere, names a session that may still run."""
    return f"{checksum(f'{socket.gethostname()} {folder.absolute()}'.encode()):016x}"
