"""Java processes that end with the process that started them, whatever ends that one."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.process import is_stopped
from penstock.spark.java import find_java_home
from penstock.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BRIEF: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A test is over before Java's second compiler pays for itself."""
SIGNAL_SECONDS_MAX: Final = 30.0
"""For what the system does at once, on a machine that is busy."""
STEP_SECONDS: Final = 0.01
_DEATH_SIGNAL: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; it outlives the exec
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this one is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class NotInTimeError(PenstockError):
    """A condition did not come true before its deadline. Read what the message quotes of the log;
    on a machine that is overloaded, stop what else runs there."""

    def __init__(self, what: str, waited_seconds: float, log: str) -> None:
        super().__init__(what, waited_seconds, log)
        self.what, self.waited_seconds, self.log = what, waited_seconds, log

    def __str__(self) -> str:
        quoted = f"\n{self.log}" if self.log else ""
        return f"waited {self.waited_seconds:.1f} s in vain for {self.what}{quoted}"


def wait_until(
    condition: Callable[[], bool],
    what: str,
    seconds_max: float,
    log: Callable[[], str] = lambda: "",
) -> None:
    """NotInTimeError when time is up."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds_max:
            raise NotInTimeError(what, waited, log())
        time.sleep(STEP_SECONDS)


class JavaMachine:
    """One Java, with its output in a file."""

    def __init__(self, arguments: Sequence[str], output: Path, folder: Path) -> None:
        java = str(find_java_home() / "bin" / "java")
        # Of a Python without packages: it is there for a moment, to become Java.
        prefix = [sys.executable, "-I", "-S", "-c", _DEATH_SIGNAL, str(os.getpid())]
        self._process = (
            _parent().submit(_launch, [*prefix, java, *arguments], output, folder).result()
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Ends it by SIGKILL, also if it is paused."""
        self._process.kill()
        self._process.wait(SIGNAL_SECONDS_MAX)

    def pause(self) -> None:
        """Stops it by SIGSTOP: it keeps its memory, its connections and its ports."""
        self._process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.pid), "a paused process to stop", SIGNAL_SECONDS_MAX)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self, seconds_max: float) -> bool:
        """Asks it to end, and waits. False if it had to be killed."""
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def wait(self, seconds_max: float) -> int:
        """Its exit code. It is killed when time is up."""
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@functools.cache
def _parent() -> Pool:
    """Linux ends a child when the *thread* that started it ends: so this one starts them all."""
    return Pool(1, "parent of Javas")


def _launch(command: list[str], output: Path, folder: Path) -> subprocess.Popen[bytes]:
    with output.open("ab") as written:
        return subprocess.Popen(  # noqa: S603 - Java, with arguments of ours
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for the program that started it, which then ends it
        )
