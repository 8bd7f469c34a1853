"""The bytes of messages: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.directory.gossip.messages import (
    DATAGRAM_BYTES_MAX,
    HEAD,
    KEY_BYTES_MAX,
    MARK,
    MESSAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
    ClusterKey,
    Kind,
    Message,
    StrangerError,
    check_head,
    decode,
    encode,
    message_bytes,
)
from penstock.directory.gossip.state import DELTA_OVERHEAD_BYTES, Delta, Entry, Mark
from penstock.errors import ConfigurationError, RemoteProtocolError
from tests.unit.directory.gossip.made_messages import EXAMPLE, KEY, OTHER_KEY, messages

SECRET = b"the key of the tests' own cluster"


def signed(body: bytes) -> bytes:
    """What only a holder of the key can make, though it be nonsense."""
    return body + KEY.signature(body)


def head(kind: int = 2, version: int = 1, nothing: int = 0) -> bytes:
    return struct.pack("<4sBBH8s", b"PSGO", version, kind, nothing, KEY.sign_bytes)


def mark(flags: int = 0) -> bytes:
    return struct.pack("<QQQQB", 1, 1, 1, 1, flags)


def text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()


def body(*, address: str = "10.0.0.1:1", digest: bytes = b"\0\0", deltas: bytes = b"\0\0") -> bytes:
    return head() + mark() + text(address) + digest + deltas


def delta(
    entries: list[tuple[int, bytes, bytes]], after: int, upto: int, address: str = ""
) -> bytes:
    parts = [struct.pack("<HQQQQIB", 1, 7, 1, after, upto, len(entries), len(address))]
    parts.append(address.encode())
    for version, key, value in entries:
        parts += [struct.pack("<QHI", version, len(key), len(value)), key, value]
    return b"".join(parts)


@given(messages)
@example(EXAMPLE)
def test_what_is_written_is_read(message: Message) -> None:
    data = encode(message, KEY)
    assert decode(data, KEY) == message
    assert decode(memoryview(data), KEY) == message


@given(messages)
def test_sizes_are_known_before_anything_is_written(message: Message) -> None:
    size = message_bytes(message.address, len(message.digest))
    assert len(encode(message, KEY)) == size + sum(each.message_bytes for each in message.deltas)


def test_the_bytes_are_those_of_the_documentation() -> None:
    """Made by hand, after docs/gossip.md."""
    sign = hmac.new(SECRET, b"penstock cluster 1", hashlib.sha256).digest()[:8]
    signing_key = hmac.new(SECRET, b"penstock gossip 1", hashlib.sha256).digest()
    by_hand = b"PSGO\x01\x01\x00\x00" + sign
    by_hand += struct.pack("<QQQQB", 3, 1_700_000_000_000_000, 17, 5, 0)
    by_hand += b"\x0d10.0.0.3:4100"
    by_hand += b"\x01\x00" + struct.pack("<QQQQB", 4, 9, 1, 2, 1)
    by_hand += b"\x01\x00" + struct.pack("<QQQQIB", 3, 1_700_000_000_000_000, 3, 5, 1, 13)
    by_hand += b"10.0.0.3:4100"
    by_hand += struct.pack("<QHI", 5, 7, 2) + "grüße".encode() + "é".encode()
    by_hand += hmac.new(signing_key, by_hand, hashlib.sha256).digest()
    assert encode(EXAMPLE, KEY) == by_hand


def test_a_message_cut_anywhere_is_refused() -> None:
    data = encode(EXAMPLE, KEY)
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(data[:length], KEY)
    with pytest.raises(RemoteProtocolError):
        decode(data + b"\0", KEY)


def test_a_body_cut_anywhere_and_signed_again_is_refused() -> None:
    """Not by its signature, but by what is missing."""
    unsigned = encode(EXAMPLE, KEY)[:-32]
    for length in range(HEAD.size, len(unsigned)):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(signed(unsigned[:length]), KEY)
        assert not isinstance(caught.value, StrangerError)


def test_each_flipped_bit_is_noticed() -> None:
    data = encode(EXAMPLE, KEY)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            decode(bytes(flipped), KEY)


@given(messages)
def test_a_message_of_another_cluster_is_a_strangers(message: Message) -> None:
    with pytest.raises(StrangerError, match="wrong cluster key"):
        decode(encode(message, OTHER_KEY), KEY)


def test_a_made_up_signature_is_a_strangers_even_with_the_right_sign() -> None:
    data = encode(EXAMPLE, KEY)
    with pytest.raises(StrangerError, match="altered, or made up"):
        decode(data[:-32] + bytes(32), KEY)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data, KEY)
    with pytest.raises(RemoteProtocolError):
        decode(head() + data, KEY)


@given(st.binary(max_size=300))
def test_nonsense_of_a_member_is_refused_or_is_a_message_after_all(nonsense: bytes) -> None:
    data = signed(head() + nonsense)
    try:
        message = decode(data, KEY)
    except RemoteProtocolError:
        return
    assert encode(message, KEY) == data


@given(st.data())
def test_a_message_with_a_stretch_overwritten_by_a_member_does_no_harm(data: st.DataObject) -> None:
    unsigned = bytearray(encode(data.draw(messages), KEY)[:-32])
    at = data.draw(st.integers(HEAD.size, len(unsigned) - 1))
    unsigned[at : at + 4] = data.draw(st.binary(min_size=1, max_size=8))
    again = signed(bytes(unsigned))
    try:
        message = decode(again, KEY)
    except RemoteProtocolError:
        return
    assert encode(message, KEY) == again


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (b"PSGX" + body()[4:], "begins with"),
        (head(version=2) + body()[HEAD.size :], "version 2"),
        (head(kind=0) + body()[HEAD.size :], "kind 0"),
        (head(kind=4) + body()[HEAD.size :], "kind 4"),
        (head(nothing=1) + body()[HEAD.size :], "cannot be"),
        (head() + mark(flags=2) + body()[HEAD.size + MARK.size :], "flags"),
        (body(address=""), "where it is"),
        (body(address="localhost:1"), "in numbers"),
        (body(address="10.0.0.1"), "in numbers"),
        (body(address="10.0.0.1:" + "0" * 60 + "1"), "70 bytes"),
        (body(digest=b"\1\0"), "ends within"),
        (body(deltas=b"\1\0"), "ends within"),
        (body() + b"\0", "1 bytes follow"),
        (body(deltas=delta([(2, b"a", b""), (2, b"b", b"")], 1, 3)), "do not ascend"),
        (body(deltas=delta([(1, b"a", b"")], 1, 3)), "do not ascend"),
        (body(deltas=delta([(4, b"a", b"")], 1, 3)), "cannot be"),
        (body(deltas=delta([], 3, 3)), "cannot be"),
        (body(deltas=delta([(2, b"\xff", b"")], 1, 3)), "UTF-8"),
        (body(deltas=delta([(2, b"a", b"\xff")], 1, 3)), "UTF-8"),
        (body(deltas=delta([], 1, 3, address="a:1")), "in numbers"),
        (body(deltas=delta([(2, b"k" * (KEY_BYTES_MAX + 1), b"")], 1, 3)), "key of 257"),
        (body(deltas=delta([(2, b"k", b"v" * (VALUE_BYTES_MAX + 1))], 1, 3)), "value of 1048577"),
    ],
)
def test_what_a_member_may_not_send_is_refused(bad: bytes, named: str) -> None:
    assert decode(signed(body()), KEY).address == "10.0.0.1:1", "the rest of it is right"
    with pytest.raises(RemoteProtocolError, match=named):
        decode(signed(bad), KEY)


def test_the_head_alone_tells_strangers() -> None:
    check_head(encode(EXAMPLE, KEY)[: HEAD.size], KEY)
    with pytest.raises(StrangerError):
        check_head(encode(EXAMPLE, OTHER_KEY)[: HEAD.size], KEY)
    with pytest.raises(RemoteProtocolError, match="no head"):
        check_head(encode(EXAMPLE, KEY)[: HEAD.size - 1], KEY)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 16 bytes, this one has 15"):
        ClusterKey(b"x" * 15)


def test_the_key_is_not_shown() -> None:
    assert "tests' own" not in repr(KEY)


def test_the_largest_value_fits_a_message_and_the_least_a_datagram() -> None:
    address = "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535"
    entry = Entry.of("k" * KEY_BYTES_MAX, "v" * VALUE_BYTES_MAX, 2)
    largest = Message(Kind.NEWS, Mark(1, 1), address, (), (Delta(1, 1, address, 1, 2, (entry,)),))
    assert len(encode(largest, KEY)) < MESSAGE_BYTES_MAX
    room = DATAGRAM_BYTES_MAX - message_bytes(address, 1) - DELTA_OVERHEAD_BYTES - len(address)
    assert room > KEY_BYTES_MAX + 500
