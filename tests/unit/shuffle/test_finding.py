"""Who asks where a queue is now is told, if it has the token."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.errors import ConfigurationError, PeerUnavailableError
from penstock.shuffle.finding import FinderServer, find_share
from penstock.shuffle.outlet import Share
from penstock.shuffle.serving import Served
from penstock.transport.certificates import Material

SHARES = [Share(member, f"/queues/member-{member}", 5, 7, (member,)) for member in (1, 2)]
MATERIAL = Material(b"a certificate", b"a key", b"an authority")
SERVED = Share(4, "/queues/member-4", 5, 7, (4,), Served(4, "host/boot", "there", MATERIAL, "s"))


def _shares(feed: str) -> list[Share]:
    if feed != "orders":
        raise ConfigurationError(f"there is no feed {feed}")
    return [*SHARES, SERVED]


def test_a_share_is_found_by_its_member() -> None:
    server = FinderServer("127.0.0.1", _shares)
    finder = server.finder("orders")
    assert find_share(finder, 2) == SHARES[1]
    served = find_share(finder, 4).served
    assert served is not None
    assert SERVED.served is not None
    assert served == dataclasses.replace(SERVED.served, finder=finder)
    assert finder.token not in repr(finder)
    with pytest.raises(PeerUnavailableError, match="no member 3"):
        find_share(finder, 3)
    with pytest.raises(PeerUnavailableError, match="no feed payments"):
        find_share(server.finder("payments"), 1)
    with pytest.raises(PeerUnavailableError, match="token"):
        find_share(dataclasses.replace(finder, token="another"), 1)
    other = FinderServer("127.0.0.1", _shares)
    with pytest.raises(PeerUnavailableError):
        find_share(dataclasses.replace(finder, material=other.finder("orders").material), 1)
    server.close()
    other.close()
    with pytest.raises(PeerUnavailableError):
        find_share(finder, 1)
