"""TLS between members: credentials that follow their files, and contexts for blocking sockets.

Only the cluster's own authority is trusted, only TLS 1.3 is spoken, and both ends show a
certificate. A set of files is checked as a whole before it is used, so a certificate that was
replaced while its key was not yet does no harm.
"""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from cryptography.hazmat.primitives import serialization

from penstock.errors import ConfigurationError, RemoteProtocolError
from penstock.transport.certificates import (
    BadCertificateError,
    Material,
    PartNames,
    check_material,
    member_name,
    member_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.transport.certificates import CheckedMaterial

FILE_BYTES_MAX: Final = 1024 * 1024
"""A bundle of every public authority is a quarter of this: a larger file is of another kind."""
SETTLED_NS: Final = 2_000_000_000
"""A file changed more recently is read again: a second change within one tick of the file system's
clock, which is up to two seconds long, would not show."""

_REHEARSAL_STEPS_MAX: Final = 8
"""A TLS 1.3 handshake takes three of these, with a long chain too."""

log = logging.getLogger("penstock.transport")
_Stamp: TypeAlias = tuple[int, int, int] | None
"""When a file was changed, its size and its inode; None if there is none."""


class PeerRefusedError(RemoteProtocolError):
    """A peer did not prove that it is the member it claims to be. See which process it is: its
    token or certificate is of another cluster or member, or it is none of ours."""

    def __init__(self, claimed_member: int | None, reason: str) -> None:
        super().__init__(claimed_member, reason)
        self.claimed_member, self.reason = claimed_member, reason

    def __str__(self) -> str:
        who = "a peer" if self.claimed_member is None else f"a peer as member {self.claimed_member}"
        return f"{who} was refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """An operator's own files, each as PEM. `{member}` in a path stands for the member's number."""

    certificate: Path
    key: Path
    authority: Path

    def of_member(self, member: int) -> TlsFiles:
        return TlsFiles(
            *(Path(str(path).replace("{member}", str(member))) for path in self._paths())
        )

    def names(self) -> PartNames:
        return PartNames(*(str(path) for path in self._paths()))

    def stamps(self) -> tuple[_Stamp, ...]:
        """What changes when a file does."""
        return tuple(_stamp(path) for path in self._paths())

    def read(self) -> Material:
        return Material(*(_read(path) for path in self._paths()))

    def _paths(self) -> tuple[Path, Path, Path]:
        return self.certificate, self.key, self.authority


@dataclass(frozen=True, slots=True, repr=False)
class Contexts:
    """A material and the contexts made of it."""

    material: Material
    server: ssl.SSLContext
    client: ssl.SSLContext


class Credentials:
    """What a member proves itself with: material made for it, or an operator's files, which are
    read again when they change. Safe to use from many threads. Pickles as its source: whoever gets
    it reads files from its own disk."""

    def __init__(self, source: Material | TlsFiles, member: int) -> None:
        self._source, self._member = source, member
        self._lock = threading.Lock()
        self._current: Contexts | None = None
        self._stamps: tuple[_Stamp, ...] | None = None
        """Of the files behind `_current`; None while they are to be read again."""
        self._warned: tuple[tuple[_Stamp, ...], str] | None = None

    def load(self) -> Material:
        """The material to use for the next connection. The first call raises ConfigurationError if
        it cannot be used; later ones keep to the last good one and log a warning instead."""
        return self.contexts().material

    def contexts(self) -> Contexts:
        """As `load`, with the contexts. They are made anew only when the material changed."""
        with self._lock:
            if isinstance(self._source, TlsFiles):
                return self._follow(self._source)
            if self._current is None:
                names = PartNames.of_member(self._member)
                self._current = _make_contexts(self._source, self._member, names)
            return self._current

    def _follow(self, files: TlsFiles) -> Contexts:
        stamps = files.stamps()  # before reading: what changes meanwhile shows next time
        if self._current is not None and stamps == self._stamps:
            return self._current
        try:
            material = files.read()
            if self._current is None or material != self._current.material:
                self._current = _make_contexts(material, self._member, files.names())
        except ConfigurationError as error:
            # The files are tried again at every call: a certificate of a machine whose clock is
            # ahead becomes valid without a change.
            self._stamps = None
            if self._current is None:
                raise
            self._warn_once(stamps, str(error))
            return self._current
        self._stamps = stamps if _settled(stamps) else None
        return self._current

    def _warn_once(self, stamps: tuple[_Stamp, ...], problem: str) -> None:
        if (stamps, problem) != self._warned:
            self._warned = stamps, problem
            log.warning(
                "member %d goes on with the certificate it has, because the new files cannot be "
                "used: %s",
                self._member,
                problem,
            )

    def __repr__(self) -> str:
        return f"Credentials({self._source!r}, member={self._member})"

    def __reduce__(self) -> tuple[type[Credentials], tuple[Material | TlsFiles, int]]:
        return Credentials, (self._source, self._member)


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """For the next connection accepted: ask anew for each, so that new files come into use."""
    return credentials.contexts().server


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """For the next connection opened. Wrap it with `server_hostname=member_name(member)`: that is
    how the server proves to be the member it is taken for."""
    return credentials.contexts().client


def peer_member(connection: ssl.SSLSocket | ssl.SSLObject) -> int:
    """The member that the other end's certificate proves, once hands are shaken."""
    certificate = connection.getpeercert(binary_form=True)
    if certificate is None:
        raise PeerRefusedError(None, "it showed no certificate, and TLS is on here")
    return certified_member(certificate)


def certified_member(certificate: bytes) -> int:
    """The member of a peer's certificate, as PEM or DER, that TLS has verified."""
    try:
        return member_of(certificate)
    except BadCertificateError as error:
        raise PeerRefusedError(None, f"its certificate {error.problem}") from error


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _settled(stamps: Iterable[_Stamp]) -> bool:
    now_ns = time.time_ns()
    return all(stamp is not None and now_ns - stamp[0] > SETTLED_NS for stamp in stamps)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadCertificateError(
            str(path),
            f"cannot be read ({error.strerror})",
            "put the file there, readable by the user that runs the member",
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise BadCertificateError(
            str(path), f"has more than {FILE_BYTES_MAX} bytes", "name a PEM file"
        )
    return data


def _make_contexts(material: Material, member: int, names: PartNames) -> Contexts:
    checked = check_material(material, member, names=names)
    try:
        server = _context(ssl.PROTOCOL_TLS_SERVER, checked)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, checked)
        # A resumed session would skip the certificate, and a ticket sent to a peer that has closed
        # already would fail a connection that was fine.
        server.num_tickets = 0
        _use_key((server, client), checked)
        _rehearse(server, client, member)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or str(error)
        raise BadCertificateError(
            names.certificate,
            f"is refused by TLS ({reason})",
            "make a certificate that is fit for TLS 1.3, client and server",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"no temporary file can be written, and TLS needs one for a moment ({error.strerror}); "
            "set TMPDIR to a folder that can be written"
        ) from error
    return Contexts(material, server, client)


def _context(protocol: ssl._SSLMethod, checked: CheckedMaterial) -> ssl.SSLContext:
    """A context that trusts the cluster's authority and nothing else: the system's are not loaded.
    A client's checks the name of the server too; that is the default of its kind."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # An operator may trust the intermediate authority of this cluster without its root, which
    # would let in whatever else the root has signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.hostname_checks_common_name = False
    # The end of a stream is told by a Close frame. Without this, an end of the connection below in
    # one direction would end the other direction as well.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    authorities = (each.public_bytes(serialization.Encoding.DER) for each in checked.authorities)
    context.load_verify_locations(cadata=b"".join(authorities))
    return context


def _use_key(contexts: Iterable[ssl.SSLContext], checked: CheckedMaterial) -> None:
    """Gives contexts the key. They take it from a file only; so it is written, locked with a
    password that nobody else learns, and deleted. Killed in between, it leaves nothing of use."""
    password = secrets.token_bytes(32).hex().encode()
    encryption = serialization.BestAvailableEncryption(password)
    parts = [each.public_bytes(serialization.Encoding.PEM) for each in checked.chain]
    parts.append(
        checked.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
    )
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "key.pem"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"".join(parts))
        for context in contexts:
            context.load_cert_chain(path, password=password)


def _rehearse(server: ssl.SSLContext, client: ssl.SSLContext, member: int) -> None:
    """Shakes hands with itself, in memory: what TLS would refuse between two members that use this
    authority, it refuses here."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=member_name(member)),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_REHEARSAL_STEPS_MAX):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
        if not ends:
            return
    raise ssl.SSLError("the handshake does not end")
