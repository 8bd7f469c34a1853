"""The cluster's key-value interface over gossip. docs/gossip.md has the bytes and the rules."""

from penstock.directory.gossip.keyvalue import MEMBERSHIP_KEY, GossipKeyValue
from penstock.directory.gossip.membership import (
    MembershipChange,
    MembershipEvent,
    MemberState,
    MemberStatus,
)
from penstock.directory.gossip.timing import GossipTiming

__all__ = [
    "GossipKeyValue",
    "GossipTiming",
    "MemberState",
    "MemberStatus",
    "MembershipEvent",
    "MembershipChange",
    "MEMBERSHIP_KEY",
]
