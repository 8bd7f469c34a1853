"""The installed command as a process of its own: pipes, Ctrl-C, standard input that stays open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

import pytest

from penstock.journal import Collection, open_store
from tests.conformance.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.journal import OpenStore

pytestmark = pytest.mark.slow

COMMAND = str(Path(sys.executable).with_name("penstock"))
WAIT_S = 120


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    with open_store(tmp_path / "store", durability="buffered") as opened:
        opened.create(
            Collection.define(
                "orders", "id BIGINT NOT NULL, text STRING, shop STRING", "id", "shop"
            )
        )
        yield opened


class _Process:
    """A running command, whose output is read line by line as it comes."""

    def __init__(self, store: OpenStore, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Its output must come because it is flushed, not because this machine asks for that.
            env={**os.environ, "PENSTOCK_STORE": store.url, "PYTHONUNBUFFERED": ""},
            text=True,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self._lines.put(line)

    def line(self, timeout_s: float = WAIT_S) -> str:
        return self._lines.get(timeout=timeout_s)

    def write(self, text: str) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Closes its input, waits for it; gives its exit code and standard error."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
            code = self.process.wait(timeout=WAIT_S)
            self._reader.join(timeout=WAIT_S)
            return code, self.process.stderr.read() if self.process.stderr is not None else ""
        finally:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def _running(store: OpenStore, *arguments: str) -> Iterator[_Process]:
    process = _Process(store, *arguments)
    try:
        yield process
    finally:
        process.process.kill()


def _ids(store: OpenStore) -> list[int]:
    done = subprocess.run(
        [COMMAND, "read", "orders", "--store", store.url],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    return sorted(json.loads(line)["id"] for line in done.stdout.splitlines())


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_is_no_error(store: OpenStore, unbuffered: str) -> None:
    with store.producer() as producer:
        # More than a pipe holds, so that the writer is still writing when the reader leaves.
        rows = [{"id": number, "text": "x" * 200} for number in range(20_000)]
        producer.append("orders", rows)
    shell = f"set -o pipefail; '{COMMAND}' read orders --store '{store.url}' | head -n 2"
    done = subprocess.run(
        ["bash", "-c", shell],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert len(done.stdout.splitlines()) == 2
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_shows_new_documents_until_it_is_interrupted(
    store: OpenStore, number: signal.Signals
) -> None:
    with store.producer() as producer, _running(store, "read", "orders", "--follow") as follower:
        producer.append("orders", [{"id": 1}])
        assert json.loads(follower.line())["id"] == 1
        transaction = producer.transaction()
        transaction.append("orders", [{"id": 2, "shop": "a"}, {"id": 3, "shop": "b"}])
        with pytest.raises(Empty):
            follower.line(timeout_s=1)
        transaction.commit()
        assert sorted(json.loads(follower.line())["id"] for _ in range(2)) == [2, 3]
        follower.process.send_signal(number)
        assert follower.end() == (0, "")


def test_what_was_followed_into_a_file_is_whole_when_it_is_ended(
    store: OpenStore, tmp_path: Path
) -> None:
    path = tmp_path / "orders.jsonl"
    arguments = ("read", "orders", "--follow", "--output", str(path))
    with store.producer() as producer, _running(store, *arguments) as follower:
        producer.append("orders", [{"id": 1}, {"id": 2}])
        partial = tmp_path / ".orders.jsonl.partial"
        eventually(lambda: partial.exists() and partial.stat().st_size > 0, "a flush", WAIT_S)
        follower.process.send_signal(signal.SIGTERM)
        assert follower.end() == (0, "")
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_it_is_ended(store: OpenStore, number: signal.Signals) -> None:
    with _running(store, "web", "--json") as command:
        assert json.loads(command.line())["address"]
        command.process.send_signal(number)
        assert command.end() == (0, "")


def test_following_ends_by_itself_at_its_limit(store: OpenStore) -> None:
    with store.producer() as producer:
        arguments = ("read", "orders", "--follow", "--limit", "2", "--format", "csv")
        with _running(store, *arguments) as follower:
            assert follower.line() == "id,text,shop\n"
            producer.append("orders", [{"id": 1}, {"id": 2}, {"id": 3}])
            assert follower.end() == (0, "")
            assert [follower.line(1), follower.line(1)] == ["1,,\n", "2,,\n"]


def test_without_a_transaction_standard_input_is_appended_as_it_comes(store: OpenStore) -> None:
    with (
        _running(store, "read", "orders", "--follow") as follower,
        _running(store, "append", "orders", "-", "--no-transaction") as appender,
    ):
        for number in (1, 2):
            appender.write(json.dumps({"id": number}) + "\n")
            assert json.loads(follower.line())["id"] == number
        code, said = appender.end()
        assert (code, said) == (0, "")
        assert appender.line() == "appended 2 documents to orders\n"


def test_an_append_that_is_killed_keeps_nothing_and_can_be_repeated(
    store: OpenStore, tmp_path: Path
) -> None:
    lines = "".join(json.dumps({"id": number, "shop": "a"}) + "\n" for number in range(3_000))
    with _running(store, "append", "orders", "-", "--batch-rows", "1000") as appender:
        appender.write(lines)
        deadline = time.monotonic() + WAIT_S
        while not _has_rows(store) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _has_rows(store)
        appender.process.kill()
        appender.end()
    assert _ids(store) == []
    (tmp_path / "all.jsonl").write_text(lines)
    command = [COMMAND, "append", "orders", str(tmp_path / "all.jsonl"), "--store", store.url]
    subprocess.run(command, check=True, timeout=WAIT_S, capture_output=True)
    assert _ids(store) == list(range(3_000))


def _has_rows(store: OpenStore) -> bool:
    """Whether the append's transaction has reached a journal: not visible, but noted."""
    return any(ledger.record().touches for ledger in store.ledgers())
