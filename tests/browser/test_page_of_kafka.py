"""The page of a feed that reads Kafka, in a real Chromium: topics, transactional ids, and what is
hidden by whom, in the words that a user of Kafka knows."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.browser.conftest import COMMAND, WAIT_SECONDS_MAX, _end
from tests.kafka.broker import unique_topic
from tests.kafka.conftest import kafka as kafka  # noqa: PLC0414 - a fixture of ours, too

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.testing.kafka import KafkaCluster
    from tests.browser.conftest import Page

pytestmark = pytest.mark.slow

PLAIN, HIDDEN = 400, 30


class Topic:
    """Rows of a plain producer, a transaction that is left open, a feed of both, and its page."""

    def __init__(self, kafka: KafkaCluster, name: str, stack: contextlib.ExitStack) -> None:
        self._stack, self._kafka = stack, kafka
        self.name = kafka.topics.create(name, 2)
        self.store = f"kafka://{kafka.bootstrap_servers}"
        self.sleeper = f"night shift {name[-12:]}"
        plain = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(PLAIN):
            plain.produce(name, b"a row", key=str(number).encode(), partition=number % 2)
        assert plain.flush(WAIT_SECONDS_MAX) == 0
        self._open = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": self.sleeper}
        )
        self._open.init_transactions(WAIT_SECONDS_MAX)
        self._open.begin_transaction()
        for number in range(HIDDEN):
            self._open.produce(name, b"hidden", partition=number % 2)
        assert self._open.flush(WAIT_SECONDS_MAX) == 0

    def delete(self) -> None:
        self._kafka.topics.delete(self.name)

    def feed(self, folder: Path) -> dict[str, Any]:
        """Starts the feed and its page; gives the page's address and token."""
        self._start(
            *("shuffle", "--collection", self.name, "--carrier", "local", "--members", "2"),
            *("--folder", str(folder / "topic"), "--follow", "--store", self.store),
        )
        process = self._start("web", str(folder), "--port", "0", "--json")
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        return told

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._stack.callback(_end, process)
        return process


@pytest.fixture
def topic(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[Topic]:
    with contextlib.ExitStack() as stack:
        yield Topic(kafka, unique_topic(request)[-60:].lstrip("_"), stack)


def test_topics_and_who_holds_what_open_are_named_as_in_kafka(
    page: Page, topic: Topic, tmp_path: Path
) -> None:
    web = topic.feed(tmp_path)
    page.driver.get(web["address"])
    row = f"#transactions tr[data-key^='{topic.sleeper}']"
    page.until(lambda: re.search(r"[1-9]\d* s", page.text(row)) is not None, "it, with its age")
    page.until_text(row, f"{HIDDEN}")
    for partition in (f"{topic.name}-0", f"{topic.name}-1"):
        page.until_text(row, partition)
        page.until_text("#journals tbody", partition)
    assert page.text("#journals-title") == "Partitions"
    assert page.text("#aborts .none") == "Kafka keeps no record of these."
    said = rf"Producer {topic.sleeper} has had a transaction open for .* in partitions .*: {HIDDEN}"
    page.until(lambda: re.search(said, page.text("#explanation")) is not None, said)
    page.picture("kafka", height=2400)
    metrics = _metrics(web)
    lag = f'penstock_journal_rows_behind{{feed="topic",journal="{topic.name}-0",binding="0"}} 0'
    assert lag in metrics
    assert (
        f'penstock_transaction_since_timestamp_seconds{{feed="topic",producer="{topic.sleeper}"'
        in metrics
    )

    page.find(f"{row} button").click()
    assert not page.find("#abort-yes").is_displayed()
    page.picture("kafka-abort")
    program, *arguments = shlex.split(page.text("#abort-command"))
    assert (program, arguments[:2]) == ("penstock", ["abort", topic.sleeper])
    subprocess.run([COMMAND, *arguments, "--yes"], check=True, capture_output=True)
    page.find("#abort-no").click()
    page.until(lambda: not page.text(row), "that it is over")
    assert page.complaints() == []

    topic.delete()
    page.until_text("#explanation", f"the cluster has no topic '{topic.name}'")
    page.until(lambda: page.text("#verdict-word") == "Down", "the verdict")
    page.picture("kafka-deleted")


def _metrics(web: dict[str, Any]) -> str:
    """Behind the page: the state is written twice a second."""
    asked = urllib.request.Request(
        f"{web['base']}/metrics", headers={"Authorization": f"Bearer {web['token']}"}
    )
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        with urllib.request.urlopen(asked) as answer:
            text: str = answer.read().decode()
        if "penstock_transaction_since" in text or time.monotonic() > deadline:
            return text
