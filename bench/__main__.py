"""`python -m bench NAME [--json]`: runs one benchmark, or all of them.

Every module of this package that has a `run` function is a benchmark of the module's name.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING

import bench
from bench.report import Line, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NOT_BENCHMARKS = frozenset(
    {
        "__main__",
        "barrier_members",
        "kafka_data",
        "report",
        "shuffle_data",
        "shuffle_peers",
        "spark_runs",
        "spark_sources",
        "transport_servers",
    }
)


def names() -> list[str]:
    modules = (module.name for module in pkgutil.iter_modules(bench.__path__))
    return sorted(name for name in modules if name not in _NOT_BENCHMARKS)


def load(name: str) -> Callable[[], Iterator[Line]]:
    run: Callable[[], Iterator[Line]] = importlib.import_module(f"bench.{name}").run
    return run


def main(arguments: list[str]) -> None:
    known = names()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures ours beside a peer's way to do the same work. More is better.",
    )
    parser.add_argument("name", metavar="NAME", help=f"all, or one of: {', '.join(known)}")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    if options.name != "all" and options.name not in known:
        parser.error(f"there is no benchmark {options.name!r}; say all or {', '.join(known)}")

    chosen = known if options.name == "all" else [options.name]
    lines = (line for name in chosen for line in load(name)())
    if options.json:
        for line in lines:
            print(line.as_json(), flush=True)
    else:
        print(table(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
