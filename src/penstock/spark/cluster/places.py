"""Where a member's queue is, on the machine that it runs on."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptStorageError
from penstock.shuffle.queue.segment import read_floor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.shuffle.queue.segment import Floor

_OWN: Final = "penstock"
"""In each of Spark's local directories. They are Spark's to remove, and what is in them with it."""
_MEMBER: Final = re.compile(r"member-([1-9][0-9]*)")


def local_directories(environment: Mapping[str, str], configured: str) -> list[str]:
    """Those that Spark uses on this machine, as Spark finds them: YARN's of the container, what a
    worker has made for the executor, what the machine's administrator says, what is configured."""
    if environment.get("CONTAINER_ID") and environment.get("LOCAL_DIRS"):
        return _listed(environment["LOCAL_DIRS"], ",")
    if environment.get("SPARK_EXECUTOR_DIRS"):
        return _listed(environment["SPARK_EXECUTOR_DIRS"], os.pathsep)
    if environment.get("SPARK_LOCAL_DIRS"):
        return _listed(environment["SPARK_LOCAL_DIRS"], ",")
    return _listed(configured, ",") or [tempfile.gettempdir()]


def feed_folders(feed: str, directories: Iterable[str]) -> list[str]:
    """The feed's folders in Spark's directories."""
    return [str(Path(directory).absolute() / _OWN / feed) for directory in directories]


def queue_folder(feed_folder: str, member: int) -> str:
    return str(Path(feed_folder) / f"member-{member}")


@dataclass(frozen=True, slots=True)
class Held:
    """A queue on a machine's disk."""

    folder: str
    generation: int


def held_queues(feed_folders: Iterable[str]) -> dict[int, Held]:
    """The queues in these folders, by member."""
    return {
        int(named[1]): Held(str(path), floor.generation)
        for folder in feed_folders
        if Path(folder).is_dir()
        for path in sorted(Path(folder).iterdir())
        if (named := _MEMBER.fullmatch(path.name)) is not None
        and (floor := _floor(path)) is not None
    }


def _floor(folder: Path) -> Floor | None:
    try:
        return read_floor(folder)
    except (OSError, CorruptStorageError):
        return None


def cast_members(members: Sequence[int], held: Sequence[Iterable[int]]) -> list[int]:
    """Which member each task is to be, given whose queues each one's machine has: as many as can be
    go on where their queues are. Those with the fewest to choose from choose first."""
    free = set(members)
    cast: dict[int, int] = {}
    for task in sorted(range(len(held)), key=lambda one: (len(set(held[one])), one)):
        if known := free & set(held[task]):
            cast[task] = min(known)
            free.discard(cast[task])
    rest = sorted(free)
    return [cast[task] if task in cast else rest.pop(0) for task in range(len(held))]


def _listed(text: str, separator: str) -> list[str]:
    return [one.strip() for one in text.split(separator) if one.strip()]
