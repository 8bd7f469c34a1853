"""A real Kafka of one node or several, for a test or a demonstration.

    with KafkaCluster() as kafka:
        kafka.topics.create("orders", partitions=4)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})

Its nodes end with this process, also if it is killed.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from penstock.errors import ConfigurationError
from penstock.testing.kafka.archive import archive_options
from penstock.testing.kafka.machine import BRIEF
from penstock.testing.kafka.node import START_SECONDS_MAX, KafkaNode
from penstock.testing.kafka.ports import ReservedPort
from penstock.testing.kafka.proxy import Proxy
from penstock.testing.kafka.security import (
    PROTOCOLS,
    Certificates,
    Users,
    client_security,
    secured_settings,
)
from penstock.testing.kafka.settings import (
    CLIENT,
    CONTROLLER,
    INTERNAL,
    Listener,
    Voter,
    node_settings,
)
from penstock.testing.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEAP: Final = ("-Xms64m", "-Xmx256m")
LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
NODES_MAX: Final = 9
"""More than any test needs, and than a machine of a developer bears."""


class KafkaCluster:
    """Nodes 1 to `nodes`, all of them brokers and controllers."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        proxied: bool = False,
        transaction_version: int = 2,
        users: Users | None = None,
        java_options: Sequence[str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`settings` of Kafka's go before ours. With `proxied`, brokers reach each other (and
        themselves, for markers) through `proxies`. Freeze one between the last message of a
        transaction and its commit: a first message needs that way as well. With `users`, there are
        listeners with TLS and SASL (security.py). `java_options` stand in place of ours, which are
        for a short life. `folder` is kept when the cluster is closed; without one, everything is
        in a temporary folder."""
        if not 1 <= nodes <= NODES_MAX:
            raise ConfigurationError(f"a cluster has 1 to {NODES_MAX} nodes, not {nodes}")
        if transaction_version not in (0, 1, 2):
            raise ConfigurationError(f"Kafka knows no transaction version {transaction_version}")
        self._given = dict(settings or {})
        self._transaction_version = transaction_version
        if java_options is None:
            java_options = (*HEAP, *BRIEF, *archive_options())
        self._java_options = (*LOGGING, *java_options)
        self._is_temporary = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self._users = users
        self._certificates = Certificates(self._folder / "tls") if users is not None else None
        numbers = range(1, nodes + 1)
        self._ports = {
            (node, name): ReservedPort()
            for node in numbers
            for name in (CLIENT, INTERNAL, CONTROLLER, *(PROTOCOLS if users is not None else ()))
        }
        self.proxies: dict[int, Proxy] = {}
        """By the node that stands behind each: empty without `proxied`."""
        if proxied:
            self.proxies = {node: Proxy(self._address(node, INTERNAL)) for node in numbers}
        self.nodes: dict[int, KafkaNode] = {node: self._node(node, numbers) for node in numbers}

    def __enter__(self) -> Self:
        try:
            self.format()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """Of the listener without security, by which every client is let in."""
        return self.addresses(CLIENT)

    @property
    def topics(self) -> Topics:
        return Topics({"bootstrap.servers": self.bootstrap_servers})

    def addresses(self, listener: str) -> str:
        """Where all nodes listen, as a client's `bootstrap.servers`."""
        return ",".join(self._address(node, listener) for node in self.nodes)

    def client_settings(
        self, listener: str, *, user: str | None = None, mechanism: str = "PLAIN"
    ) -> dict[str, str | bool]:
        """What a client based on librdkafka needs to come in by a secured listener."""
        if self._users is None or self._certificates is None:
            raise ConfigurationError("this cluster has no secured listeners: give it `users`")
        return {
            "bootstrap.servers": self.addresses(listener),
            **client_security(listener, self._users, self._certificates, user, mechanism),
        }

    def format(self) -> None:
        """Makes the storage of all nodes. Done once, before the first start."""
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = [
            *("--cluster-id", f"k{identity[1:]}"),  # not a hyphen, which would be an option
            *("--feature", f"transaction.version={self._transaction_version}"),
            *(() if self._users is None else self._users.format_arguments()),
        ]
        for node in self.nodes.values():
            node.format(*arguments)

    def start(self, *nodes: int) -> None:
        """Starts these nodes, or all, and waits until each serves clients."""
        chosen = [self.nodes[node] for node in nodes or self.nodes]
        for node in chosen:
            node.launch()
        for node in chosen:
            node.wait_started(START_SECONDS_MAX)

    def kill(self, node: int) -> None:
        """Ends a node by SIGKILL; `start(node)` brings it back with its data."""
        self.nodes[node].kill()

    def pause(self, node: int) -> None:
        """Stops a node by SIGSTOP, until `resume`."""
        self.nodes[node].pause()

    def resume(self, node: int) -> None:
        self.nodes[node].resume()

    def stop(self, *nodes: int) -> None:
        """Ends these nodes, or all, in order. Those that do not run are left alone."""
        for node in nodes or self.nodes:
            self.nodes[node].stop()

    def restart(self, node: int) -> None:
        """Ends a node in order if it runs, and starts it."""
        self.stop(node)
        self.start(node)

    def close(self) -> None:
        """Ends everything at once, and forgets the data unless the folder was named."""
        for node in self.nodes.values():
            if node.is_running:
                node.kill()
        for proxy in self.proxies.values():
            proxy.close()
        for port in self._ports.values():
            port.release()
        if self._is_temporary:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)

    def _address(self, node: int, listener: str) -> str:
        return self._ports[node, listener].address

    def _node(self, node: int, numbers: Sequence[int]) -> KafkaNode:
        folder = self._folder / f"node-{node}"
        secured: dict[str, str] = {}
        if self._users is not None and self._certificates is not None:
            secured = secured_settings(self._users, self._certificates, node)
        settings = node_settings(
            node,
            str(folder / "data"),
            self._listeners(node),
            [Voter(each, self._address(each, CONTROLLER)) for each in numbers],
            {**secured, **self._given},
        )
        return KafkaNode(node, folder, settings, self._java_options)

    def _listeners(self, node: int) -> list[Listener]:
        client, internal = self._address(node, CLIENT), self._address(node, INTERNAL)
        controller = self._address(node, CONTROLLER)
        proxy = self.proxies.get(node)
        return [
            Listener(CLIENT, client, client),
            Listener(INTERNAL, internal, internal if proxy is None else proxy.address),
            Listener(CONTROLLER, controller, controller),
            *self._secured_listeners(node),
        ]

    def _secured_listeners(self, node: int) -> list[Listener]:
        if self._users is None:
            return []
        addresses = ((name, self._address(node, name)) for name in PROTOCOLS)
        return [Listener(name, where, where, PROTOCOLS[name]) for name, where in addresses]
