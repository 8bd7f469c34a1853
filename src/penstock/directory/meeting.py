"""Where the members of a session meet: over gossip that begins at one of them, or at a PostgreSQL
server, for those who run one already. It travels to members, with its secret."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from penstock.directory.gossip import GossipKeyValue
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.directory.postgres import PostgresKeyValue


@dataclass(frozen=True, slots=True)
class GossipMeeting:
    key: bytes = field(repr=False)
    """Of one session: who does not know it is not heard."""
    seeds: tuple[str, ...] = ()
    """Members that are there already."""

    def begin(self, member: int, host: str) -> GossipKeyValue:
        """By the first of a session."""
        return self.open(member, host)

    def open(self, member: int, host: str) -> GossipKeyValue:
        """Others reach this process by `host`."""
        return GossipKeyValue(member, self.key, list(self.seeds), host=host)

    def joined_by(self, opened: OpenMeeting) -> GossipMeeting:
        """For those who come later than this one."""
        if not isinstance(opened, GossipKeyValue):
            raise TypeError(f"not of this meeting: {opened!r}")
        return GossipMeeting(self.key, (*self.seeds, opened.address))


@dataclass(frozen=True, slots=True)
class ServerMeeting:
    conninfo: str = field(repr=False)
    cluster: str = field(default_factory=lambda: f"feed-{secrets.token_hex(8)}")
    """Whose slots are meant. Of one session, like the key of a gossip: neither another shuffle nor
    a process that is left over from an earlier session of this one finds them."""

    def begin(self, member: int, host: str) -> PostgresKeyValue:
        """By the first of a session."""
        return self.open(member, host)

    def open(self, member: int, host: str) -> PostgresKeyValue:  # noqa: ARG002 - the server is named
        opened: PostgresKeyValue = _postgres().PostgresKeyValue(member, self.conninfo, self.cluster)
        return opened

    def forget(self, cluster: str) -> None:
        """Removes what a session that is over has left at this server."""
        _postgres().forget_cluster(self.conninfo, cluster)

    def joined_by(self, opened: OpenMeeting) -> ServerMeeting:  # noqa: ARG002 - all know the server
        return self


def _postgres() -> ModuleType:
    try:
        from penstock.directory import postgres  # noqa: PLC0415 - not for all
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigurationError(
            "members that meet at a PostgreSQL server need psycopg; run: "
            "pip install 'penstock[postgres]'"
        ) from None
    return postgres


Meeting: TypeAlias = GossipMeeting | ServerMeeting
OpenMeeting: TypeAlias = "GossipKeyValue | PostgresKeyValue"
