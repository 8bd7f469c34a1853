"""What Spark keeps of where a query is: an epoch of a feed. Small, and final.

The feed's own name is in it, as it was drawn when the query first began: so every query has queues
of its own, and finds them again, without the user naming anything.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from penstock.errors import CorruptStorageError
from penstock.shuffle.outlet import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.shuffle.resume import Epoch


@dataclass(frozen=True, slots=True)
class Offset:
    feed: str
    epoch: int
    fingerprint: str
    """Of the epoch's frontier, which is in the feed's folder."""
    watermark: str
    """The cluster's at that epoch, as a clock. It is here so that a batch that is repeated says the
    same. Text: JSON readers lose digits of so large a number. Empty: none yet."""

    @classmethod
    def of(cls, feed: str, epoch: Epoch) -> Offset:
        watermark = "" if epoch.watermark is None else str(epoch.watermark)
        return cls(feed, epoch.number, fingerprint(epoch), watermark)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        try:
            return cls(**{field.name: given[field.name] for field in fields(cls)})
        except KeyError as error:
            raise CorruptStorageError(
                f"the offset {dict(given)} in Spark's checkpoint has no {error}: it is of another "
                "source, or of another release of Penstock. Begin with a new checkpoint"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def check(self, epoch: Epoch) -> None:
        """Refuses an epoch that is not the one Spark was told of."""
        if fingerprint(epoch) != self.fingerprint:
            raise CorruptStorageError(
                f"epoch {self.epoch} of feed {self.feed} is not the one that Spark's checkpoint "
                "means: the feed's folder was replaced, perhaps by an older copy. Begin with a new "
                "checkpoint: all documents are read again then"
            )


def new_feed_name() -> str:
    return secrets.token_hex(8)
