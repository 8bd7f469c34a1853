"""Addresses: as text and back, and through the cluster's key-value interface."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.errors import ConfigurationError, PeerUnavailableError
from penstock.transport.discovery import ADDRESS_KEY, Address, PeerUnknownError, look_up, publish

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True) | st.ip_addresses().map(str)


@given(st.sampled_from(["tcp", "local", "grpc"]), HOSTS, st.integers(0, 65535))
def test_an_address_is_text_and_back(carrier: str, host: str, port: int) -> None:
    address = Address(carrier, host, port)
    assert Address.parse(str(address)) == address


def test_addresses_look_like_this() -> None:
    assert str(Address("tcp", "10.0.0.7", 4100)) == "tcp://10.0.0.7:4100"
    assert str(Address("grpc", "fe80::1", 4100)) == "grpc://[fe80::1]:4100"
    assert Address.parse("tcp://[::1]:80") == Address("tcp", "::1", 80)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.7:4100",
        "tcp://10.0.0.7",
        "tcp://:4100",
        "tcp://[]:4100",
        "tcp://10.0.0.7:",
        "tcp://10.0.0.7:-1",
        "tcp://10.0.0.7:65536",
        "tcp://10.0.0.7:4100/",
        "tcp://10.0.0.7:4100\n",
        "tcp://::1:4100",
        "TCP://10.0.0.7:4100",
        "tcp://user@[::1:4100",
        "tcp://10.0.0.7:" + "1" * 5000,
    ],
)
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address; write it like"):
        Address.parse(text)


def test_a_member_is_found_where_it_said() -> None:
    first = MemoryKeyValue(1)
    second = first.view(2)
    with pytest.raises(PeerUnknownError, match="member 2 has published no address") as caught:
        look_up(first, 2)
    assert isinstance(caught.value, PeerUnavailableError)
    publish(second, Address("tcp", "10.0.0.7", 4100))
    assert second.read(2, ADDRESS_KEY) == "tcp://10.0.0.7:4100"
    assert look_up(first, 2) == Address("tcp", "10.0.0.7", 4100)
    publish(second, Address("tcp", "10.0.0.7", 4200))
    assert look_up(first, 2).port == 4200, "a member that moved is found where it is now"
