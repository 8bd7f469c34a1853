"""Ends a process at a chosen change to the disk: by SIGKILL, or as if the power had failed.

Every call that changes files is counted. `kill_at` ends it after the n-th, with everything in the
page cache intact. `cut_power_at` leaves, in another folder, only what had been synced by then: a
file's contents as of its last fsync, and under the names that its folder had at its last fsync.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = (
    "open", "write", "pwrite", "pwritev", "fsync", "fdatasync", "rename", "mkdir", "truncate",
    "ftruncate", "unlink",
)  # fmt: skip
POWER_CUT_EXIT = 77

Story = Callable[[Path, Path], None]
"""What the process does: its store, and a file to which it reports what was acknowledged."""


def report(path: Path, line: str) -> None:
    """A story tells what it was promised. Not through `os`, whose calls are counted."""
    with path.open("a") as file:
        file.write(f"{line}\n")


class Stage:
    """Runs stories, each in a process of its own, forked from one that has imported everything:
    a story then starts in milliseconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )

    def close(self) -> None:
        self._process.communicate()

    def count_changes(self, story: Story, store: Path, reports: Path) -> int:
        """Runs the story to its end, and counts its changes to the disk."""
        ended, count = self._run("count", story, store, reports, count_to=reports.parent / "count")
        if ended != 0:
            raise RuntimeError(f"the story itself failed with {ended}")
        return count

    def kill_at(self, change: int, story: Story, store: Path, reports: Path) -> None:
        """Runs the story until its n-th change, or until it kills itself."""
        ended, _ = self._run("kill", story, store, reports, change=change)
        if ended != -signal.SIGKILL:
            raise RuntimeError(f"the story was to be killed at {change}, but ended with {ended}")

    def cut_power_at(
        self, change: int, story: Story, store: Path, reports: Path, left: Path
    ) -> None:
        """Runs the story until its n-th change; what was durable then is in the folder `left`."""
        ended, _ = self._run("cut", story, store, reports, change=change, left=left)
        if ended != POWER_CUT_EXIT:
            raise RuntimeError(f"the power was to fail at {change}, but the story ended: {ended}")

    def _run(self, way: str, story: Story, *paths: Path, **more: Any) -> tuple[int, int]:
        order = {
            "way": way,
            "story": [story.__module__, story.__name__],
            "paths": [str(path) for path in paths],
            **{name: str(value) for name, value in more.items()},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        counted = more.get("count_to")
        return ended, int(counted.read_text()) if counted is not None else 0


def _serve() -> None:
    """The process that forks: one order a line, one exit code a line."""
    importlib.import_module("pandas")  # pyarrow would, with the first dict of every story
    for line in sys.stdin:
        order = json.loads(line)
        story = getattr(importlib.import_module(order["story"][0]), order["story"][1])
        child = os.fork()
        if child == 0:
            try:
                _perform(order, story, *(Path(path) for path in order["paths"]))
            except BaseException:  # noqa: BLE001 - whatever it was, the parent is told
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _perform(order: dict[str, str], story: Story, store: Path, reports: Path) -> None:
    disk = _Disk(store)
    change, count = int(order.get("change", 0)), 0

    def after(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1
        if order["way"] == "cut" and name in ("fsync", "fdatasync"):
            disk.synced(arguments[0])
        if count != change:
            return
        if order["way"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        disk.restore(Path(order["left"]))
        os._exit(POWER_CUT_EXIT)

    _watch(after)
    story(store, reports)
    if order["way"] == "count":
        Path(order["count_to"]).write_text(str(count))


def _watch(after: Callable[[str, tuple[Any, ...]], None]) -> None:
    inside = [False]

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if not inside[0]:
                inside[0] = True
                try:
                    after(name, arguments)
                finally:
                    inside[0] = False
            return result

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name, getattr(os, name)))


class _Disk:
    """What would be found after a power cut: by inode, contents and folder entries as last synced.
    Whatever the store held at the start is taken as durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        """Open descriptors, so that no inode we know of is given to another file meanwhile."""
        for path in [root, *root.rglob("*")]:
            self._take(path)

    def synced(self, descriptor: int) -> None:
        self._take(Path(f"/proc/self/fd/{descriptor}").resolve())

    def restore(self, left: Path) -> None:
        self._restore(self._root.stat().st_ino, left)

    def _take(self, path: Path) -> None:
        status = path.stat()
        self._hold(status.st_ino, path)
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                here = {entry.name: entry.inode() for entry in entries}
            for name, inode in here.items():
                self._hold(inode, path / name)
            # A folder has one parent: found here, it is gone from where it was moved from.
            for elsewhere in self._entries.values():
                for name, inode in list(elsewhere.items()):
                    if inode in here.values() and inode in self._entries:
                        del elsewhere[name]
            self._entries[status.st_ino] = here
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def _hold(self, inode: int, path: Path) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._entries.get(inode, {}).items():
            if child in self._entries or (child not in self._contents and self._is_folder(child)):
                self._restore(child, target / name)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))

    def _is_folder(self, inode: int) -> bool:
        return any(path.stat().st_ino == inode and path.is_dir() for path in self._root.rglob("*"))


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


if __name__ == "__main__":
    _serve()
