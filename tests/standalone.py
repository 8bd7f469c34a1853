"""Spark's own cluster: a master, and two workers that pass for two machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from penstock.spark.java import find_java_home
from tests.java_archive import brief_java

ROOT = Path(__file__).parents[1]
START_SECONDS_MAX = 120.0
WORKERS = ("a", "b")
HERE = "127.0.0.1"
TWO_HOSTS = (HERE, "localhost")
"""For speculation: Spark doubles no task on the host that runs it already."""


class Standalone:
    def __init__(self, folder: Path, slots: int, hosts: tuple[str, str] = (HERE, HERE)) -> None:
        """So many slots for each worker. `hosts` are the workers' addresses, on this machine."""
        self._hosts = dict(zip(WORKERS, hosts, strict=True))
        self._folder = folder
        self._slots = slots
        port = _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._master = self._start("master", "master.Master", "--port", str(port))
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers(port):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no master; see {folder / 'master.log'}")
            time.sleep(0.05)
        for name in WORKERS:
            self.start_worker(name)

    @property
    def everybody(self) -> list[subprocess.Popen[bytes]]:
        return [*self.workers.values(), self._master]

    def start_worker(self, name: str) -> None:
        room = (
            "--cores",
            str(self._slots),
            "--memory",
            "1g",
            "--work-dir",
            str(self._folder / name),
        )
        self.workers[name] = self._start(name, "worker.Worker", *room, self.url)

    def kill_worker(self, name: str) -> None:
        self.workers[name].kill()
        self.workers[name].wait()

    def close(self) -> None:
        for process in self.everybody:
            process.send_signal(signal.SIGTERM)
        for process in self.everybody:
            process.wait(START_SECONDS_MAX)

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        host = self._hosts.get(name, HERE)
        here = ("--host", host, "--webui-port", "0")
        command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        with (self._folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [*map(str, command), *here, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "JAVA_HOME": str(find_java_home()),
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": host,
                    "SPARK_LOCAL_DIRS": str(self._folder / f"disk-{name}"),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": brief_java(),
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                    "PENSTOCK_MACHINE": name,
                },
            )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
