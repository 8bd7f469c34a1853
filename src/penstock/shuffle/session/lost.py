"""What a recovery finds to be gone: rows of the journals that an epoch had promised."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.ids import clock_to_unix

if TYPE_CHECKING:
    from penstock.frontier import ProducerFrontier

_NAMED_MAX: Final = 5
"""Commits that an error names; of the others it says how many they are."""


class RowsLostError(PenstockError):
    """Queues were lost, and the journals do not hold any more what is missing. Starting again does
    not help: begin with a new checkpoint, or another folder."""

    def __init__(self, feed: str, journal: str, what: str, commits: tuple[str, ...]) -> None:
        super().__init__(feed, journal, what, commits)
        self.feed = feed
        self.journal = journal
        self.what = what
        self.commits = commits

    def __str__(self) -> str:
        named = "; ".join(self.commits[:_NAMED_MAX])
        more = len(self.commits) - _NAMED_MAX
        return (
            f"feed {self.feed!r} cannot be recovered: its queues were lost, and what is to be read "
            f"again of journal {self.journal} is gone: {self.what}. An epoch has promised "
            f"{named}{f' and {more} more' if more > 0 else ''}. Starting again does not help. "
            "Restore the journal; or begin with a new checkpoint (penstock shuffle: with another "
            '--folder), which reads all that the journals still hold: docs/shuffle.md, "When rows '
            'are gone", has how to pass over what was consumed already'
        )


def rows_lost(
    feed: str, journal: str, what: str, entries: tuple[ProducerFrontier, ...]
) -> RowsLostError:
    """`entries` are those of the journal, some of which hint at commits."""
    commits = tuple(
        f"the commits of producer {entry.producer} up to {_shown(entry.hinted_commit)}"
        for entry in entries
        if entry.is_unresolved
    )
    return RowsLostError(feed, journal, what, commits)


def _shown(clock: int) -> str:
    seconds, nanoseconds = clock_to_unix(clock)
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{nanoseconds // 1000:06d} UTC"
