"""What leader and members tell each other about an epoch, through the key-value store.

Each writes its own slot, and only the newest value of a slot is sure to be seen. So every value
stands for itself: who missed what came before knows where to look it up, in the decision records.

Members of two versions work together while a cluster is upgraded. Fields that are not known are
passed over, and a field that is not there means its default, except for the few that say which
epoch is meant and what is said of it. So a field that is added later has a default, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.epoch.fields import (
    clock,
    fields_of,
    number,
    numbers,
    optional,
    plain,
    seconds,
    string,
)
from penstock.errors import RemoteProtocolError

KEY_PREFIX: Final = "epoch:"
ANNOUNCEMENT_KEY: Final = "epoch:announcement"
ACKNOWLEDGEMENT_KEY: Final = "epoch:acknowledgement"

SECONDS_MAX_DEFAULT: Final = 30.0
"""What a leader that does not say it is taken to wait. Less would have members give an epoch up
that the leader still commits."""
REASON_CHARACTERS_MAX: Final = 500
"""Of an error or a reason: it travels in every copy of the slot."""


class Phase(StrEnum):
    """Of an epoch, as its leader sees it."""

    PREPARE = "prepare"
    """Draw the line, make it durable, acknowledge both."""
    ALIGNED = "aligned"
    """Everybody has drawn the line: what waited for that goes on. Nothing can be restored yet."""
    COMMIT = "commit"
    """It is decided, and recorded: the epoch counts."""
    ABORT = "abort"
    """It is decided, and recorded: the epoch never was."""


_RANKS: Final = {phase: rank for rank, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class Announcement:
    """By the leader. Of several, the one with the greatest `order` counts."""

    term: int
    """Of the leader's lease: a newer leader has a greater one."""
    epoch: int
    phase: Phase
    members: tuple[int, ...]
    """All who have to acknowledge."""
    flags: int = 0
    """Of the epoch's barriers."""
    seconds_max: float = SECONDS_MAX_DEFAULT
    """How long the leader waits for acknowledgements."""
    watermark: int | None = None
    """The least of the members' watermarks, once they are known."""
    reason: str = ""
    """Why the epoch was aborted."""

    @property
    def order(self) -> tuple[int, int, int]:
        return self.term, self.epoch, _RANKS[self.phase]

    def to_json(self) -> str:
        return json.dumps(plain(self))

    @classmethod
    def from_json(cls, text: str) -> Announcement:
        try:
            fields = fields_of(text)
            return cls(
                term=number(fields["term"]),
                epoch=number(fields["epoch"]),
                phase=Phase(fields["phase"]),
                members=numbers(fields["members"]),
                flags=optional(fields, "flags", number, 0),
                seconds_max=optional(fields, "seconds_max", seconds, SECONDS_MAX_DEFAULT),
                watermark=optional(fields, "watermark", clock, None),
                reason=optional(fields, "reason", string, ""),
            )
        except (ValueError, KeyError) as error:
            raise RemoteProtocolError(
                f"not an announcement: {error!r} in {text[:200]!r}"
            ) from error


class Stage(StrEnum):
    """How far a member is with an epoch."""

    CAPTURED = "captured"
    """The line is drawn: the pipeline can go on."""
    PREPARED = "prepared"
    """All of the member's parts are durable."""
    FAILED = "failed"
    """The member has no part in this epoch, and never will."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """By a member, the leader's own among them. A later one takes the place of an earlier."""

    term: int
    """Of the announcement that is answered."""
    epoch: int
    stage: Stage
    watermark: int | None = None
    error: str = ""
    finished: int = 0
    """All epochs up to this one are committed or aborted at this member."""

    def to_json(self) -> str:
        return json.dumps(plain(self))

    @classmethod
    def from_json(cls, text: str) -> Acknowledgement:
        try:
            fields = fields_of(text)
            return cls(
                term=number(fields["term"]),
                epoch=number(fields["epoch"]),
                stage=Stage(fields["stage"]),
                watermark=optional(fields, "watermark", clock, None),
                error=optional(fields, "error", string, ""),
                finished=optional(fields, "finished", number, 0),
            )
        except (ValueError, KeyError) as error:
            raise RemoteProtocolError(
                f"not an acknowledgement: {error!r} in {text[:200]!r}"
            ) from error


def short(reason: object) -> str:
    """A reason that fits a slot."""
    text = str(reason)
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    return text[: REASON_CHARACTERS_MAX - 3] + "..."
