"""A real schema registry for tests: Apicurio, in memory, with Confluent's interface.

Maven fetches it by name, once, into the user's cache folder (140 MB). Without Maven, Java or a way
to the artifact, an error says so, and tests that need it are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "2.6.13.Final"
"""The newest that runs on Java 17; versions from 3 on need 21."""
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 300.0
START_SECONDS = 120.0


class NoRegistryError(Exception):
    """Why there is no registry here."""


@contextlib.contextmanager
def apicurio() -> Iterator[str]:
    """The address of a running registry's Confluent interface."""
    java = shutil.which("java")
    if java is None:
        raise NoRegistryError("there is no Java on the path")
    [runner] = _installed().glob("*-runner.jar")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [java, "-Xmx300m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1",
               f"-Dquarkus.http.port={port}", "-jar", str(runner)]  # fmt: skip
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=START_SECONDS)


def _installed() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "penstock"
    folder = cache / f"apicurio-{VERSION}"
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise NoRegistryError(
            "Apicurio is not in the cache folder, and there is no Maven to get it"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        place = Path(name)
        try:
            done = subprocess.run(
                [maven, "-q", "-B", PLUGIN, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={place}"],
                capture_output=True,
                timeout=FETCH_SECONDS,
                check=False,
                cwd=place,
            )
        except subprocess.TimeoutExpired:
            raise NoRegistryError("Maven did not get Apicurio in time") from None
        archives = list(place.glob("*.tar.gz"))
        if done.returncode != 0 or not archives:
            raise NoRegistryError("Maven did not get Apicurio")
        unpacked = place / "unpacked"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(unpacked, filter="data")
        with contextlib.suppress(OSError):  # another process may have been faster
            unpacked.rename(folder)
    return folder


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoRegistryError("Apicurio did not start") from None
            time.sleep(0.2)
