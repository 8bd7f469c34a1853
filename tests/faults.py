"""Ends a process at a chosen change to the disk: by SIGKILL, or as if the power had failed.

Every call that changes files is counted. `killed_at` dies after the n-th, with everything in the
page cache intact. `power_cut_at` leaves, in another folder, only what had been synced by then: a
file's contents as of its last fsync, and under the names that its folder had at its last fsync.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import stat
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

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["penstock.journal", "tests.faults"])


def report(path: Path, line: str) -> None:
    """A story tells what it was promised. Not through `os`, whose calls are counted."""
    with path.open("a") as file:
        file.write(f"{line}\n")


def count_changes(story: Story, store: Path, reports: Path) -> int:
    """Runs the story to its end, and counts its changes to the disk."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_count, args=(story, store, reports, sender))
    process.start()
    count = receiver.recv()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the story itself failed with {process.exitcode}")
    return int(count)


def killed_at(change: int, story: Story, store: Path, reports: Path) -> None:
    process = _context.Process(target=_kill, args=(change, story, store, reports))
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the story was to be killed at {change}, but ended {process.exitcode}")


def power_cut_at(change: int, story: Story, store: Path, reports: Path, left: Path) -> None:
    process = _context.Process(target=_cut_power, args=(change, story, store, reports, left))
    process.start()
    process.join()
    if process.exitcode != POWER_CUT_EXIT:
        raise RuntimeError(f"the power was to fail at {change}, but the story ended otherwise")


def _count(story: Story, store: Path, reports: Path, sender: Any) -> None:
    counted = [0]

    def after(_name: str, _arguments: tuple[Any, ...], _result: Any) -> None:
        counted[0] += 1

    _watch(after)
    story(store, reports)
    sender.send(counted[0])


def _kill(change: int, story: Story, store: Path, reports: Path) -> None:
    counted = [0]

    def after(_name: str, _arguments: tuple[Any, ...], _result: Any) -> None:
        counted[0] += 1
        if counted[0] == change:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(after)
    story(store, reports)


def _cut_power(change: int, story: Story, store: Path, reports: Path, left: Path) -> None:
    disk = _Disk(store)
    counted = [0]

    def after(name: str, arguments: tuple[Any, ...], _result: Any) -> None:
        if name in ("fsync", "fdatasync"):
            disk.synced(arguments[0])
        counted[0] += 1
        if counted[0] == change:
            disk.restore(left)
            os._exit(POWER_CUT_EXIT)

    _watch(after)
    story(store, reports)


def _watch(after: Callable[[str, tuple[Any, ...], Any], None]) -> None:
    inside = [False]

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if not inside[0]:
                inside[0] = True
                try:
                    after(name, arguments, result)
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
        for path in [root, *root.rglob("*")]:
            self._take(path)

    def synced(self, descriptor: int) -> None:
        self._take(Path(f"/proc/self/fd/{descriptor}").resolve())

    def restore(self, left: Path) -> None:
        self._restore(self._root.stat().st_ino, left)

    def _take(self, path: Path) -> None:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                self._entries[status.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, child in self._entries.get(inode, {}).items():
            if child in self._entries or child not in self._contents and self._is_folder(child):
                self._restore(child, target / name)
            else:
                (target / name).write_bytes(self._contents.get(child, b""))

    def _is_folder(self, inode: int) -> bool:
        return any(path.stat().st_ino == inode and path.is_dir() for path in self._root.rglob("*"))


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target
