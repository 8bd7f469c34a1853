"""What a power cut leaves of a folder. A real one does not lose just what was not synced:

- **Contents.** Of a file, any of the sectors that were written since its last sync survive, each
  in any of its versions; so does any of its sizes. What a size covers and no sector fills is zeros.
- **Names.** Of the changes of names (create, rename, link, remove) all those survive that a synced
  folder pins, and of the others the first few, however many.

A `Recorder` notes what one run of a story does. A `Recording` then makes as many cuts of it as a
test wants, at any of its changes: what is left of the files, by chance, and what had been promised.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTOR_BYTES: Final = 512
"""The least that a disk writes as a whole. Pages are larger: what tears them tears these."""
FRESH_CUTS: Final = 12
"""Cuts that no run before had, besides the fixed ones."""
_SHARED_MEMORY: Final = Path("/dev/shm")

Left: TypeAlias = "bytes | tuple[tuple[str, Left], ...]"
"""A file, or a folder."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """One call: the entries that are different since, by folder and name; None if gone."""

    change: int
    entries: dict[tuple[int, str], int | None]


@dataclass(slots=True)
class Recording:
    """Files and folders go by numbers of their own, of which the root's is 0. Change 0 is what the
    story found, all of it durable."""

    changes: int = 0
    contents: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Of each file, its versions, and the change with which each came."""
    names: list[NameChange] = field(default_factory=list)
    syncs: dict[int, list[int]] = field(default_factory=dict)
    """Of each file and folder, the changes that were syncs of it."""
    told: list[str] = field(default_factory=list)
    """Before each change, and after the last, what had been promised."""

    def cut(self, change: int, chance: random.Random | None, left: Path) -> list[str]:
        """Leaves in a folder what a power cut after this change leaves; gives the promises. Without
        a chance, everything is lost that was not synced."""
        _write(self._left(0, self._folders(change, chance), change, chance), left)
        return self.told[change].split("\n")[:-1]

    def _folders(self, change: int, chance: random.Random | None) -> dict[int, dict[str, int]]:
        made = [each for each in self.names if each.change <= change]
        loose = [each for each in made if not self._is_pinned(each, change)]
        lost = loose[0 if chance is None else chance.randint(0, len(loose)) :]
        folders: dict[int, dict[str, int]] = {}
        for each in made:
            if each not in lost:
                for (folder, name), target in each.entries.items():
                    entries = folders.setdefault(folder, {})
                    if target is None:
                        entries.pop(name, None)
                    else:
                        entries[name] = target
        return folders

    def _is_pinned(self, named: NameChange, change: int) -> bool:
        return named.change == 0 or any(
            named.change <= synced <= change
            for folder, _ in named.entries
            for synced in self.syncs.get(folder, ())
        )

    def _left(
        self,
        number: int,
        folders: dict[int, dict[str, int]],
        change: int,
        chance: random.Random | None,
    ) -> Left:
        if number in self.contents:
            return self._content(number, change, chance)
        return tuple(
            (name, self._left(child, folders, change, chance))
            for name, child in sorted(folders.get(number, {}).items())
        )

    def _content(self, number: int, change: int, chance: random.Random | None) -> bytes:
        synced = max((at for at in self.syncs.get(number, ()) if at <= change), default=-1)
        versions = [b""]
        for at, data in self.contents[number]:
            if at <= synced:
                versions = [data]
            elif at <= change:
                versions.append(data)
        way = "old" if chance is None else chance.choice(("old", "new", "any"))
        if chance is None or way != "any":
            return versions[0 if way == "old" else -1]
        size = len(chance.choice(versions))
        return b"".join(
            chance.choice(versions)[at : at + SECTOR_BYTES][: size - at].ljust(
                min(SECTOR_BYTES, size - at), b"\0"
            )
            for at in range(0, size, SECTOR_BYTES)
        )

    def cuts(
        self, every: int = 1, fresh: int = FRESH_CUTS
    ) -> Iterator[tuple[int, random.Random | None, str]]:
        """Where to cut, by which chance, and how to say so: at each change everything that was not
        synced is lost; at each, something of it; and a few more that nobody has tried before. Of
        cuts that leave the same, with the same promises, only the first is made."""
        seen: set[tuple[str, Left]] = set()
        for change, seed, when in self._all_cuts(every, fresh):
            chance = None if seed is None else random.Random(seed)
            left = self._left(0, self._folders(change, chance), change, chance)
            if (self.told[change], left) not in seen:
                seen.add((self.told[change], left))
                yield change, None if seed is None else random.Random(seed), when

    def _all_cuts(self, every: int, fresh: int) -> Iterator[tuple[int, int | None, str]]:
        for change in range(1, self.changes + 1, every):
            yield change, None, f"power cut after change {change}"
            yield change, change, f"power cut after change {change}, by chance"
        draw = random.SystemRandom()
        for _ in range(fresh):
            change, seed = draw.randint(1, self.changes), draw.randrange(10**9)
            when = f"power cut after change {change} of {self.changes}, random.Random({seed})"
            sys.stdout.write(f"{when}\n")  # pytest shows it if the test fails
            yield change, seed, when


