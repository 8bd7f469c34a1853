"""One run: everything is put together, lives through its faults, and has to come round after."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from penstock.shuffle.session.lost import RowsLostError
from tests.simulation.choices import Choices, Menu
from tests.simulation.stillness import Stillness
from tests.simulation.world import Violation, World
from tests.simulation_shuffle.cluster import Cluster, Crash, Parts
from tests.simulation_shuffle.liveness import held_of_gone, state_of, waiting_of
from tests.simulation_shuffle.oracle import commits_of
from tests.simulation_shuffle.setting import Setting, choose_setting, small
from tests.simulation_shuffle.writers import Writer
from tests.unit.journal.journal_files import fast_folder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.simulation.choices import Script

LENGTHS: Final = Menu((10, 1), (1, 3))
WRITING_SECONDS: Final = 2.1
"""Times the length of the run. In long ones there are crashes after much was consumed."""
_COLUMNS: Final = Menu((3, None), (1, 0.7), (1, 1.6))
STEP_SECONDS: Final = 0.1
LOOKS: Final = 10
"""So often what is to be delivered is counted, while nothing is delivered."""
QUIET_SECONDS_MAX: Final = 60.0
"""In which everything that was committed is delivered, once nothing befalls anybody."""


@dataclass(slots=True)
class Result:
    violation: str | None
    script: Script
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)


def run(
    seed: int = 0,
    script: Script | None = None,
    parts: Parts | None = None,
    *,
    tracing: bool = False,
) -> Result:
    """One run, by its seed, or by a script that another run has left."""
    return play(Choices(seed, script), choose_setting, _live, parts, tracing=tracing)


def play(
    choices: Choices,
    choose: Callable[[Choices], Setting],
    live: Callable[[World, Setting, Parts, Path | None], None],
    parts: Parts | None = None,
    *,
    tracing: bool = False,
) -> Result:
    world = World(choices, tracing=tracing)
    parts = parts or Parts()
    violation = None
    try:
        setting = choose(choices)
        with small(setting), patched(parts), _folder(setting) as folder:
            live(world, setting, parts, folder)
    except Violation as found:
        violation = str(found)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, it is the seed's
        violation = f"{type(error).__name__}: {error}"
    if violation is not None:
        world.tell("world", f"VIOLATION: {violation}")
    return Result(violation, choices.made, world.counts, world.trace or [])


def _live(world: World, setting: Setting, parts: Parts, folder: Path | None) -> None:
    cluster = Cluster(world, setting, parts, folder)
    length = world.choices.choose("length", LENGTHS)
    cluster.plan_crashes(length)
    writers = [
        Writer(world, setting.journals, f"w{number}", list(setting.places))
        for number in range(setting.writers)
    ]
    for name in setting.journals.collections:
        at = world.choices.choose(f"{name} gets a column", _COLUMNS)
        if at is not None:
            world.counts["columns added"] += 1
            world.post(at, lambda name=name: setting.journals.widen(name))  # type: ignore[misc]
    cluster.losses.plan()
    try:
        advance(cluster, WRITING_SECONDS * length)
        cluster.losses.stop()
        cluster.calm()
        for writer in writers:
            writer.calm()
        come_round(cluster)
    finally:
        for disk in cluster.disks.values():
            disk.close()


def advance(cluster: Cluster, until: float) -> None:
    """Lets time pass. A crash is where it goes on from."""
    while True:
        try:
            cluster.world.run(until)
        except Crash as crash:
            cluster.crash(str(crash))
        except RowsLostError as error:
            cluster.begin_anew(error)
        else:
            return


def come_round(cluster: Cluster, seconds_max: float = QUIET_SECONDS_MAX) -> None:
    """Until all that was committed is delivered, and no queue holds what nobody can commit."""
    world = cluster.world
    until = world.now + seconds_max
    seen, looks = -1, 0
    stillness = Stillness(world.now)
    while True:
        looks += 1
        still_since = stillness.look(world.now, state_of(cluster))
        if still_since is not None:
            raise Violation(
                f"nothing moves any more since {still_since:.1f} s: {waiting_of(cluster)}"
            )
        if cluster.consumer.documents == seen and looks % LOOKS:
            advance(cluster, world.now + STEP_SECONDS)
            continue
        seen = cluster.consumer.documents
        newest = commits_of(cluster.committed[-1].record.frontier) if cluster.committed else {}
        expected = cluster.oracle.count(newest)
        is_delivered = expected == cluster.consumer.documents and cluster.losses.are_over
        held = held_of_gone(cluster) if is_delivered else ()
        if is_delivered and not held:
            return
        if world.now >= until:
            raise Violation(
                f"{held[0]} is held for ever: its journal is gone"
                if held
                else f"delivered are {cluster.consumer.documents} documents, committed {expected}"
            )
        advance(cluster, world.now + STEP_SECONDS)


@contextlib.contextmanager
def patched(parts: Parts) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in parts.patches.items():
            stack.enter_context(patch(name, value))
        yield


@contextlib.contextmanager
def _folder(setting: Setting) -> Iterator[Path | None]:
    if not setting.is_real:
        yield None
        return
    with fast_folder() as folder:
        yield folder
