"""Who may see the page: whoever has the token that stands in the printed address.

The token comes in the address once; from then on it is in a cookie that no other site can send
along. Programs show it as a bearer. What changes something needs a page of this very address.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_BYTES: Final = 24
"""192 bits: nobody guesses it, and it still fits into a line of a terminal."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Access:
    token: str
    port: int
    hosts: frozenset[str]
    """By which names this server is reached, with the port; empty: by any. A page elsewhere whose
    name was pointed at this machine is refused by this."""
    is_secure: bool

    @property
    def cookie_name(self) -> str:
        """Cookies are shared by all ports of a machine, and there may be several of us."""
        return f"penstock-{self.port}"

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def shows_token(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
        """By cookie, by bearer, or in the address."""
        kind, _, bearer = headers.get("Authorization", "").partition(" ")
        given = [_cookie(headers.get("Cookie", ""), self.cookie_name), query.get("token", "")]
        if kind.lower() == "bearer":
            given.append(bearer.strip())
        return any([self.is_token(one) for one in given])  # noqa: C419 - all of them, in any case

    def set_cookie(self) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie_name}={self.token}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def is_our_host(self, headers: Mapping[str, str]) -> bool:
        return not self.hosts or headers.get("Host", "").lower() in self.hosts

    def may_change(self, headers: Mapping[str, str]) -> bool:
        """A browser says where a request comes from: from here, or it is not heard. Programs that
        show a bearer say nothing, and no page can make a browser do that elsewhere."""
        origin = headers.get("Origin")
        if origin is None:
            return headers.get("Authorization", "").lower().startswith("bearer ")
        scheme = "https" if self.is_secure else "http"
        return origin.lower() == f"{scheme}://{headers.get('Host', '').lower()}"


def _cookie(header: str, name: str) -> str:
    """Programs on other ports of the machine set cookies, too, of whatever form they like: the
    standard parser gives up at the first odd one."""
    for pair in header.split(";"):
        found, _, value = pair.partition("=")
        if found.strip() == name:
            return value.strip()
    return ""
