"""A schema registry with Confluent's REST interface, as readers and writers need it.

An answer for an id never changes, and is kept. A registry that does not answer is asked again until
a deadline: a read that began may wait for it, and must not take its silence for an answer.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import ConfigurationError
from penstock.formats.errors import RefusedSchemaError, RegistryError, UnknownSchemaError

REQUEST_SECONDS: Final = 10.0
"""One try: a registry reads from memory, and answers in milliseconds."""
DEADLINE_SECONDS: Final = 60.0
"""All tries of one question: a restart of the registry fits, and Spark's own retries come after."""
PAUSE_SECONDS_MAX: Final = 5.0
UNKNOWN_SECONDS: Final = 30.0
"""An id that the registry does not know is not asked for again so soon: values that are garbage may
name a new one in every row."""
UNKNOWN_MAX: Final = 10_000
ANSWER_BYTES_MAX: Final = 16 << 20
REFERENCES_MAX: Final = 1_000
_NOT_NOW: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_COMPLAINT_BYTES_MAX: Final = 500
"""Of what a registry says when it refuses a schema."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where the registry is, and who asks. The password appears in no text of this class."""

    url: str
    user_info: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    deadline_seconds: float = DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry has it, with the schemas it refers to, by name, innermost first."""

    number: int
    kind: str
    text: str
    referenced: tuple[tuple[str, str], ...] = ()


class Registry:
    """Asks one registry. Not for several threads at once."""

    def __init__(self, options: RegistryOptions) -> None:
        parts = urllib.parse.urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                "schema.registry.url must be an address such as https://registry:8081"
            )
        user_info = options.user_info
        if parts.username is not None:
            user_info = user_info or urllib.parse.unquote(parts.netloc.rpartition("@")[0])
        host = parts.netloc.rpartition("@")[2]
        self.url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._authorization = base64.b64encode(user_info.encode()).decode() if user_info else ""
        self._tls = _tls(options) if parts.scheme == "https" else None
        self._deadline_seconds = options.deadline_seconds
        self._known: dict[int, RegisteredSchema] = {}
        self._unknown: dict[int, float] = {}

    def by_id(self, number: int) -> RegisteredSchema:
        """The schema of an id."""
        if number not in self._known:
            if self._unknown.get(number, 0.0) > time.monotonic():
                raise self._no_such_id(number)
            try:
                answer = self._ask(f"/schemas/ids/{number}", f"schema id {number}")
            except UnknownSchemaError:
                if len(self._unknown) >= UNKNOWN_MAX:
                    self._unknown.clear()
                self._unknown[number] = time.monotonic() + UNKNOWN_SECONDS
                raise
            self._known[number] = self._schema(answer, number)
        return self._known[number]

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject."""
        name = urllib.parse.quote(subject, safe="")
        answer = self._ask(f"/subjects/{name}/versions/latest", f"subject {subject!r}")
        return self._schema(answer, int(answer.get("id", 0)))

    def register(self, subject: str, kind: str, text: str) -> int:
        """The id of a schema, which becomes the newest of the subject unless it is there."""
        name = urllib.parse.quote(subject, safe="")
        body = {"schema": text, "schemaType": kind}
        answer = self._ask(f"/subjects/{name}/versions", f"subject {subject!r}", body)
        return int(answer["id"])

    def _schema(self, answer: dict[str, Any], number: int) -> RegisteredSchema:
        referenced: dict[str, str] = {}
        self._follow(answer, referenced)
        return RegisteredSchema(
            number, answer.get("schemaType") or "AVRO", answer["schema"], tuple(referenced.items())
        )

    def _follow(self, answer: dict[str, Any], referenced: dict[str, str]) -> None:
        for reference in answer.get("references") or ():
            name, subject = str(reference["name"]), str(reference["subject"])
            if name in referenced:
                continue
            if len(referenced) >= REFERENCES_MAX:
                raise UnknownSchemaError(
                    f"{subject}: over {REFERENCES_MAX} schemas are referred to"
                )
            path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
            other = self._ask(f"{path}/{int(reference['version'])}", f"subject {subject!r}")
            self._follow(other, referenced)
            referenced[name] = other["schema"]

    def _ask(self, path: str, what: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        """Asks until there is an answer, within the deadline. A `body` is to be registered."""
        deadline = time.monotonic() + self._deadline_seconds
        pause = 0.1
        while True:
            try:
                return self._answer(path, body)
            except urllib.error.HTTPError as error:
                if error.code not in _NOT_NOW:
                    if body is not None:
                        raise self._not_registered(error, what) from None
                    raise self._refused(error, what) from None
                reason = f"it answers {error.code}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            if time.monotonic() + pause > deadline:
                raise RegistryError(
                    f"cannot get {what} from the schema registry at {self.url}: {reason}. Start "
                    "the registry, or correct schema.registry.url"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _answer(self, path: str, body: dict[str, str] | None) -> dict[str, Any]:
        data, headers = None, {"Accept": _ACCEPT}
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), _CONTENT
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310
        if self._authorization:  # a redirection elsewhere does not take the password along
            request.add_unredirected_header("Authorization", f"Basic {self._authorization}")
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=REQUEST_SECONDS, context=self._tls
        ) as response:
            answer = json.loads(response.read(ANSWER_BYTES_MAX + 1)[:ANSWER_BYTES_MAX])
        wanted, kind = ("schema", str) if body is None else ("id", int)
        if not isinstance(answer, dict) or not isinstance(answer.get(wanted), kind):
            raise ValueError("its answer is no schema")
        return answer

    def _refused(self, error: urllib.error.HTTPError, what: str) -> UnknownSchemaError:
        if error.code in (401, 403):
            hint = "set schema.registry.basic.auth.user.info to USER:PASSWORD that may read it"
            return UnknownSchemaError(
                f"the schema registry at {self.url} does not show {what} to this client "
                f"({error.code}); {hint}"
            )
        return UnknownSchemaError(
            f"the schema registry at {self.url} has no {what} ({error.code}); register it, or "
            "correct schema.registry.url or subject"
        )

    def _not_registered(self, error: urllib.error.HTTPError, what: str) -> ConfigurationError:
        said = error.read(_COMPLAINT_BYTES_MAX).decode(errors="replace").strip()
        return RefusedSchemaError(
            f"the schema registry at {self.url} does not take the schema for {what} "
            f"({error.code}): {said or error.reason}. Give the columns a schema that is compatible "
            "with the subject's, or another subject; or a schema that is there, by schema.id"
        )

    def _no_such_id(self, number: int) -> UnknownSchemaError:
        return UnknownSchemaError(
            f"the schema registry at {self.url} has no schema id {number}; register it, or correct "
            "schema.registry.url"
        )


def _tls(options: RegistryOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.certificate_file:
            context.load_cert_chain(options.certificate_file, options.key_file or None)
    except OSError as error:
        raise ConfigurationError(
            f"cannot load the certificates of schema.registry.ssl.*: {error}"
        ) from None
    return context
