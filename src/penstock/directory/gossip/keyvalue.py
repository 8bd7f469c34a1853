"""The cluster's key-value interface over gossip: no server, only the members themselves."""

from __future__ import annotations

import _thread
import time
import weakref
from typing import TYPE_CHECKING, Final

from penstock.directory.gossip.address import seed_addresses
from penstock.directory.gossip.messages import ClusterKey
from penstock.directory.gossip.node import Node
from penstock.directory.gossip.timing import GossipTiming

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from penstock.directory.gossip.membership import MembershipEvent, MemberState
    from penstock.directory.keyvalue import Watch

MEMBERSHIP_KEY: Final = "gossip:membership"
"""Watches of this prefix are told when somebody joins, leaves, dies or comes back."""


class GossipKeyValue:
    """One member of a cluster. Safe for any number of threads; it runs one of its own.

    Values are authenticated, not encrypted: keep secrets out of them. Values of members that died
    or left stay readable until they are forgotten. Close it to leave: others then need not find out
    by silence.
    """

    def __init__(
        self,
        member: int,
        key: bytes,
        seeds: Sequence[str | tuple[str, int]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        generation: int | None = None,
        timing: GossipTiming | None = None,
    ) -> None:
        """Seeds are some other members' addresses: those of a few that are always there are enough,
        and one's own may be among them. They need not run yet.

        The generation tells this process from those before it of the same member, and must be
        greater than theirs. Without one it is the clock's microseconds; if the cluster knows a
        greater one already, because a clock is behind, it becomes greater than that. This is done
        once and only at the start: later a greater generation means that this process was replaced.
        """
        self._node = Node(
            member,
            ClusterKey(key),
            seeds=seed_addresses(seeds),
            host=host,
            port=port,
            generation=generation if generation is not None else time.time_ns() // 1000,
            timing=timing if timing is not None else GossipTiming(),
            may_rise=generation is None,
            membership_key=MEMBERSHIP_KEY,
        )
        # Dropped without being closed, it leaves all the same. The garbage collector may find it in
        # a thread that holds a lock, so that closing has a thread of its own, started the bare way.
        self._dropped = weakref.finalize(self, _thread.start_new_thread, self._node.close, ())
        self._dropped.atexit = False
        self._node.start()

    @property
    def member(self) -> int:
        return self._node.member

    @property
    def address(self) -> str:
        """As host:port. It serves others as a seed."""
        return str(self._node.address)

    @property
    def generation(self) -> int:
        return self._node.generation

    @property
    def fenced(self) -> bool:
        """Whether a newer process has taken this member's place. Then `write` raises
        FencedError, and what is read is old."""
        return self._node.fenced

    @property
    def messages_ignored(self) -> int:
        """Malformed, or not signed with the cluster's key."""
        return self._node.messages_ignored

    def write(self, key: str, value: str) -> None:
        """Sets a key of this member's own slot. It is on its way to others when this returns."""
        self._node.write(key, value)

    def read(self, member: int, key: str) -> str | None:
        return self._node.read(member, key)

    def scan(self, key: str) -> dict[int, str]:
        return self._node.scan(key)

    def watch(self, prefix: str = "") -> Watch:
        return self._node.watches.open(prefix)

    def check(self) -> None:
        """Raises DirectoryEndedError if it was closed, or its thread has ended."""
        self._node.check()

    def members(self) -> dict[int, MemberState]:
        """Everybody who is known, this member among them."""
        return self._node.members()

    def membership(self) -> Watch:
        """Tells from now on when somebody joins, leaves, dies or comes back."""
        return self._node.watches.open(MEMBERSHIP_KEY)

    def membership_events(self, since: int = 0) -> list[MembershipEvent]:
        """What happened after the event of that number, as far as it is kept."""
        return self._node.membership_events(since)

    def close(self) -> None:
        """Says farewell and ends, once somebody has got what was written last, or half a second
        later. Whoever waits at a watch is let go."""
        self._dropped.detach()
        self._node.close()

    def __enter__(self) -> GossipKeyValue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
