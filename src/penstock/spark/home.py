"""A home for Spark in which its Python processes start three times as fast.

Spark puts the archive `python/lib/pyspark.zip` of its home first on the path of every Python
process that it starts, and a query has some eight kinds of them. Python keeps nothing of what it
compiles from an archive, so each of them compiles PySpark anew, although the very same files are
installed beside, compiled. In a home without the archive they are found there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_VARIABLE: Final = "SPARK_HOME"
_PARTS: Final = ("bin", "jars", "sbin")
"""What Spark's scripts look for. Not `python`, which has the archive."""


def use_spark_home() -> None:
    """Makes Spark, started from this process, use the installed one without its archive. Who names
    another Spark has that one."""
    if _VARIABLE in os.environ:
        return
    import pyspark  # noqa: PLC0415 - Penstock works without Spark

    try:
        home = _linked(Path(pyspark.__file__).parent, Path(sys.prefix) / "penstock-spark")
    except OSError:
        return  # nothing can be written there: slower, and as good
    os.environ[_VARIABLE] = str(home)


def _linked(installed: Path, home: Path) -> Path:
    """`home`, with links to the parts of the installed Spark."""
    home.mkdir(exist_ok=True)
    for part in _PARTS:
        link, target = home / part, installed / part
        if not link.is_symlink() or link.readlink() != target:
            # Renamed into place: another process may be starting Spark with it just now.
            unfinished = home / f"{part}.{os.getpid()}"
            unfinished.unlink(missing_ok=True)
            unfinished.symlink_to(target)
            unfinished.rename(link)
    return home
