"""What a member says to the process that has the Session, as JSON.

It is read there as plain data, and no object is made that is not listed here: a member that was
taken over must not run code where the Session is. What goes the other way (orders, and what a
member is given) the Session's process pickles: a member trusts it, which has proven itself.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from penstock.epoch.fields import fields_of, number, string
from penstock.errors import RemoteProtocolError, UnreadableRowError
from penstock.logs import FIELDS
from penstock.shuffle.queue.errors import QueueLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_BYTES_MAX: Final = 1024 * 1024
"""A message has some hundred bytes. Of a long one the text is cut."""
TEXT_CHARACTERS_MAX: Final = 64 * 1024


class Step(enum.Enum):
    """How far a member came."""

    MADE = "made"
    STARTED = "started"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Failed:
    """The member cannot go on."""

    error: str
    """Its type, and what it says."""
    queue_lost: QueueLostError | None = None
    """If it is that: then all queues begin anew."""
    is_final: bool = False
    """To begin anew does not help."""

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        lost = error if isinstance(error, QueueLostError) else None
        is_final = isinstance(error, UnreadableRowError)
        return cls(f"{type(error).__name__}: {error}", lost, is_final)


@dataclass(frozen=True, slots=True)
class Serving:
    """Where readers on other machines find the member's queue."""

    location: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A warning or worse, for the log of the Session's process."""

    logger: str
    level: int
    message: str
    known: dict[str, Any] = field(default_factory=dict)
    """Of whose it is: feed, member, epoch."""


@dataclass(frozen=True, slots=True)
class Over:
    """By a task of Spark's: it is no member any more, and waits for what comes next."""


MemberMessage: TypeAlias = Step | Failed | Serving | Logged | Over


def encode_message(message: MemberMessage) -> bytes:
    match message:
        case Step():
            said: dict[str, Any] = {"says": "step", "step": message.value}
        case Serving():
            said = {"says": "serving", "location": message.location}
        case Failed():
            lost = message.queue_lost
            said = {"says": "failed", "error": _cut(message.error), "final": message.is_final}
            if lost is not None:
                said |= {"folder": lost.folder, "segment": lost.segment, "reason": lost.reason}
        case Logged():
            said = {
                "says": "logged",
                "logger": message.logger,
                "level": message.level,
                "message": _cut(message.message),
                "known": message.known,
            }
        case Over():
            said = {"says": "over"}
        case _:
            assert_never(message)
    return json.dumps(said, default=str).encode()


def decode_message(data: bytes) -> MemberMessage:
    try:
        return _decode(fields_of(data))
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(
            f"a member says what this release does not understand ({type(error).__name__}: "
            f"{error}); run the same release on all machines"
        ) from error


def _decode(said: Mapping[str, Any]) -> MemberMessage:
    match said["says"]:
        case "step":
            return Step(said["step"])
        case "serving":
            return Serving(string(said["location"]))
        case "failed":
            lost = None
            if "folder" in said:
                folder, reason = string(said["folder"]), string(said["reason"])
                lost = QueueLostError(folder, number(said["segment"]), reason)
            return Failed(string(said["error"]), lost, said.get("final") is True)
        case "logged":
            logger, message = string(said["logger"]), string(said["message"])
            return Logged(logger, number(said["level"]), message, _known(said["known"]))
        case "over":
            return Over()
        case other:
            raise ValueError(f"there is no message {other!r}")


def _known(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("what is known is not a JSON object")
    return {
        name: each for name, each in value.items() if name in FIELDS and isinstance(each, str | int)
    }


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX]
