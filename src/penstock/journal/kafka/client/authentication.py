"""Shows a broker who we are, by SASL. The mechanisms are kafka-python's."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from penstock.journal.kafka.client.failures import AskAgainError, described
from penstock.journal.kafka.client.tls import trusting
from penstock.journal.kafka.errors import KafkaAccessError, KafkaProtocolError
from penstock.journal.kafka.security import (
    OAUTHBEARER,
    ClientCredentials,
    Password,
    UnsecuredToken,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.kafka.deadline import Deadline
    from penstock.journal.kafka.security import Sasl

STEPS_MAX: Final = 8
"""SCRAM takes two, and a refused token two."""
TOKEN_BYTES_MAX: Final = 1 << 20
_TASK: Final = "log in"
_ADVICE: Final = (
    "Check user and password (kafka.sasl.jaas.config), and that the listener speaks this mechanism"
)


def authenticate(
    sasl: Sasl, broker: str, ask: Callable[[Any], Any], deadline: Deadline
) -> float | None:
    """Speaks SASL through `ask`. How many seconds the login is good for, if the broker limits it.
    Raises `KafkaAccessError` if it does not let us in."""
    name = sasl.mechanism if isinstance(sasl, Password) else OAUTHBEARER
    handshake = ask(SaslHandshakeRequest(mechanism=name))
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms) or "none"
        reason = f"broker {broker} does not offer {name}; it has: {offered}"
        raise KafkaAccessError(_TASK, reason, "Change kafka.sasl.mechanism")
    mechanism = get_sasl_mechanism(name)(**_arguments(sasl, deadline))
    for _ in range(STEPS_MAX):
        answer = ask(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()))
        if answer.error_code:
            reason = answer.error_message or described(answer.error_code)
            raise KafkaAccessError(_TASK, f"broker {broker} says: {reason}", _ADVICE)
        try:
            mechanism.receive(bytes(answer.auth_bytes or b""))
        except (ValueError, KeyError) as error:
            # A broker that does not know the password itself cannot answer SCRAM.
            raise KafkaProtocolError(broker, _TASK, f"{name} failed: {error}") from None
        if mechanism.is_done():
            return answer.session_lifetime_ms / 1000 if answer.session_lifetime_ms else None
    raise KafkaProtocolError(broker, _TASK, f"{name} did not end after {STEPS_MAX} steps")


def _arguments(sasl: Sasl, deadline: Deadline) -> dict[str, object]:
    if isinstance(sasl, Password):
        return {
            "sasl_mechanism": sasl.mechanism,
            "sasl_plain_username": sasl.user,
            "sasl_plain_password": sasl.password.text,
        }
    return {"sasl_oauth_token_provider": _Token(sasl, deadline)}


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # its library has no types
    """The token of one login. A provider is asked for each connection, of which there are few."""

    def __init__(self, sasl: ClientCredentials | UnsecuredToken, deadline: Deadline) -> None:
        self._sasl, self._deadline = sasl, deadline

    def token(self) -> str:
        if isinstance(self._sasl, UnsecuredToken):
            return _unsecured(self._sasl)
        return _provided(self._sasl, self._deadline)

    def extensions(self) -> dict[str, str]:
        return dict(self._sasl.extensions) if isinstance(self._sasl, ClientCredentials) else {}


def _unsecured(sasl: UnsecuredToken) -> str:
    now = int(time.time())
    claims = {"sub": sasl.subject, "iat": now, "exp": now + sasl.lifetime_seconds}
    parts = (json.dumps({"alg": "none"}), json.dumps(claims), "")
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def _provided(sasl: ClientCredentials, deadline: Deadline) -> str:
    """Asks the identity provider, as RFC 6749 has it for clients. No error shows what was sent."""
    form = {"grant_type": "client_credentials"}
    if sasl.scope is not None:
        form["scope"] = sasl.scope
    proof = base64.b64encode(f"{sasl.client_id}:{sasl.client_secret.text}".encode()).decode()
    request = Request(  # noqa: S310 - `jaas` has checked that it is http or https
        sasl.token_url,
        urlencode(form).encode(),
        {"Authorization": f"Basic {proof}", "Accept": "application/json"},
    )
    context = trusting(sasl.authorities) if sasl.token_url.startswith("https:") else None
    try:
        with urlopen(request, timeout=max(deadline.left(), 0.1), context=context) as answer:  # noqa: S310
            text = answer.read(TOKEN_BYTES_MAX)
    except HTTPError as error:
        if error.code >= 500:
            raise AskAgainError(sasl.token_url, f"no token: {error.code}") from None
        raise KafkaAccessError(
            "get a token", f"{sasl.token_url} answered {error.code} {error.reason}",
            "Check clientId, clientSecret and scope (kafka.sasl.jaas.config)",
        ) from None  # fmt: skip
    except (URLError, OSError) as error:
        raise AskAgainError(sasl.token_url, f"no token: {error}") from None
    try:
        return str(json.loads(text)["access_token"])
    except (ValueError, KeyError, TypeError):
        raise KafkaAccessError(
            "get a token", f"{sasl.token_url} answered without an access_token",
            "Check kafka.sasl.oauthbearer.token.endpoint.url",
        ) from None  # fmt: skip
