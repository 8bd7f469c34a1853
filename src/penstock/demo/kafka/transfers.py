"""Transfers between accounts: every one is some postings, in several partitions of two topics,
whose amounts add up to nothing. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

ACCOUNTS: Final = 1_000
PARTITIONS: Final = 4
"""Of each topic."""
CREDITS_MAX: Final = 6
CENTS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Posting:
    """One message: what a transfer takes from an account, or gives to it."""

    topic: str
    partition: int
    account: int
    value: bytes

    @property
    def key(self) -> bytes:
        return str(self.account).encode()


@dataclass(frozen=True, slots=True)
class Topics:
    debits: str = "debits"
    credits: str = "credits"

    @property
    def names(self) -> tuple[str, str]:
        return self.debits, self.credits


def transfer(name: str, topics: Topics, random: Random) -> list[Posting]:
    """One debit, and one credit or several: two accounts are in different topics always, and in
    different partitions mostly."""
    payer, *payees = random.sample(range(ACCOUNTS), random.randint(2, CREDITS_MAX + 1))
    shares = [random.randint(1, CENTS_MAX) for _ in payees]
    amounts = [
        (topics.debits, payer, -sum(shares)),
        *((topics.credits, payee, share) for payee, share in zip(payees, shares, strict=True)),
    ]
    return [
        Posting(topic, account % PARTITIONS, account, _value(name, len(amounts), account, cents))
        for topic, account, cents in amounts
    ]


def _value(name: str, postings: int, account: int, cents: int) -> bytes:
    return json.dumps(
        {"transfer": name, "postings": postings, "account": account, "cents": cents}
    ).encode()
