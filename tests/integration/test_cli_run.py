"""`penstock run`, as people run it: a process with a Spark of its own, in a terminal or without."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from penstock.journal import Collection, open_store
from penstock.journal.cut import take_cut
from penstock.journal.documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.journal import OpenStore

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("penstock"))
WAIT_SECONDS_MAX = 300.0
MARK = "PENSTOCK_TEST_MARK"

PIPELINE = '''
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
import penstock as ps

def doubled(batches):
    """Runs in a process of Spark's that cannot import this file."""
    for batch in batches:
        yield batch.set_column(1, "cents", pc.multiply(batch["cents"], FACTOR))

FACTOR = 2

@ps.pipeline
def shop(pipeline):
    orders = pipeline.stream("orders", key="customer").select("id", "cents", "customer")
    pipeline.write(orders.mapInArrow(doubled, orders.schema), "doubled")
    sums = pipeline.stream("doubled").groupBy("customer").agg(F.sum("cents").alias("cents"))
    pipeline.write(sums, "totals", mode="update")
'''


class Command:
    """A running command. Every process that comes of it has its mark in the environment."""

    def __init__(self, store: OpenStore, *arguments: str, terminal: bool = False) -> None:
        self._mark = f"{MARK}={uuid.uuid4()}"
        name, value = self._mark.split("=")
        self._said = b""
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self._process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={
                **os.environ,
                "PENSTOCK_STORE": store.url,
                "TERM": "xterm",
                "COLUMNS": "120",
                name: value,
            },
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as messages, contextlib.suppress(OSError):
            while data := messages.read(4096):  # a terminal whose other end is closed: OSError
                self._said += data

    @property
    def messages(self) -> str:
        return self._said.decode()

    def interrupt(self) -> None:
        """As Ctrl-C does it: the whole group of processes has the signal."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Waits for it, and for all that it started; gives its exit code and standard output."""
        out, _ = self._process.communicate(timeout=WAIT_SECONDS_MAX)
        eventually(lambda: not self.processes(), "the end of all processes")
        self._reader.join(WAIT_SECONDS_MAX)
        return self._process.returncode, out.decode()

    def kill(self) -> None:
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self._process.wait()

    def processes(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue  # it is over, or not ours
        return found


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.05)


class Commands(Protocol):
    def __call__(self, *arguments: str, terminal: bool = False) -> Command: ...


@pytest.fixture
def run(store: OpenStore, tmp_path: Path) -> Iterator[Commands]:
    """Runs a pipeline; at the end of the test nothing of it is left."""
    started: list[Command] = []

    def start(*arguments: str, terminal: bool = False) -> Command:
        file, *others = arguments
        made = Command(store, "run", str(tmp_path / file), *others, terminal=terminal)
        started.append(made)
        return made

    yield start
    for command in started:
        command.kill()


@pytest.fixture
def store(tmp_path: Path) -> OpenStore:
    made = open_store(tmp_path / "store", durability="buffered")
    columns = "id BIGINT NOT NULL, customer STRING, cents BIGINT"
    for name in ("orders", "doubled"):
        made.create(Collection.define(name, columns, "id"))
    made.create(Collection.define("totals", "customer STRING NOT NULL, cents BIGINT", "customer"))
    return made


def write(store: OpenStore, *ids: int) -> None:
    """Every order twice, as after an answer that got lost."""
    with store.producer() as producer:
        rows = [{"id": id_, "customer": f"c{id_ % 3}", "cents": id_} for id_ in ids]
        stamped = producer.stamp("orders", rows)
        producer.send(stamped)
        producer.send(stamped)


def documents(store: OpenStore, collection: str) -> list[dict[str, Any]]:
    """In the order in which they were written."""
    return [
        row
        for cut in take_cut(store, [journal.name for journal in store.journals(collection)])
        for found in read_documents(store, cut)
        for row in found.documents.to_pylist()
    ]


def check(store: OpenStore, *ids: int) -> None:
    found = Counter((row["id"], row["cents"]) for row in documents(store, "doubled"))
    assert found == Counter((id_, 2 * id_) for id_ in ids)
    totals = {row["customer"]: row["cents"] for row in documents(store, "totals")}
    expected: Counter[str] = Counter()
    for id_ in ids:
        expected[f"c{id_ % 3}"] += 2 * id_
    assert totals == expected


def test_once_runs_all_stages_and_the_next_run_goes_on(
    run: Commands, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    arguments = ["shop.py", "--once", "--json", "--members", "1", "--no-web"]
    write(store, *range(100))
    command = run(*arguments)
    code, out = command.end()
    assert code == 0, command.messages
    assert json.loads(out) == {
        "pipeline": "shop",
        "documents": {"doubled": 100, "totals": 100},
        "failure": None,
    }
    assert command.messages.splitlines()[0] == "starting Spark (local[2])"
    assert "the page is at" not in command.messages
    check(store, *range(100))
    assert {path.name for path in (tmp_path / "shop.checkpoints").iterdir()} == {
        "doubled",
        "totals",
    }
    write(store, *range(100, 130))
    command = run(*arguments)
    code, out = command.end()
    assert code == 0, command.messages
    assert json.loads(out)["documents"] == {"doubled": 30, "totals": 30}
    check(store, *range(130))


def test_in_a_terminal_queries_are_shown_until_ctrl_c(
    run: Commands, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PIPELINE)
    write(store, *range(50))
    command = run("shop.py", terminal=True)
    eventually(
        lambda: command.messages.count("Ctrl-C stops in order") > 0 and _shown(command) == "50 50",
        "both queries to have read everything",
    )
    check(store, *range(50))
    base, token = _page(command)
    eventually(
        lambda: _metrics(base, token).count("penstock_spark_batch{") == 2, "Spark's batches, too"
    )
    assert _metrics(base, token).count("penstock_feed_up{") == 2
    command.interrupt()
    code, out = command.end()
    assert code == 0, command.messages
    assert out.splitlines() == ["doubled: 50 documents", "totals: 50 documents"]
    with pytest.raises(OSError, match="refused"):
        _metrics(base, token)
    assert "Traceback" not in command.messages
    assert "Exception" not in command.messages


def _page(command: Command) -> tuple[str, str]:
    found = re.search(r"the page is at (http://127\.0\.0\.1:\d+)/\?token=(\S+)", command.messages)
    assert found, command.messages
    return found[1], found[2]


def _metrics(base: str, token: str) -> str:
    asked = urllib.request.Request(f"{base}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=WAIT_SECONDS_MAX) as answer:
        return str(answer.read().decode())


def _shown(command: Command) -> str:
    """The documents of both queries, as the terminal showed them last."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", command.messages)
    last = {
        found[1]: found[2]
        for found in re.finditer(r"(doubled|totals) +\d+ +(\d+) +[\d,]+ +[\d,]+ +\d+", text)
    }
    return " ".join(last.values())


def test_a_query_that_fails_is_told_in_plain_words(
    run: Commands, store: OpenStore, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "import penstock as ps\n"
        "from pyspark.sql import functions as F\n"
        "@ps.pipeline\n"
        "def broken(pipeline):\n"
        "    orders = pipeline.stream('orders').select('cents', F.expr('nullif(customer, \"c1\") "
        "AS customer'))\n"
        "    pipeline.write(orders, 'totals')\n"
    )
    write(store, 1)
    command = run("broken.py", "--once", "--json")
    code, out = command.end()
    assert code == 1
    words = (
        "query 'totals' failed: rows refused for collection 'totals': row 0, column 'customer': "
        "has no value"
    )
    assert json.loads(out)["failure"].startswith(words)
    last = command.messages.splitlines()[-1]
    assert last.startswith(f"error: {words}")
    assert "Traceback" not in command.messages
    assert documents(store, "totals") == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("pipeline.table('orders').count()", "the pipeline started no query; end it with"),
        ("pipeline.stream('missing')", "binding 0: collection: there is no collection 'missing'"),
    ],
    ids=["no query", "no collection"],
)
def test_a_pipeline_that_cannot_start_says_why(
    run: Commands, store: OpenStore, tmp_path: Path, lines: str, words: str
) -> None:
    (tmp_path / "idle.py").write_text(
        f"import penstock as ps\n@ps.pipeline\ndef idle(pipeline):\n    {lines}\n"
    )
    command = run("idle.py")
    code, _ = command.end()
    assert code == 1
    assert command.messages.splitlines()[-1].startswith(f"error: {words}")
    assert "Traceback" not in command.messages


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def shop(pipeline): ...\n", "has no functions with @ps.pipeline; there must be exactly"),
        (
            "import penstock as ps\n@ps.pipeline\ndef a(p): ...\n@ps.pipeline\ndef b(p): ...\n",
            "has 2 functions with @ps.pipeline (a, b)",
        ),
        ("def shop(pipeline)\n", "line 1: expected ':'"),
    ],
    ids=["none", "two", "syntax"],
)
def test_a_file_that_is_no_pipeline_is_refused_before_spark_starts(
    run: Commands, store: OpenStore, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "shop.py").write_text(text)
    command = run("shop.py")
    code, _ = command.end()
    assert code == 1
    assert words in command.messages
    assert "starting Spark" not in command.messages
