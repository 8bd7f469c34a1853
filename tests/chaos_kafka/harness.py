"""Chaos over Kafka's topics: three brokers, of which one at a time, or all, are broken."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.demo.kafka.transfers import PARTITIONS
from penstock.testing.kafka import KafkaCluster
from tests.chaos.harness import Chaos, Wrong
from tests.chaos.schedule import Fault
from tests.chaos_kafka.promises import PROMISES
from tests.chaos_kafka.totals import TOTALS, doubled_writes
from tests.chaos_kafka.world import EVENTS, QUERIES, TOPICS, await_calm, check_world
from tests.standalone import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.processes import Running
    from tests.chaos.schedule import Event

BROKERS = 3
LEADERS_BACK = {"leader.imbalance.check.interval.seconds": "3"}
"""A broker that is back leads again soon: there are leaders to move, and they do, all the time."""


class KafkaChaos(Chaos):
    package = "tests.chaos_kafka"
    queries = QUERIES

    def __init__(self, folder: Path, mark: str, seed: int, *, with_cluster: bool) -> None:
        self._kafka = KafkaCluster(BROKERS, settings=LEADERS_BACK, folder=folder / "kafka")
        self._broken: set[int] = set()
        """Brokers that are down or paused, or may be so still."""
        self._paused: set[int] = set()
        super().__init__(folder, mark, seed, with_cluster=with_cluster)

    def _open(self) -> None:
        self._kafka.format()
        self._kafka.start()
        self._topics = self._kafka.topics
        for name in (*TOPICS.names, TOTALS):
            self._topics.create(name, PARTITIONS)
        (self._folder / PROMISES).mkdir()
        (self._folder / EVENTS).mkdir()

    def _shut(self) -> None:
        self._kafka.close()

    @property
    def _where(self) -> str:
        return self._kafka.bootstrap_servers

    def _producer_arguments(self, place: int) -> tuple[str, ...]:
        """Who comes after a killed producer has its transactional id, and fences it."""
        return self._kafka.bootstrap_servers, f"clerk-{place}", next(self._seeds)

    def _settle(self) -> None:
        await_calm(self._where)

    def _judge(self) -> dict[str, int]:
        found = check_world(self._folder, self._where)
        for story in found.stories:
            self._say(f"no reader's fault: Kafka or its client has torn or lost {story}")
        doubled = doubled_writes(self._folder / EVENTS)
        if not doubled:  # tests/kafka/test_sink_speculation.py has that for certain
            self._say("Spark has doubled no task that writes totals")
        command = [sys.executable, "-m", f"{self.package}.oracle", str(self._folder), self._where]
        judged = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if judged.returncode:
            raise Wrong(f"the oracle over Kafka's raw logs: {judged.stdout}")
        self._say(judged.stdout)
        return {**found.counts, "writing tasks doubled": doubled}

    def _is_own(self, one: Running) -> bool:
        return str(self._folder / "kafka") in one.command

    def _inflict_own(self, event: Event) -> bool:
        """One broker after the other, once all that were broken serve again."""
        self._broken = {node for node in self._broken if not self._serves(node)}
        if self._broken:
            return False
        nodes = list(self._kafka.nodes)
        node = nodes[int(event.choice * len(nodes))]
        lasts = f"for {event.lasts_seconds:.1f} s"
        match event.fault:
            case Fault.BROKER:
                self._say(f"broker {node} is killed, {lasts}", event)
                self._kill(event, node)
            case Fault.BROKERS:
                self._say(f"all brokers are killed, {lasts}", event)
                self._kill(event, *nodes)
            case Fault.BROKER_STOP:
                self._say(f"broker {node} hands its partitions over and ends", event)
                self._kafka.stop(node)
                self._launch(node)
            case _:
                self._say(f"broker {node} pauses {lasts}", event)
                self._kafka.pause(node)
                self._paused.add(node)
                self._broken.add(node)
                self._later(event, lambda: self._resume(node), f"broker {node} goes on")
        return True

    def _resume(self, node: int) -> None:
        self._kafka.resume(node)
        self._paused.discard(node)

    def _kill(self, event: Event, *nodes: int) -> None:
        for node in nodes:
            self._kafka.kill(node)
        self._broken.update(nodes)
        self._later(event, lambda: self._launch(*nodes), f"brokers {nodes} start")

    def _launch(self, *nodes: int) -> None:
        """Nobody waits for them: what else goes wrong meanwhile is part of it."""
        for node in nodes:
            self._kafka.nodes[node].launch()
        self._broken.update(nodes)

    def _serves(self, node: int) -> bool:
        found = self._kafka.nodes[node]
        return found.is_running and found.has_started and node not in self._paused
