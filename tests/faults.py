"""Ends a process at a chosen change to the disk: by SIGKILL, or as if the power had failed.

Every call that changes files is counted. `kill_at` ends the process after the n-th, with everything
in the page cache intact. `record` lets it run to its end and notes all that it does to the disk:
what a power cut would have left is then made of the notes, see `tests/power_cuts.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.power_cuts import Recorder, Recording

CHANGES = (
    "open", "write", "pwrite", "pwritev", "fsync", "fdatasync", "rename", "replace", "link",
    "mkdir", "rmdir", "truncate", "ftruncate", "unlink",
)  # fmt: skip

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

    def record(self, story: Story, store: Path, reports: Path) -> Recording:
        """Runs the story to its end; gives what it did to the disk, step by step."""
        notes = reports.with_name(f"{reports.name}.recording")
        ended, _ = self._run("record", story, store, reports, notes=notes)
        if ended != 0:
            raise RuntimeError(f"the story itself failed with {ended}")
        recording: Recording = pickle.loads(notes.read_bytes())
        notes.unlink()
        return recording

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
    change, count = int(order.get("change", 0)), 0
    recorder = Recorder(store, reports) if order["way"] == "record" else None

    def before() -> None:
        if recorder is not None:
            recorder.before()

    def after(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += 1
        if recorder is not None:
            recorder.changed(name, arguments)
        if count == change:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(before, after)
    story(store, reports)
    if recorder is not None:
        Path(order["notes"]).write_bytes(pickle.dumps(recorder.recording()))
    if order["way"] == "count":
        Path(order["count_to"]).write_text(str(count))


def _watch(before: Callable[[], None], after: Callable[[str, tuple[Any, ...]], None]) -> None:
    inside = [False]

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if inside[0]:
                return real(*arguments, **named)
            inside[0] = True
            try:
                before()
                result = real(*arguments, **named)
                after(name, (result, *arguments) if name == "open" else arguments)
            finally:
                inside[0] = False
            return result

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name, getattr(os, name)))


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


if __name__ == "__main__":
    _serve()
