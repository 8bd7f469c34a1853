"""What the files of a snapshot are called. No two attempts ever write the same file."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from penstock.errors import LocalProtocolError

NUMBER_MAX: Final = 2**64 - 1
PARTS_MAX: Final = 100_000
"""Of one snapshot: its manifest is read as a whole, and has a line for each."""

MANIFESTS: Final = "manifests/"
PARTS: Final = "parts/"
COMMITTED: Final = "committed/"

_LABEL: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{16})", re.ASCII)
_PART: Final = re.compile(r"([0-9a-f-]{58})-([0-9]{6})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One attempt at the snapshot of an epoch. They are in the order of epochs, and within one
    epoch of attempts: of two that were finished, the later one counts."""

    epoch: int
    number: int
    token: str
    """Random. It keeps two processes apart that believe to be the same attempt."""

    @classmethod
    def new(cls, epoch: int, number: int) -> Attempt:
        if not 1 <= epoch <= NUMBER_MAX:
            raise LocalProtocolError(f"epoch {epoch} is outside of 1 to {NUMBER_MAX}")
        if not 0 <= number <= NUMBER_MAX:
            raise LocalProtocolError(f"attempt {number} is outside of 0 to {NUMBER_MAX}")
        return cls(epoch, number, secrets.token_hex(8))

    @property
    def label(self) -> str:
        return f"{self.epoch:020d}-{self.number:020d}-{self.token}"

    @property
    def manifest(self) -> str:
        return f"{MANIFESTS}{self.label}"

    @property
    def mark(self) -> str:
        """The file that says that this attempt was committed."""
        return f"{COMMITTED}{self.label}"

    def part(self, index: int) -> str:
        return f"{PARTS}{self.label}-{index:06d}"


def of_epoch(folder: str, epoch: int) -> str:
    """How the names of an epoch's files in a folder begin."""
    return f"{folder}{epoch:020d}-"


def parse_label(name: str) -> Attempt | None:
    """The attempt of a manifest or a mark; None if the file is none of ours."""
    found = _LABEL.fullmatch(name.rpartition("/")[2])
    if found is None:
        return None
    attempt = Attempt(int(found[1]), int(found[2]), found[3])
    in_range = 1 <= attempt.epoch <= NUMBER_MAX and attempt.number <= NUMBER_MAX
    return attempt if in_range else None


def parse_part(name: str) -> Attempt | None:
    """The attempt that wrote a part; None if the file is none of ours."""
    found = _PART.fullmatch(name.removeprefix(PARTS))
    return parse_label(found[1]) if found is not None and name.startswith(PARTS) else None
