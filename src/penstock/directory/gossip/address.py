"""Where a member's gossip is: an address in numbers and a port, the same for UDP and TCP.

No names travel between members. Whoever hears of an address looks nothing up, so that no message
can make a member ask a name server, or wait for one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS_BYTES_MAX: Final = 64
"""The longest text is that of an IPv6 address and a port: 47 characters."""


@dataclass(frozen=True, slots=True)
class Address:
    """As text `10.0.0.7:4100` or `[fd00::7]:4100`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_number(self) -> bool:
        """Whether the host is an address already, and not a name to look up."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @classmethod
    def parse(cls, text: str) -> Address:
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""  # an IPv6 address without brackets: where its port begins is a guess
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigurationError(
                f"{text!r} is not an address; write it like 10.0.0.7:4100 or [fd00::7]:4100"
            )
        return cls(host, int(port))


def seed_addresses(seeds: Sequence[str | tuple[str, int]]) -> tuple[Address, ...]:
    """Seeds as their user wrote them. They may be names."""
    if isinstance(seeds, str):
        raise ConfigurationError(f"seeds are a list of addresses, not one text: [{seeds!r}]")
    texts = (seed if isinstance(seed, str) else str(Address(*seed)) for seed in seeds)
    return tuple(dict.fromkeys(Address.parse(text) for text in texts))
