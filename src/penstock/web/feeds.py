"""The feeds below some folders, and what each says of itself.

A place is a feed's own folder, a folder of such folders, or a file store's folder, which keeps its
feeds in `feeds/`.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError, PenstockError
from penstock.watch.encoding import encode_state, plain, state_table
from penstock.watch.loading import (
    SPARK_NAME,
    STATE_NAME,
    find_folders,
    is_held,
    is_silent,
    load,
    load_spark,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FEEDS_MAX: Final = 200
"""More than anybody looks at; a store may have old ones of many queries."""
LIST_SECONDS: Final = 1.0
"""A new feed is seen within so long."""

_Stamp = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """A feed at a moment."""

    name: str
    folder: Path
    text: bytes
    """The state as JSON in one line; `null` if there is none that can be read."""
    state: dict[str, Any] | None
    batches: list[dict[str, Any]]
    """Spark's."""
    is_alive: bool
    problem: str | None
    """Why there is no state, or not all of it."""
    stamp: _Stamp
    """Another one: there is something new to see."""


class Feeds:
    """May be used by many threads."""

    def __init__(self, places: Sequence[Path]) -> None:
        """There may be more of them later."""
        self._places = places
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}
        self._left_out = 0
        self._listed_at = float("-inf")
        self._seen: dict[Path, Look] = {}

    @property
    def places(self) -> list[str]:
        return [str(place.absolute()) for place in self._places]

    def check(self) -> None:
        """ConfigurationError if a place is not there."""
        for place in self._places:
            if not place.is_dir():
                raise ConfigurationError(
                    f"there is no folder {place}; name a feed's folder, or a store with --store"
                )

    @property
    def left_out(self) -> int:
        """How many there are beyond FEEDS_MAX."""
        self._known()
        return self._left_out

    def names(self) -> list[str]:
        return list(self._known())

    def folders(self) -> list[tuple[str, Path]]:
        return list(self._known().items())

    def _known(self) -> dict[str, Path]:
        with self._lock:
            if time.monotonic() - self._listed_at >= LIST_SECONDS:
                found = _folders(self._places)
                shown = _shown(found)
                self._folders, self._left_out = _named(shown), len(found) - len(shown)
                self._listed_at = time.monotonic()
                kept = set(self._folders.values())
                self._seen = {one: look for one, look in self._seen.items() if one in kept}
            return self._folders

    def look(self, name: str) -> Look | None:
        """None: there is no such feed. Files are read again only if they were replaced."""
        folder = self._known().get(name)
        if folder is None:
            return None
        held = is_held(folder)
        stamp = (held, is_silent(folder), _stamp(folder / STATE_NAME), _stamp(folder / SPARK_NAME))
        with self._lock:
            seen = self._seen.get(folder)
        if seen is None or seen.stamp != stamp:
            seen = _look(name, folder, stamp, is_held=held)
            with self._lock:
                self._seen[folder] = seen
        return seen

    def look_at_all(self) -> list[Look]:
        looks = (self.look(name) for name in self.names())
        return [look for look in looks if look is not None]


def _look(name: str, folder: Path, stamp: _Stamp, *, is_held: bool) -> Look:
    batches: list[dict[str, Any]] = []
    problems = []
    try:
        batches = [plain(batch) for batch in load_spark(folder)]
    except (PenstockError, OSError) as error:
        problems.append(str(error))
    text, state = b"null", None
    try:
        text, state = _state(folder, is_held=is_held)
    except (PenstockError, OSError) as error:
        problems.append(str(error))
    problem = "; ".join(problems) or None
    return Look(name, folder, text, state, batches, is_held, problem, stamp)


def _state(folder: Path, *, is_held: bool) -> tuple[bytes, dict[str, Any]]:
    """What a feed that runs has written is passed on as it is: taking it all apart twice a second
    would cost more than writing it. Of any other, the loader says what to make of it."""
    if is_held and not is_silent(folder):
        path = folder / STATE_NAME
        text = path.read_bytes()
        found = state_table(text, str(path))
        if b"\n" not in text:
            return text, found
    text = encode_state(load(folder))
    return text, json.loads(text)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _folders(places: Iterable[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for place in map(Path.absolute, places):
        found |= dict.fromkeys([*find_folders(place), *find_folders(place / "feeds")])
    return list(found)


def _shown(folders: list[Path]) -> list[Path]:
    """As many as may be; those whose process lives before the others."""
    if len(folders) <= FEEDS_MAX:
        return folders
    chosen = set(sorted(folders, key=lambda folder: not is_held(folder))[:FEEDS_MAX])
    return [folder for folder in folders if folder in chosen]


def _named(folders: list[Path]) -> dict[str, Path]:
    """By the folder's own name; where two have the same, by as much of the path as it takes."""
    named: dict[str, Path] = {}
    for folder in folders:
        parts, count = folder.parts, 1
        while "/".join(parts[-count:]) in named and count < len(parts):
            count += 1
        named["/".join(parts[-count:])] = folder
    return named
