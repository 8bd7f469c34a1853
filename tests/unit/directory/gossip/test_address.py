"""Addresses as users write them and as messages carry them."""

from __future__ import annotations

import pytest

from penstock.directory.gossip.address import ADDRESS_BYTES_MAX, Address, seed_addresses
from penstock.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address", "is_number"),
    [
        ("10.0.0.7:4100", Address("10.0.0.7", 4100), True),
        ("[fd00::7]:1", Address("fd00::7", 1), True),
        ("seed-1.cluster.local:65535", Address("seed-1.cluster.local", 65535), False),
        ("300.0.0.1:80", Address("300.0.0.1", 80), False),
    ],
)
def test_an_address_is_read_and_written_the_same(
    text: str, address: Address, is_number: bool
) -> None:
    assert Address.parse(text) == address
    assert str(address) == text
    assert address.is_number is is_number


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.7", "10.0.0.7:", ":4100", "10.0.0.7:0", "10.0.0.7:65536", "10.0.0.7:-1",
     "10.0.0.7:+1", "10.0.0.7:٤", "fd00::7:4100", "[]:4100", "10.0.0.7:4100 "],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address"):
        Address.parse(text)


def test_seeds_are_texts_or_pairs_and_count_once() -> None:
    seeds = seed_addresses(["10.0.0.7:4100", ("10.0.0.7", 4100), ("fd00::7", 4100)])
    assert seeds == (Address("10.0.0.7", 4100), Address("fd00::7", 4100))


def test_one_text_is_not_a_list_of_seeds() -> None:
    with pytest.raises(ConfigurationError, match="a list"):
        seed_addresses("10.0.0.7:4100")


def test_the_longest_address_fits_its_limit() -> None:
    longest = Address("ffff:" * 6 + "255.255.255.255", 65535)
    assert longest.is_number
    assert len(str(longest)) <= ADDRESS_BYTES_MAX
