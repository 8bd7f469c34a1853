"""The bytes of what members tell each other. docs/gossip.md has the layout; this is its only code.

A message is signed as a whole with the cluster's key, and nothing of it is looked at before its
signature was found right: what follows deals with members' mistakes, not with strangers.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

from penstock.directory.gossip.address import ADDRESS_BYTES_MAX, Address
from penstock.directory.gossip.state import MEMBERS_MAX, Delta, Entry, Mark
from penstock.errors import ConfigurationError, RemoteProtocolError

MAGIC: Final = b"PSGO"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sBBH8s")
"""Magic, version, kind, nothing, and the cluster's sign."""
MARK: Final = struct.Struct("<QQQQB")
DELTA: Final = struct.Struct("<QQQQIB")
ENTRY: Final = struct.Struct("<QHI")
COUNT: Final = struct.Struct("<H")
SIGNATURE_BYTES: Final = 32

DATAGRAM_BYTES_MAX: Final = 1400
"""Fits one packet on an Ethernet, tunnel headers included. Parts of a larger datagram would travel
in packets of their own, and all be lost with any one of them."""
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Over TCP. Checked before anything is allocated: a stranger's length must not ask for gigabytes.
It holds the largest value several times."""
KEY_BYTES_MAX: Final = 256
VALUE_BYTES_MAX: Final = 1024 * 1024
"""Every member holds all values of all members. What is larger belongs in a file or a journal, and
its name here."""
CLUSTER_KEY_BYTES_MIN: Final = 16
"""Whoever overhears a message can try keys until one fits it."""
U64_MAX: Final = 2**64 - 1

_LEFT: Final = 1
"""The one flag of a mark."""


class Kind(IntEnum):
    CALL = 1
    """Wants an answer in any case, with how far the other knows everybody."""
    NEWS = 2
    """Answered by a question if it shows that the other has more, else not at all."""
    QUESTION = 3
    """Answered by news. Never by another question: two members that wait for each other's large
    messages would ask each other without end."""


class StrangerError(RemoteProtocolError):
    """A message is not signed with this cluster's key. Nothing of it was used. Either its sender is
    of another cluster, or one of the two processes was given a wrong key."""


_KINDS: Final = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    sender: Mark
    address: str
    """Where the sender is. Answers go there and never to where the packet came from, so that a
    recorded message sends nothing to anybody else."""
    digest: tuple[Mark, ...] = ()
    """How far the sender knows others. It need not list all."""
    deltas: tuple[Delta, ...] = ()


class ClusterKey:
    """Signs messages and checks signatures."""

    __slots__ = ("_key", "sign_bytes")

    def __init__(self, key: bytes) -> None:
        if len(key) < CLUSTER_KEY_BYTES_MIN:
            raise ConfigurationError(
                f"a cluster's key has at least {CLUSTER_KEY_BYTES_MIN} bytes, this one has "
                f"{len(key)}; make one with secrets.token_bytes(32)"
            )
        # A key of its own: signatures made elsewhere with the cluster's key mean nothing here.
        self._key = hmac.digest(key, b"penstock gossip 1", hashlib.sha256)
        self.sign_bytes: Final = hmac.digest(key, b"penstock cluster 1", hashlib.sha256)[:8]
        """By this a message of another cluster is known at once. The key cannot be told from it."""

    def signature(self, data: bytes | memoryview) -> bytes:
        return hmac.digest(self._key, data, hashlib.sha256)


def message_bytes(address: str, marks: int) -> int:
    """Of a message with so many marks in its digest and no delta."""
    fixed = HEAD.size + MARK.size + 1 + len(address) + 2 * COUNT.size + SIGNATURE_BYTES
    return fixed + marks * MARK.size


def encode(message: Message, key: ClusterKey) -> bytes:
    parts = [
        HEAD.pack(MAGIC, VERSION, message.kind, 0, key.sign_bytes),
        _mark_bytes(message.sender),
        bytes((len(message.address),)),
        message.address.encode("ascii"),
        COUNT.pack(len(message.digest)),
        *map(_mark_bytes, message.digest),
        COUNT.pack(len(message.deltas)),
    ]
    for delta in message.deltas:
        parts.append(
            DELTA.pack(
                delta.member,
                delta.generation,
                delta.after,
                delta.upto,
                len(delta.entries),
                len(delta.address),
            )
        )
        parts.append(delta.address.encode("ascii"))
        for entry in delta.entries:
            name, value = entry.key.encode(), entry.value.encode()
            parts += (ENTRY.pack(entry.version, len(name), len(value)), name, value)
    data = b"".join(parts)
    return data + key.signature(data)


def check_head(data: bytes | memoryview, key: ClusterKey) -> None:
    """Looks at a message's first bytes alone: a stranger's need not be read on."""
    if len(data) < HEAD.size:
        raise RemoteProtocolError(f"a message of {len(data)} bytes has no head")
    magic, version, kind, nothing, sign = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise RemoteProtocolError(f"no gossip message begins with {magic!r}")
    if version != VERSION:
        raise RemoteProtocolError(
            f"the message has format version {version}, this process knows {VERSION}: run the same "
            "version of Penstock everywhere"
        )
    if sign != key.sign_bytes:
        raise StrangerError(
            "the message is of another cluster, or its sender was given a wrong cluster key"
        )
    if kind not in _KINDS or nothing:
        raise RemoteProtocolError(f"a message of kind {kind} cannot be")


def decode(data: bytes | memoryview, key: ClusterKey) -> Message:
    """Checks a message and reads it."""
    check_head(data, key)
    if len(data) < message_bytes("", 0):
        raise RemoteProtocolError(f"the message ends after {len(data)} bytes")
    view = memoryview(data)
    body, signature = view[:-SIGNATURE_BYTES], view[-SIGNATURE_BYTES:]
    if not hmac.compare_digest(key.signature(body), signature):
        raise StrangerError("the message's signature is wrong: it was altered, or made up")
    reader = _Reader(body)
    _, _, kind, _, _ = reader.unpack(HEAD)
    sender = _read_mark(reader)
    address = _read_address(reader, reader.take(1)[0])
    if not address:
        raise RemoteProtocolError("the message's sender does not say where it is")
    digest = tuple(_read_mark(reader) for _ in range(reader.unpack(COUNT)[0]))
    deltas = tuple(_read_delta(reader) for _ in range(reader.unpack(COUNT)[0]))
    reader.end()
    return Message(Kind(kind), sender, address, digest, deltas)


def _mark_bytes(mark: Mark) -> bytes:
    flags = _LEFT if mark.left else 0
    return MARK.pack(mark.member, mark.generation, mark.heartbeat, mark.version, flags)


def _read_mark(reader: _Reader) -> Mark:
    member, generation, heartbeat, version, flags = reader.unpack(MARK)
    if flags & ~_LEFT:
        raise RemoteProtocolError(f"a mark of member {member} has unknown flags: {flags}")
    return Mark(member, generation, heartbeat, version, flags == _LEFT)


def _read_address(reader: _Reader, length: int) -> str:
    """An address in numbers, or nothing where it is not known."""
    if length > ADDRESS_BYTES_MAX:
        raise RemoteProtocolError(f"an address of {length} bytes cannot be")
    text = reader.text(length)
    if text and not _is_in_numbers(text):
        raise RemoteProtocolError(f"{text!r} is not an address in numbers")
    return text


@lru_cache(MEMBERS_MAX)
def _is_in_numbers(address: str) -> bool:
    """Remembered, since every message has the same few, and to find out takes as long as all the
    rest of it. They come from members: strangers' messages are not read so far."""
    try:
        return Address.parse(address).is_number
    except ConfigurationError:
        return False


