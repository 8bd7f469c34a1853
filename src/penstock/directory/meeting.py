"""Where the members of a session meet: over gossip that begins at one of them, or at a PostgreSQL
server, for those who run one already. It travels to members, with its secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from penstock.directory.gossip import GossipKeyValue
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
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
    cluster: str
    """Whose slots are meant. The same one for all sessions of a feed: a process that is left over
    from an earlier session loses its slot to the member that comes after it."""

    def begin(self, member: int, host: str) -> PostgresKeyValue:
        """By the first of a session: nobody is to find what members of earlier ones have left."""
        opened = self.open(member, host)
        opened.take_over()
        return opened

    def open(self, member: int, host: str) -> PostgresKeyValue:  # noqa: ARG002 - the server is named
        try:
            from penstock.directory.postgres import PostgresKeyValue  # noqa: PLC0415 - not for all
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise ConfigurationError(
                "members that meet at a PostgreSQL server need psycopg; run: "
                "pip install 'penstock[postgres]'"
            ) from None
        return PostgresKeyValue(member, self.conninfo, self.cluster)

    def joined_by(self, opened: OpenMeeting) -> ServerMeeting:  # noqa: ARG002 - all know the server
        return self


Meeting: TypeAlias = GossipMeeting | ServerMeeting
OpenMeeting: TypeAlias = "GossipKeyValue | PostgresKeyValue"
