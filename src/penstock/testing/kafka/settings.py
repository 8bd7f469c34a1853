"""What a node is told at its start: its roles, its listeners, and small sizes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLIENT: Final = "CLIENT"
"""The listener of clients that need no proof of who they are."""
INTERNAL: Final = "INTERNAL"
"""The listener by which brokers reach each other: replication, and markers of transactions."""
CONTROLLER: Final = "CONTROLLER"


@dataclass(frozen=True, slots=True)
class Listener:
    name: str
    address: str
    advertised: str
    """Where others are sent to: elsewhere if a proxy stands in between."""
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Voter:
    """A node of the quorum of controllers. Each of our nodes is one."""

    node: int
    address: str


SMALL: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # Tests write rows of any time: by default those of last week would be dropped meanwhile.
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # The cleaner allocates this at the start: 128 MB by default, more than all the rest.
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "log.cleaner.io.buffer.size": str(512 << 10),
}
"""For a broker that starts fast, and lives for a test. The caller's settings go before these."""


def replication(nodes: int) -> dict[str, str]:
    """Everything on as many nodes as there are, three at most; of three, one may be missing."""
    copies, needed = min(nodes, 3), 2 if nodes >= 3 else 1
    return {
        "default.replication.factor": str(copies),
        "min.insync.replicas": str(needed),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(needed),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(needed),
        # A killed node may not come back before its session is over, and a loaded one is not to be
        # taken for gone. Of a node by itself nobody takes the place.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "6000" if nodes > 1 else "3000",
    }


def node_settings(
    node: int,
    data: str,
    listeners: Sequence[Listener],
    voters: Sequence[Voter],
    given: Mapping[str, str],
) -> dict[str, str]:
    """All settings of a node. What is `given` wins."""
    return {
        **SMALL,
        **replication(len(voters)),
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{each.node}@{each.address}" for each in voters),
        "log.dirs": data,
        "listeners": ",".join(f"{each.name}://{each.address}" for each in listeners),
        "advertised.listeners": ",".join(
            f"{each.name}://{each.advertised}" for each in listeners if each.name != CONTROLLER
        ),
        "listener.security.protocol.map": ",".join(
            f"{each.name}:{each.protocol}" for each in listeners
        ),
        "inter.broker.listener.name": INTERNAL,
        "controller.listener.names": CONTROLLER,
        **given,
    }


def properties_text(settings: Mapping[str, str]) -> str:
    """As a file of Java properties, which reads a backslash and a line's end as something else."""
    lines = (f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
