"""Where a member's queue is now, for a reader that did not find it where it was.

A task of Spark's reads what was planned before it began. If members begin anew meanwhile, they may
be in other processes, or on other machines. Whoever has the Session knows; it begins the shuffle
anew if nobody did yet, and answers when that is done.
"""

from __future__ import annotations

import hmac
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyarrow import flight

from penstock.errors import LocalProtocolError, PeerUnavailableError
from penstock.shuffle.control import SESSION
from penstock.transport.certificates import member_name
from penstock.transport.security import ClusterSecurity, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.shuffle.outlet import Share

FIND_SECONDS_MAX: Final = 180.0
"""Members begin anew, and perhaps their queues are built anew too."""
_SHARES: Final = "shares"


@dataclass(frozen=True, slots=True)
class Finder:
    """Whom to ask, and for which feed."""

    location: str
    authority: bytes = field(repr=False)
    token: str = field(repr=False)
    feed: str


class FinderServer(flight.FlightServerBase):
    """Where the Session is. From its making to `close`; it outlives sessions."""

    def __init__(self, host: str, shares: Callable[[str], Sequence[Share]]) -> None:
        """`shares` gives those of a feed, by any thread."""
        security = ClusterSecurity.create("penstock finder")
        credentials = security.member_security(SESSION).credentials
        if credentials is None or security.authority is None:
            raise LocalProtocolError("queues are found with TLS only")
        material = credentials.load()
        host = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc+tls://{host}:0",
            tls_certificates=[(material.certificate.decode(), material.key.decode())],
        )
        self._address = f"grpc+tls://{host}:{self.port}"
        self._authority = security.authority.certificate
        self._token = Token.generate().secret
        self._shares = shares

    def finder(self, feed: str) -> Finder:
        return Finder(self._address, self._authority, self._token, feed)

    def do_action(self, _: object, action: flight.Action) -> Iterator[bytes]:
        shown, _, feed = action.body.to_pybytes().partition(b"\n")
        if not hmac.compare_digest(shown, self._token.encode()) or action.type != _SHARES:
            raise flight.FlightUnauthenticatedError("this is not the read token of this cluster")
        yield pickle.dumps(list(self._shares(feed.decode())))

    def close(self) -> None:
        self.shutdown()


def find_share(finder: Finder, member: int) -> Share:
    """The member's share, up to the newest epoch of now."""
    client = flight.FlightClient(
        finder.location,
        tls_root_certs=finder.authority.decode(),
        override_hostname=member_name(SESSION),
    )
    action = flight.Action(_SHARES, f"{finder.token}\n{finder.feed}".encode())
    try:
        with client:
            options = flight.FlightCallOptions(timeout=FIND_SECONDS_MAX)
            (result,) = client.do_action(action, options)
    except flight.FlightError as error:
        raise PeerUnavailableError(
            f"the driver does not say where the queue of member {member} is: {error}"
        ) from error
    shares: list[Share] = pickle.loads(result.body.to_pybytes())  # noqa: S301 - it proved itself
    for share in shares:
        if share.member == member:
            return share
    raise PeerUnavailableError(f"feed {finder.feed} has no member {member} any more")
