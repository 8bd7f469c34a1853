"""One node of a cluster: broker and controller in one process, with its folder and its log."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError
from penstock.testing.kafka.jars import kafka_jars
from penstock.testing.kafka.machine import JavaMachine, NotInTimeError, wait_until
from penstock.testing.kafka.settings import properties_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FORMAT_SECONDS_MAX: Final = 120.0
START_SECONDS_MAX: Final = 180.0
"""A start takes 2 to 8 s. Only one that fails, or an overloaded machine, takes this long."""
STOP_SECONDS_MAX: Final = 60.0
"""A stop takes half a second; without its peers a broker tries for longer to hand over first."""
_STARTED: Final = b"Kafka Server started"
_TAIL_LINES: Final = 30
_TAIL_BYTES: Final = 64 << 10


class NodeFailedError(PenstockError):
    """A node could not be formatted, did not start, or ended by itself. Read the end of its log in
    the message: most often a setting is wrong."""

    def __init__(self, node: int, problem: str, log: str) -> None:
        super().__init__(node, problem, log)
        self.node, self.problem, self.log = node, problem, log

    def __str__(self) -> str:
        return f"Kafka's node {self.node} {self.problem}; its log ends so:\n{self.log}"


class KafkaNode:
    """A node whose data outlives its process: it may be killed and started any number of times."""

    def __init__(
        self,
        number: int,
        folder: Path,
        settings: Mapping[str, str],
        java_options: Sequence[str],
    ) -> None:
        self.number, self.folder = number, folder
        self.log = folder / "node.log"
        self._java_options = java_options
        self._machine: JavaMachine | None = None
        self._launched_bytes = 0
        folder.mkdir(parents=True)
        self._settings = folder / "node.properties"
        self._settings.write_text(properties_text(settings))
        self._settings.chmod(0o600)

    @property
    def is_running(self) -> bool:
        """Whether its process lives; a paused one does."""
        return self._machine is not None and self._machine.is_running

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def has_started(self) -> bool:
        """Whether it has come to serve clients since its last launch."""
        with self.log.open("rb") as file:
            file.seek(self._launched_bytes)
            return _STARTED in file.read()

    def format(self, *arguments: str) -> None:
        """Makes its storage, which a new node needs before its first start."""
        command = ["kafka.tools.StorageTool", "format", "-c", str(self._settings), *arguments]
        machine = self._java(*command)
        try:
            code = machine.wait(FORMAT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            problem = f"was not formatted within {FORMAT_SECONDS_MAX:.0f} s"
            raise NodeFailedError(self.number, problem, self.log_tail()) from None
        if code != 0:
            problem = f"could not be formatted (exit code {code})"
            raise NodeFailedError(self.number, problem, self.log_tail())

    def launch(self) -> None:
        """Starts its process, and does not wait for it."""
        if self.is_running:
            raise NodeFailedError(self.number, "runs already, and cannot be started", "")
        self._launched_bytes = self.log.stat().st_size if self.log.exists() else 0
        self._machine = self._java("kafka.Kafka", str(self._settings))

    def wait_started(self, seconds_max: float = START_SECONDS_MAX) -> None:
        """Waits until it serves clients. A node needs a majority of all nodes to come that far."""
        try:
            wait_until(self._has_started_or_ended, "a node to start", seconds_max)
        except NotInTimeError:
            problem = f"did not start within {seconds_max:.0f} s"
            raise NodeFailedError(self.number, problem, self.log_tail()) from None
        if not self.is_running:
            code = None if self._machine is None else self._machine.exit_code
            raise NodeFailedError(
                self.number, f"ended while it started (exit code {code})", self.log_tail()
            )

    def kill(self) -> None:
        """SIGKILL. What it had not handed to the system is lost."""
        self._running().kill()

    def pause(self) -> None:
        """SIGSTOP, until `resume`. Its peers take it for gone when its session is over."""
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def stop(self) -> None:
        """In order: it hands over what it leads first. Does nothing if it does not run."""
        if self._machine is not None and self._machine.is_running:
            self._machine.stop(STOP_SECONDS_MAX)

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"(its log cannot be read: {error})"
        return "\n".join(lines[-_TAIL_LINES:])

    def _has_started_or_ended(self) -> bool:
        return not self.is_running or self.has_started

    def _running(self) -> JavaMachine:
        if self._machine is None or not self._machine.is_running:
            raise NodeFailedError(self.number, "does not run", self.log_tail())
        return self._machine

    def _java(self, *command: str) -> JavaMachine:
        path = os.pathsep.join(map(str, kafka_jars()))
        return JavaMachine([*self._java_options, "-cp", path, *command], self.log, self.folder)
