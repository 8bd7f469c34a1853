"""The feeds below some folders, and what each says of itself.

A place is a feed's own folder, a folder of such folders, or a file store's folder, which keeps its
feeds in `feeds/`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

STATE_NAME: Final = "state.json"
SPARK_NAME: Final = "spark.json"
STATE_FORMAT: Final = 1
SPARK_FORMAT: Final = 1
FEEDS_MAX: Final = 200
"""More than anybody looks at; a store may have old ones of many queries."""
LIST_SECONDS: Final = 1.0
"""A new feed is seen within so long."""
SILENT_SECONDS_MAX: Final = 5.0
"""Of a feed that is led on another machine: it writes twice a second."""


@dataclass(frozen=True, slots=True)
class Look:
    """A feed at a moment."""

    name: str
    folder: Path
    text: bytes
    """The state as it is in the file; `null` if there is none that can be read."""
    state: dict[str, Any] | None
    spark: dict[str, Any] | None
    is_alive: bool
    problem: str | None
    """Why there is no state, or why it is not to be believed any more."""

    @property
    def version(self) -> tuple[object, ...]:
        written = None if self.state is None else self.state.get("written")
        batches = [] if self.spark is None else self.spark["batches"]
        newest = (batches[-1].get("batch"), batches[-1].get("at")) if batches else None
        return (written, newest, self.is_alive, self.problem)


class Feeds:
    """May be used by many threads."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [place.absolute() for place in places]
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}
        self._listed_at = float("-inf")
        self._read: dict[Path, tuple[tuple[int, ...], bytes, Any, str | None]] = {}

    @property
    def places(self) -> list[str]:
        return [str(place) for place in self._places]

    def check(self) -> None:
        """ConfigurationError if a place is not there."""
        for place in self._places:
            if not place.is_dir():
                raise ConfigurationError(
                    f"there is no folder {place}; name a feed's folder, or a store with --store"
                )

    def names(self) -> list[str]:
        with self._lock:
            if time.monotonic() - self._listed_at >= LIST_SECONDS:
                self._folders = _named(_folders(self._places))
                self._listed_at = time.monotonic()
                kept = set(self._folders.values())
                self._read = {path: one for path, one in self._read.items() if path.parent in kept}
            return list(self._folders)

    def look(self, name: str) -> Look | None:
        """None: there is no such feed."""
        self.names()
        folder = self._folders.get(name)
        if folder is None:
            return None
        text, state, problem = self._state(folder)
        _, spark, _ = self._json(folder / SPARK_NAME, SPARK_FORMAT)
        if spark is not None and not isinstance(spark.get("batches"), list):
            spark = None
        is_alive = state is not None and _is_alive(folder, state)
        if state is not None and not is_alive and state.get("phase") not in ("stopped", "failed"):
            problem = (
                f"Nobody runs this feed any more: process {state.get('process')} on "
                f"{state.get('host')} has ended without saying so. What is shown is the last it "
                "wrote."
            )
        return Look(name, folder, text, state, spark, is_alive, problem)

    def look_at_all(self) -> list[Look]:
        looks = (self.look(name) for name in self.names())
        return [look for look in looks if look is not None]

    def _state(self, folder: Path) -> tuple[bytes, dict[str, Any] | None, str | None]:
        text, state, problem = self._json(folder / STATE_NAME, STATE_FORMAT)
        if state is None and problem is None:
            problem = "This feed has not said anything yet."
        return text, state, problem

    def _json(self, path: Path, known: int) -> tuple[bytes, dict[str, Any] | None, str | None]:
        """The file's text and contents, read again only if it was replaced."""
        try:
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            with self._lock:
                found = self._read.get(path)
            if found is None or found[0] != stamp:
                found = (stamp, *_parse(path, known))
                with self._lock:
                    self._read[path] = found
        except FileNotFoundError:
            return b"null", None, None
        except OSError as error:
            return b"null", None, f"{path} cannot be read: {error.strerror}."
        return found[1], found[2], found[3]


def _parse(path: Path, known: int) -> tuple[bytes, dict[str, Any] | None, str | None]:
    text = path.read_bytes()
    try:
        found = json.loads(text)
    except ValueError:
        return (
            b"null",
            None,
            f"{path} is torn: it is not JSON. If the feed runs, it is written anew within a second; "
            "else start the feed again.",
        )
    if not isinstance(found, dict) or found.get("format") != known:
        told = found.get("format") if isinstance(found, dict) else None
        return (
            b"null",
            None,
            f"{path} has format {told!r}, and this Penstock reads {known}. Look at the feed with "
            "the Penstock that runs it.",
        )
    if b"\n" in text or b"\r" in text:
        text = json.dumps(found, separators=(",", ":")).encode()  # an event of SSE is one line
    return text, found, None


def _is_alive(folder: Path, state: dict[str, Any]) -> bool:
    if state.get("host") != socket.gethostname():
        return time.time() - float(state.get("written") or 0) < SILENT_SECONDS_MAX
    try:
        lock = os.open(folder / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _folders(places: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for place in places:
        if _is_feed(place):
            found[place] = None
            continue
        for parent in (place, place / "feeds"):
            try:
                children = sorted(parent.iterdir())
            except OSError:
                continue
            found |= dict.fromkeys(child for child in children if _is_feed(child))
    return list(found)[:FEEDS_MAX]


def _is_feed(folder: Path) -> bool:
    return (folder / STATE_NAME).exists() or (folder / "cluster").is_dir()


def _named(folders: list[Path]) -> dict[str, Path]:
    """By the folder's own name; where two have the same, by as much of the path as it takes."""
    named: dict[str, Path] = {}
    for folder in folders:
        parts, count = folder.parts, 1
        while "/".join(parts[-count:]) in named and count < len(parts):
            count += 1
        named["/".join(parts[-count:])] = folder
    return named
