"""Kafka's classes, loaded and verified once, for every Java that is started with them.

A node loads some six thousand classes. With an archive of them (Java's class data sharing) it maps
them into its memory instead.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Final

from penstock.spark.java import find_java_home
from penstock.testing.kafka.jars import KAFKA, cache_folder

if TYPE_CHECKING:
    from pathlib import Path

_QUIET: Final = "-Xlog:disable"
"""Java does not use an archive of another Java, or of other jars. Nobody needs to read of that."""


@functools.cache
def archive() -> Path:
    """Where the archive for the Java of this machine is, or would be."""
    java = find_java_home() / "bin" / "java"
    identity = f"{java.resolve()} {java.stat().st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return cache_folder() / KAFKA.name / f"classes-{digest[:16]}.jsa"


def archive_options() -> tuple[str, ...]:
    """Has a Java start from the archive, if there is one."""
    return (_QUIET, f"-XX:SharedArchiveFile={archive()}") if archive().exists() else ()


def writing_options(unfinished: Path) -> tuple[str, ...]:
    """Has a Java write an archive of what it has loaded, when it ends in order."""
    return _QUIET, f"-XX:ArchiveClassesAtExit={unfinished}"
