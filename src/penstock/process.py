"""Which process is which, as far as the kernel tells: who holds a lock, and whether it lives.

A process number alone names nothing: numbers are used again, and another container counts its own.
With the moment at which the process started, the boot of the machine and the namespace of its
numbers it names one process for good. Where there is no /proc, nothing is known, and said so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
_COMMAND_CHARACTERS_MAX: Final = 120
_ENDED: Final = "ZX"
_STOPPED: Final = "Tt"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: int | None
    """In ticks of the machine's clock since it was booted."""
    boot: str | None
    namespace: str | None
    """In which the number counts: a container has its own."""

    @classmethod
    def own(cls) -> ProcessIdentity:
        pid = os.getpid()
        found = _status(pid)
        return cls(pid, None if found is None else found.started, _boot(), _namespace())

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ProcessIdentity:
        """Of `as_json`; of an older release, which noted the number alone, too."""
        pid, started = fields.get("pid"), fields.get("started")
        return cls(
            pid if isinstance(pid, int) else 0,
            started if isinstance(started, int) else None,
            fields.get("boot"),
            fields.get("namespace"),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "started": self.started,
            "boot": self.boot,
            "namespace": self.namespace,
        }

    @property
    def is_surely_gone(self) -> bool:
        """False where that is not known: it ran on another machine, or in another container."""
        here = self.boot == _boot() and self.namespace == _namespace()
        if self.pid <= 0 or self.started is None or self.boot is None or not here:
            return False
        try:
            # /proc may hide the processes of other users. A signal, even none, does not lie.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        found = _status(self.pid)
        return found is not None and (found.started != self.started or found.has_ended)


def is_stopped(pid: int) -> bool:
    """Whether a process was paused: by SIGSTOP, or in a debugger."""
    found = _status(pid)
    return found is not None and found.state in _STOPPED


def describe_process(pid: int) -> str:
    """For a person who has to find it: its number, what it runs, what it does."""
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        arguments = []
    command = " ".join(" ".join(each.decode(errors="replace").split()) for each in arguments)
    command = command.strip()
    if len(command) > _COMMAND_CHARACTERS_MAX:
        command = command[: _COMMAND_CHARACTERS_MAX - 3] + "..."
    said = f"process {pid}" + (f" ({command})" if command else "")
    found = _status(pid)
    if found is None or found.has_ended:
        return f"{said}, which is gone: a child of it has the lock"
    return f"{said}, which is stopped" if found.state in _STOPPED else said


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    started: int
    threads: int

    @property
    def has_ended(self) -> bool:
        """Nobody has heard of its end yet. A process whose first thread has ended looks the same
        until its last one does."""
        return self.state in _ENDED and self.threads <= 1


def _status(pid: int) -> _Status | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # behind the name, which may have spaces in it
    try:
        return _Status(fields[0], int(fields[19]), int(fields[17]))
    except (IndexError, ValueError):
        return None


def _boot() -> str | None:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None
