"""The machine: Python, packages, Java, Spark, and how many files may be open."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.checkup.findings import error, note, ok, warning
from penstock.cli.shuffle_view import sized
from penstock.locks import is_locked
from penstock.spark.cluster.private import left_folders, sweep
from penstock.spark.java import JavaMissingError, find_java_home, java_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.checkup.findings import Finding

PYTHON_MIN: Final = (3, 11)
FILES_OPEN_MIN: Final = 1_024
"""A store keeps up to 200 journals open, with three files each."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)")


def check_machine(*, repair: bool) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield _java()
    yield _spark()
    yield _open_files()
    yield from _temporary(repair=repair)


def _python() -> Finding:
    said = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        return error("python", said, "use Python 3.11 or later")
    return ok("python", said)


def _packages() -> Iterator[Finding]:
    """Those that Penstock cannot do without."""
    found, missing = [f"penstock {importlib.metadata.version('penstock')}"], []
    for requirement in importlib.metadata.requires("penstock") or []:
        named = _REQUIREMENT.match(requirement)
        if named is None or "extra ==" in requirement:
            continue
        try:
            found.append(f"{named[1]} {importlib.metadata.version(named[1])}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(named[1])
    yield ok("packages", ", ".join(found))
    if missing:
        said = f"not installed: {', '.join(missing)}"
        yield error("packages", said, f"pip install {' '.join(missing)}")


def _java() -> Finding:
    try:
        home = find_java_home()
    except JavaMissingError as missing:
        return warning("java", f"no Java for Spark: {missing}", "needed only to read with Spark")
    return ok("java", f"Java {java_version(home / 'bin' / 'java')} at {home}")


def _spark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return warning("spark", "PySpark is not installed", "pip install 'penstock[spark]'")
    spec = importlib.util.find_spec("pyspark")
    where = "" if spec is None or spec.origin is None else f" at {Path(spec.origin).parent}"
    return ok("spark", f"PySpark {version}{where}")


def _open_files() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"a process may have {limit:,} files open"
    if limit < FILES_OPEN_MIN:
        return warning("open files", said, f"raise it: ulimit -n {FILES_OPEN_MIN}")
    return ok("open files", said)


def _temporary(*, repair: bool) -> Iterator[Finding]:
    """What killed clusters and shuffles left in the folder for temporary files."""
    temporary = Path(tempfile.gettempdir())
    left = left_folders(temporary)
    if left and repair:
        sweep(temporary)
        yield ok("temporary folders", f"removed {len(left)} of clusters that were killed")
    elif left:
        said = f"{len(left)} of clusters that were killed, in {temporary}"
        yield note("temporary folders", said, "penstock doctor --repair removes them")
    for folder in sorted(temporary.glob("penstock-shuffle-*")):
        lock = folder / "lock"
        if lock.is_file() and not is_locked(lock):
            used = sized(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
            said = f"{folder} is of a `penstock shuffle` that was killed ({used})"
            yield note("temporary folders", said, f"rm -r {folder}")
