"""Small JSON with its checksum before it, in one line."""

from __future__ import annotations

import json
from typing import Any

from penstock.checksum import checksum
from penstock.errors import CorruptStorageError


def sealed(data: dict[str, Any]) -> bytes:
    text = json.dumps(data).encode()
    return b"%016x %s\n" % (checksum(text), text)


def unsealed(name: str, data: bytes) -> dict[str, Any]:
    """The name is for the error."""
    found, _, text = data.rstrip(b"\n").partition(b" ")
    if b"%016x" % checksum(text) != found:
        raise CorruptStorageError(
            f"{name} is damaged: its checksum does not match. "
            "Restore it from a copy; without it a transaction's fate is not known"
        )
    decoded: dict[str, Any] = json.loads(text)
    return decoded
