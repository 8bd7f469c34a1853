"""Where a member's receiver is, published through the cluster's key-value interface."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError, PeerUnavailableError

if TYPE_CHECKING:
    from penstock.directory.keyvalue import KeyValue

ADDRESS_KEY: Final = "transport:address"

_ADDRESS: Final = re.compile(
    r"(?P<carrier>[a-z]+)://(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>\d{1,5})"
)


class PeerUnknownError(PeerUnavailableError):
    """No member of this number has published an address. Start it, or correct the number."""


@dataclass(frozen=True, slots=True)
class Address:
    """A receiver's carrier, host and port; as text `tcp://10.0.0.7:4100`."""

    carrier: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.carrier}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        found = _ADDRESS.fullmatch(text)
        if found is None or int(found["port"]) > 65535:
            raise ConfigurationError(
                f"{text!r} is not an address; write it like tcp://10.0.0.7:4100"
            )
        return cls(found["carrier"], found["host"].strip("[]"), int(found["port"]))


def publish(keyvalue: KeyValue, address: Address) -> None:
    keyvalue.write(ADDRESS_KEY, str(address))


def look_up(keyvalue: KeyValue, member: int) -> Address:
    text = keyvalue.read(member, ADDRESS_KEY)
    if text is None:
        raise PeerUnknownError(
            f"member {member} has published no address: it is not started, or not of this cluster"
        )
    return Address.parse(text)
