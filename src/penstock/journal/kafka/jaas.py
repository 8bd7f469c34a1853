"""SASL from Java's settings: the mechanism, and a line of JAAS with who we are.

org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b";
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.journal.kafka.errors import KafkaSettingError
from penstock.journal.kafka.keystores import authorities_of
from penstock.journal.kafka.security import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_MECHANISMS,
    ClientCredentials,
    Password,
    Secret,
    UnsecuredToken,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.security import Sasl

MODULES: Final = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    **dict.fromkeys(SCRAM_MECHANISMS, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_JAAS: Final = "kafka.sasl.jaas.config"
_LINE: Final = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)"
    r'(?P<options>(?:\s+[\w.]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s";]+))*)\s*;\s*',
    re.IGNORECASE,
)
_OPTION: Final = re.compile(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')
_EXTENSION: Final = "extension_"


def sasl_of(given: Mapping[str, str]) -> Sasl:
    """What `sasl.mechanism` and `sasl.jaas.config` say. Errors show nothing of the line."""
    mechanism = given.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in MODULES:
        raise KafkaSettingError(
            "kafka.sasl.mechanism",
            f"{mechanism} is not supported; use one of {', '.join(MODULES)}, or certificates "
            "(security.protocol SSL)",
        )
    options = _jaas_options(given, mechanism)
    if mechanism == OAUTHBEARER:
        return _bearer(given, options)
    user, password = options.get("username"), options.get("password")
    if user is None or password is None:
        raise KafkaSettingError(_JAAS, f'{mechanism} needs username="..." and password="..."')
    return Password(mechanism, user, Secret(password))


def _jaas_options(given: Mapping[str, str], mechanism: str) -> dict[str, str]:
    line = given.get("sasl.jaas.config")
    if line is None:
        if mechanism == OAUTHBEARER:  # since Kafka 4.1 all can be said by settings of their own
            return {}
        raise KafkaSettingError(
            _JAAS, f'it is missing: {MODULES[mechanism]} required username="..." password="...";'
        )
    match = _LINE.fullmatch(line)
    if match is None:
        raise KafkaSettingError(
            _JAAS, 'it is not of the form: MODULE required name="value" name="value"; (its text is '
            "not shown here)"
        )  # fmt: skip
    module = match["module"].removeprefix("kafkashaded.")
    if module != MODULES[mechanism]:
        raise KafkaSettingError(
            _JAAS, f"the module {module} does not go with sasl.mechanism {mechanism}, which needs "
            f"{MODULES[mechanism]}"
        )  # fmt: skip
    return {
        name: re.sub(r"\\(.)", r"\1", quoted) if plain == "" else plain
        for name, quoted, plain in _OPTION.findall(match["options"])
    }


def _bearer(given: Mapping[str, str], options: Mapping[str, str]) -> Sasl:
    subject = options.get("unsecuredLoginStringClaim_sub")
    if subject is not None:
        lifetime = options.get("unsecuredLoginLifetimeSeconds", "3600")
        if not lifetime.isdecimal():
            raise KafkaSettingError(_JAAS, "unsecuredLoginLifetimeSeconds is not a number")
        return UnsecuredToken(subject, int(lifetime))
    credentials = "sasl.oauthbearer.client.credentials.client"
    client_id = given.get(f"{credentials}.id", options.get("clientId"))
    secret = given.get(f"{credentials}.secret", options.get("clientSecret"))
    if client_id is None or secret is None:
        raise KafkaSettingError(_JAAS, 'OAUTHBEARER needs clientId="..." and clientSecret="..."')
    return ClientCredentials(
        token_url=_token_url(given),
        client_id=client_id,
        client_secret=Secret(secret),
        scope=given.get("sasl.oauthbearer.scope", options.get("scope")),
        extensions=tuple(
            (name.removeprefix(_EXTENSION), value)
            for name, value in options.items()
            if name.startswith(_EXTENSION)
        ),
        authorities=authorities_of(given),
    )


def _token_url(given: Mapping[str, str]) -> str:
    name = "sasl.oauthbearer.token.endpoint.url"
    url = given.get(name)
    if url is None:
        raise KafkaSettingError(f"kafka.{name}", "it is missing: where are tokens to be had?")
    if urlsplit(url).scheme not in ("http", "https"):
        raise KafkaSettingError(f"kafka.{name}", "it is not an address of http or https")
    return url
