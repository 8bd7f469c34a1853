"""Who runs: all processes of one run carry its mark, a variable that children inherit."""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

MARK = "PENSTOCK_CHAOS"
SOURCE = "python_streaming_source_runner"
DRIVER_JAVA = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class Running:
    process: int
    command: str

    def __str__(self) -> str:
        return f"{self.process} ({self.command[:60]} ... {self.command[-60:]})"


def new_mark() -> str:
    """This process's own, and so that of all that it starts from now on."""
    mark = os.environ[MARK] = uuid.uuid4().hex
    return mark


def running(mark: str) -> list[Running]:
    """All of this run but this process."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(Running(int(folder.name), command.strip()))
        except OSError:
            continue  # it is over, or not ours
    return sorted((one for one in found if one.process != os.getpid()), key=lambda one: one.process)


def running_as(mark: str, what: str) -> list[int]:
    return [one.process for one in running(mark) if what in one.command]


def send(process: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, what)
