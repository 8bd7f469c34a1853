"""Topics of a cluster: made, grown, removed, and where their partitions are led."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.testing.kafka.machine import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient

ADMIN_SECONDS_MAX: Final = 60.0


class Topics:
    """By Kafka's own administrative requests. Every call waits until its change can be seen."""

    def __init__(self, client_settings: Mapping[str, Any]) -> None:
        self.admin = _admin(client_settings)
        """The client itself, for what is not here."""

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Makes a topic, by default on as many nodes as the cluster's settings say. Its name."""
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - only tests have it

        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=-1 if replication is None else replication,
            config=dict(settings or {}),
        )
        _done(self.admin.create_topics([topic], request_timeout=ADMIN_SECONDS_MAX))
        wait_until(
            lambda: len(self.leaders(name)) == partitions,
            f"the topic {name} to have leaders",
            ADMIN_SECONDS_MAX,
        )
        return name

    def grow(self, name: str, partitions: int) -> None:
        """Adds partitions, so that there are this many."""
        from confluent_kafka.cimpl import NewPartitions  # noqa: PLC0415 - only tests have it

        grown = NewPartitions(name, partitions)
        _done(self.admin.create_partitions([grown], request_timeout=ADMIN_SECONDS_MAX))
        wait_until(
            lambda: len(self.leaders(name)) == partitions,
            f"the topic {name} to have {partitions} partitions",
            ADMIN_SECONDS_MAX,
        )

    def delete(self, name: str) -> None:
        _done(self.admin.delete_topics([name], request_timeout=ADMIN_SECONDS_MAX))
        wait_until(
            lambda: not self.leaders(name), f"the topic {name} to be gone", ADMIN_SECONDS_MAX
        )

    def allow(self, principal: str, kind: str, name: str, *operations: str) -> None:
        """Lets a client do something, by an ACL: `allow("User:alice", "topic", "orders", "read")`.
        The kinds are topic, group, transactional_id and broker (named kafka-cluster)."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined] # noqa: PLC0415
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        bindings = [
            AclBinding(
                ResourceType[kind.upper()],
                name,
                ResourcePatternType.LITERAL,
                principal,
                "*",
                AclOperation[operation.upper()],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        _done(self.admin.create_acls(bindings, request_timeout=ADMIN_SECONDS_MAX))

    def leaders(self, name: str) -> dict[int, int]:
        """The node that leads each partition. Partitions without a leader are left out."""
        found = self.admin.list_topics(timeout=ADMIN_SECONDS_MAX).topics.get(name)
        if found is None:
            return {}
        return {
            number: each.leader for number, each in found.partitions.items() if each.leader >= 0
        }


def _done(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(ADMIN_SECONDS_MAX)


def _admin(client_settings: Mapping[str, Any]) -> AdminClient:
    try:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only tests have it
    except ImportError as error:
        raise ConfigurationError(
            "topics are made with the package confluent-kafka: pip install confluent-kafka"
        ) from error
    return AdminClient(dict(client_settings))
