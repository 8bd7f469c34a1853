"""What a failed request means: ask again, or tell somebody."""

from __future__ import annotations

from typing import Final

from kafka import errors as codes

from penstock.errors import PenstockError


class AskAgainError(PenstockError):
    """A broker was not reached, or is not the one to ask at the moment. It stays within `client/`:
    who asks for something gets an answer or `BrokersUnavailableError`."""

    def __init__(self, broker: str, reason: str, *, is_stale: bool = True) -> None:
        super().__init__(broker, reason)
        self.broker, self.reason, self.is_stale = broker, reason, is_stale
        """Stale: what we know of the cluster is out of date."""

    def __str__(self) -> str:
        return f"broker {self.broker}: {self.reason}"


UNKNOWN_TOPIC_CODES: Final = frozenset({3, 100, 103})
"""The topic, the partition or the topic's id is not known there, or not yet."""
OFFSET_OUT_OF_RANGE: Final = 1
NO_ERROR: Final = 0


def is_retriable(code: int) -> bool:
    return bool(codes.for_code(code).retriable) or code in UNKNOWN_TOPIC_CODES


def is_refusal(code: int) -> bool:
    """The cluster does not let us."""
    return issubclass(codes.for_code(code), codes.AuthorizationError)


def described(code: int) -> str:
    """An error by its name in Kafka's documentation."""
    kind = codes.for_code(code)
    return f"{getattr(kind, 'message', kind.__name__)} (code {code})"