def _read_delta(reader: _Reader) -> Delta:
    member, generation, after, upto, count, address_bytes = reader.unpack(DELTA)
    address = _read_address(reader, address_bytes)
    entries = []
    last = after
    for _ in range(count):
        entry = _read_entry(reader)
        if entry.version <= last:
            raise RemoteProtocolError(f"versions of member {member} do not ascend after {last}")
        last = entry.version
        entries.append(entry)
    if not after < upto or last > upto:
        raise RemoteProtocolError(
            f"a delta of member {member} from {after} to {upto} with version {last} cannot be"
        )
    return Delta(member, generation, address, after, upto, tuple(entries))


def _read_entry(reader: _Reader) -> Entry:
    version, key_bytes, value_bytes = reader.unpack(ENTRY)
    if key_bytes > KEY_BYTES_MAX or value_bytes > VALUE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a key of {key_bytes} bytes with a value of {value_bytes} bytes cannot be"
        )
    key, value = reader.text(key_bytes), reader.text(value_bytes)
    return Entry(key, value, version, ENTRY.size + key_bytes + value_bytes)


class _Reader:
    """Takes bytes from the front, and says so if there are not enough."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> memoryview:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise RemoteProtocolError(
                f"the message ends within a part: {len(taken)} of {count} bytes are there"
            )
        self._at += count
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def text(self, length: int) -> str:
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a text is not UTF-8: {error}") from error

    def end(self) -> None:
        if self._at != len(self._data):
            raise RemoteProtocolError(
                f"{len(self._data) - self._at} bytes follow the end of the message"
            )
