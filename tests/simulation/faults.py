"""What befalls processes and the network in a run, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.choices import Menu, evenly
from tests.simulation.world import Ambush

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.world import Process

FAULTS_MAX: Final = 7
FAULT_SECONDS: Final = 30.0
"""After this nothing befalls anybody, and the cluster has to come round."""

KINDS: Final = Menu((15, "nothing"), (40, "kill"), (20, "pause"), (20, "replace"), (10, "cut"))
WHENS: Final = evenly(*(second * 1.4 for second in range(21)))
"""In seconds from the start."""
WHOS: Final = Menu((3, -1), *((1.0, member) for member in range(5)))
"""-1: who leads by then."""
RESTARTS: Final = evenly(0.1, 1.0, 4.0, 10.0)
"""In seconds after a kill."""
PAUSES: Final = evenly(0.5, 2.0, 4.0, 7.0, 12.0)
"""In seconds: longer ones outlast the lease."""
REPLACED: Final = evenly(0.2, 1.0, 3.0)
"""In seconds after a process was paused, another one of the same member is started."""
CLOCKS: Final = evenly(False, True)
"""Whether the clock stands still in a pause, as that of a suspended machine does."""
NTH: Final = evenly(1, 2, 4)
CUTS: Final = evenly(1.0, 4.0, 9.0)

STEPS: Final = (
    "at once",
    "start: names answered",
    "follower: Capture",
    "follower: Prepare",
    "follower: Acknowledge",
    "follower: Acknowledge",
    "follower: GiveUp",
    "follower: Learn",
    "follower: AbortUnlessDecided",
    "follower: Finish",
    "follower: timer",
    "capture",
    "prepare 0",
    "prepare 1",
    "prepared",
    "finish 0",
    "finish 1",
    "finished",
    "learn: read answered",
    "abort: create",
    "abort: create answered",
    "abort: read",
    "lease: create",
    "lease: create answered",
    "lease: names",
    "lease: delete",
    "take over: names",
    "take over: read",
    "leader: Announce prepare",
    "leader: Announce aligned",
    "leader: Announce commit",
    "leader: Announce abort",
    "leader: Decide",
    "leader: Decide",
    "leader: timer",
    "decide: create",
    "decide: create answered",
    "decide: read answered",
    "prune: read",
    "prune: delete",
    "prune: delete answered",
)
STEP: Final = evenly(*STEPS)
EARLY_STEPS: Final = (
    "start: names answered",
    "follower: Learn",
    "follower: Learn",
    "learn: read",
    "learn: read answered",
    "follower: AbortUnlessDecided",
    "abort: create",
    "abort: create",
    "abort: create answered",
    "follower: Finish",
    "finish 0",
    "finish 1",
)
"""Of a process that was started again: it has to come to terms with what its last life left."""
EARLY_STEP: Final = Menu((len(EARLY_STEPS), ""), *((1, step) for step in EARLY_STEPS))
LIVES_MAX: Final = 16
"""In one run. After this nobody is killed at an early step."""


def plan(cluster: Cluster) -> None:
    for number in range(FAULTS_MAX):
        _plan_one(cluster, f"fault {number}")


def plan_early(cluster: Cluster, process: Process) -> None:
    """What befalls a process that was started again."""
    step = cluster.world.choices.choose(f"{process} early", EARLY_STEP)
    if not step or process.life > LIVES_MAX:
        return

    def strike() -> None:
        if not cluster.world.choices.quiet:
            cluster.world.counts[f"kill: {step}"] += 1
            process.kill()
            cluster.world.post(0.5, lambda: cluster.restart(process))

    process.ambush = Ambush(step, 1, strike)


def _plan_one(cluster: Cluster, stream: str) -> None:
    choose = cluster.world.choices.choose
    kind = choose(stream, KINDS)
    when, who, step, nth = (
        choose(stream, WHENS),
        choose(stream, WHOS),
        choose(stream, STEP),
        choose(stream, NTH),
    )
    if kind == "nothing":
        return
    if kind == "cut":
        group = frozenset(
            member for member in cluster.members if choose(stream, evenly(False, True))
        )
        seconds = choose(stream, CUTS)
        cluster.world.post(when, lambda: cluster.slots.cut(group, seconds))
        return
    restart, pause, replaced, still = (
        choose(stream, RESTARTS),
        choose(stream, PAUSES),
        choose(stream, REPLACED),
        choose(stream, CLOCKS),
    )

    def strike(process: Process) -> None:
        if cluster.world.choices.quiet or process.dead or process.paused:
            return
        cluster.world.counts[f"{kind}: {step}"] += 1
        world = cluster.world
        if kind == "kill":
            process.kill()
            world.post(restart, lambda: cluster.restart(process))
            return
        process.pause()
        world.post(pause, lambda: process.resume(clock_stood_still=still))
        if kind == "replace":
            world.post(replaced, lambda: cluster.restart(process))

    def set_up() -> None:
        process = cluster.process(who)
        if step == "at once":
            strike(process)
        else:
            process.ambush = Ambush(step, nth, lambda: strike(process))

    cluster.world.post(when, set_up)