def _write(left: Left, target: Path) -> None:
    if isinstance(left, bytes):
        target.write_bytes(left)
        return
    target.mkdir()
    for name, inner in left:
        _write(inner, target / name)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """The name of a folder to be left there: in memory, where syncing costs nothing."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="penstock-cut-", dir=parent) as folder:
        yield Path(folder) / "left"


class Recorder:
    """Notes what a process does below a folder. It is told of each call after it was made."""

    def __init__(self, root: Path, reports: Path) -> None:
        self._root, self._reports = root, reports
        self._numbers: dict[int, int] = {}
        """By inode."""
        self._held: list[int] = []
        """Open descriptors, by number: so no inode that we know is given to another file."""
        self._entries: dict[tuple[int, str], int] = {}
        self._notes = Recording()
        self._look_at_names()
        for number in range(len(self._held)):
            self._notes.syncs[number] = [0]

    def before(self) -> None:
        """Another change comes, if it does not fail. What was promised by now holds without it."""
        told = self._reports.read_text() if self._reports.exists() else ""
        del self._notes.told[self._notes.changes :]
        self._notes.told.append(told)

    def changed(self, call: str, arguments: tuple[object, ...]) -> None:
        self._notes.changes += 1
        if call in ("fsync", "fdatasync"):
            number = self._numbers.get(os.fstat(_descriptor(arguments[0])).st_ino)
            if number is not None:
                self._notes.syncs.setdefault(number, []).append(self._notes.changes)
        elif call in ("write", "pwrite", "pwritev", "ftruncate"):
            self._look_at_content(os.fstat(_descriptor(arguments[0])).st_ino)
        elif call == "truncate":
            self._look_at_content(Path(str(arguments[0])).stat().st_ino)
        elif call == "open":
            # What it was given, and what it was asked for: the descriptor, the path, the flags.
            if _descriptor(arguments[2]) & (os.O_CREAT | os.O_TRUNC):
                self._look_at_names()
                self._look_at_content(os.fstat(_descriptor(arguments[0])).st_ino)
        else:
            self._look_at_names()

    def recording(self) -> Recording:
        self.before()
        for descriptor in self._held:
            os.close(descriptor)
        return self._notes

    def _look_at_names(self) -> None:
        found: dict[tuple[int, str], int] = {}
        self._walk(self._root, found)
        entries: dict[tuple[int, str], int | None] = {
            key: found.get(key)
            for key in self._entries.keys() | found.keys()
            if found.get(key) != self._entries.get(key)
        }
        if entries:
            self._notes.names.append(NameChange(self._notes.changes, entries))
        self._entries = found

    def _walk(self, folder: Path, found: dict[tuple[int, str], int]) -> int:
        number = self._number(folder)
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = folder / entry.name
                found[number, entry.name] = (
                    self._walk(path, found) if entry.is_dir() else self._number(path)
                )
        return number

    def _number(self, path: Path) -> int:
        status = path.stat()
        if status.st_ino not in self._numbers:
            self._numbers[status.st_ino] = len(self._held)
            self._held.append(os.open(path, os.O_RDONLY))
            if not stat.S_ISDIR(status.st_mode):
                self._notes.contents[self._numbers[status.st_ino]] = []
                self._look_at_content(status.st_ino)
        return self._numbers[status.st_ino]

    def _look_at_content(self, inode: int) -> None:
        number = self._numbers.get(inode)
        if number is None:
            return
        held = self._held[number]
        data = os.pread(held, os.fstat(held).st_size, 0)
        versions = self._notes.contents[number]
        if not versions or versions[-1][1] != data:
            versions.append((self._notes.changes, data))


def _descriptor(argument: object) -> int:
    if not isinstance(argument, int):
        raise TypeError(f"{argument!r} is no descriptor")
    return argument
