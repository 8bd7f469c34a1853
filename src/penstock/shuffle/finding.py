"""Where a member's queue is now, for a reader that did not find it where it was.

A task of Spark's reads what was planned before it began. If members begin anew meanwhile, they may
be in other processes, or on other machines. Whoever has the Session knows; it begins the shuffle
anew if nobody did yet, and answers when that is done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyarrow import flight

from penstock.errors import PeerUnavailableError
from penstock.shuffle.control import SESSION
from penstock.shuffle.flights import TokenServer, connect, reader_material
from penstock.shuffle.outlet import Share
from penstock.shuffle.serving import Served
from penstock.transport.certificates import Material
from penstock.transport.security import ClusterSecurity, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FIND_SECONDS_MAX: Final = 180.0
"""Members begin anew, and perhaps their queues are built anew too."""
_SHARES: Final = "shares"


@dataclass(frozen=True, slots=True)
class Finder:
    """Whom to ask, and for which feed."""

    location: str
    material: Material = field(repr=False)
    """What the asker shows, and whom it trusts."""
    token: str = field(repr=False)
    feed: str


class FinderServer(TokenServer):
    """Where the Session is. From its making to `close`; it outlives sessions."""

    def __init__(self, host: str, shares: Callable[[str], Sequence[Share]]) -> None:
        """`shares` gives those of a feed, by any thread."""
        security = ClusterSecurity.create("penstock finder")
        token = Token.generate().secret
        super().__init__(security.member_security(SESSION), host, token)
        self._finder = Finder(self.location, reader_material(security), token, "")
        self._shares = shares

    def finder(self, feed: str) -> Finder:
        return replace(self._finder, feed=feed)

    def do_action(self, _: object, action: flight.Action) -> Iterator[bytes]:
        feed = self.admitted(action.body.to_pybytes())
        if action.type != _SHARES:
            raise flight.FlightServerError(f"there is no action {action.type!r} here")
        yield json.dumps([_said(share) for share in self._shares(feed.decode())]).encode()

    def close(self) -> None:
        self.shutdown()


def find_share(finder: Finder, member: int) -> Share:
    """The member's share, up to the newest epoch of now."""
    client = connect(finder.location, SESSION, finder.material)
    action = flight.Action(_SHARES, f"{finder.token}\n{finder.feed}".encode())
    try:
        with client:
            options = flight.FlightCallOptions(timeout=FIND_SECONDS_MAX)
            (result,) = client.do_action(action, options)
    except flight.FlightError as error:
        raise PeerUnavailableError(
            f"the driver does not say where the queue of member {member} is: {error}"
        ) from error
    for said in json.loads(result.body.to_pybytes()):
        if said["member"] == member:
            return _share(said, finder)
    raise PeerUnavailableError(f"feed {finder.feed} has no member {member} any more")


def _said(share: Share) -> dict[str, Any]:
    served = share.served
    return {
        "member": share.member,
        "folder": share.folder,
        "generation": share.generation,
        "lsn": share.lsn,
        "vnodes": share.vnodes,
        "served": served
        and {
            "machine": served.machine,
            "location": served.location,
            "certificate": served.material.certificate.decode(),
            "key": served.material.key.decode(),
            "authority": served.material.authority.decode(),
            "token": served.token,
        },
    }


def _share(said: dict[str, Any], finder: Finder) -> Share:
    """Whom to ask if it is not there either, the asker knows."""
    found = said["served"]
    served = None
    if found is not None:
        pem = (found[name].encode() for name in ("certificate", "key", "authority"))
        served = Served(
            said["member"],
            found["machine"],
            found["location"],
            Material(*pem),
            found["token"],
            finder,
        )
    generation, lsn, vnodes = (said[name] for name in ("generation", "lsn", "vnodes"))
    return Share(said["member"], said["folder"], generation, lsn, tuple(vnodes), served)
