"""One run over a Kafka: its partitions and its transaction log in place of the journals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.shuffle.plan import make_plan
from tests.simulation.choices import Choices, Menu, evenly, seldom
from tests.simulation_shuffle.cluster import Cluster
from tests.simulation_shuffle.kafka_log import LOG_PARTITIONS, PlayedLog
from tests.simulation_shuffle.kafka_oracle import KafkaOracle
from tests.simulation_shuffle.kafka_producers import KafkaProducer
from tests.simulation_shuffle.kafka_topics import UNREAD, Topics
from tests.simulation_shuffle.run import LENGTHS, WRITING_SECONDS, advance, come_round, play
from tests.simulation_shuffle.setting import choose_setting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulation.choices import Script
    from tests.simulation.world import World
    from tests.simulation_shuffle.cluster import Parts
    from tests.simulation_shuffle.run import Result
    from tests.simulation_shuffle.setting import Setting

COMPACTION_SECONDS: Final = 0.3
_CLEANED: Final = evenly(False, True)
_COMPACTED: Final = Menu((2, 0.0), (1, 0.5), (1, 1.0))
"""How much of a partition of the log a cleaner goes over."""
_INTERRUPTED: Final = seldom(300)
_STEPS: Final = evenly(1, 3)
RETENTION: Final = Menu((2, "none"), (4, "consumed"))


def run(
    seed: int = 0,
    script: Script | None = None,
    parts: Parts | None = None,
    *,
    tracing: bool = False,
) -> Result:
    return play(Choices(seed, script), choose_kafka, _live, parts, tracing=tracing)


def choose_kafka(choices: Choices) -> Setting:
    setting = choose_setting(choices)
    topics = Topics(setting.journals.collections, PlayedLog())
    plan = make_plan(setting.feed, topics)  # type: ignore[arg-type] # all that it asks is there
    # The oracle compares clocks, which are no times here.
    bindings = tuple(replace(binding, not_before=0) for binding in plan.bindings)
    return replace(
        setting,
        journals=topics,
        plan=replace(plan, bindings=bindings),
        oracle=KafkaOracle,
        retention=RETENTION,
        # Deleted topics are left to the tests with a real broker.
        journals_go=False,
    )


def _live(world: World, setting: Setting, parts: Parts, folder: Path | None) -> None:
    topics = setting.journals
    assert isinstance(topics, Topics)
    cluster = Cluster(world, setting, parts, folder)
    length = world.choices.choose("length", LENGTHS)
    cluster.plan_crashes(length)
    places = sorted(setting.places, key=lambda name: name.startswith(UNREAD))
    producers = [
        KafkaProducer(world, topics, f"p{number}", places) for number in range(setting.writers)
    ]

    def interrupt() -> None:
        if world.choices.choose("interrupted", _INTERRUPTED):
            which = world.choices.choose("interrupts", evenly(*producers))
            for _ in range(world.choices.choose("steps", _STEPS)):
                which.act()

    def compact() -> None:
        for number in range(LOG_PARTITIONS):
            share = world.choices.choose("compacted", _COMPACTED)
            entries = int(share * topics.log.kept(number))
            world.counts["entries compacted"] += topics.log.compact(number, entries)
        world.post(COMPACTION_SECONDS, compact)

    topics.interrupt = interrupt
    if world.choices.choose("log is cleaned", _CLEANED):
        world.post(COMPACTION_SECONDS, compact)
    cluster.losses.plan()
    try:
        advance(cluster, WRITING_SECONDS * length)
        cluster.losses.stop()
        cluster.calm()
        for producer in producers:
            producer.calm()
        topics.interrupt = lambda: None
        come_round(cluster)
    finally:
        for disk in cluster.disks.values():
            disk.close()
