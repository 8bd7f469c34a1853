"""What a file in a storage may be called: the same on a disk and on an object store."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import LocalProtocolError

NAME_BYTES_MAX: Final = 800
"""Object stores allow 1,024 bytes for a key; the rest is for the folder that the storage is."""
PART_BYTES_MAX: Final = 200
"""File systems allow 255 bytes between two slashes."""

_PART: Final = re.compile(r"[!-\-0-\[\]-~][!-.0-\[\]-~]*", re.ASCII)
"""Visible ASCII without slash and backslash, and no dot at its beginning: that marks unfinished
files, and rules out `.` and `..` as well."""


def check_name(name: str) -> str:
    """Gives the name back if it is one: parts between slashes, none empty, none hidden."""
    if len(name) > NAME_BYTES_MAX:
        raise LocalProtocolError(f"a name has {len(name)} bytes; {NAME_BYTES_MAX} are allowed")
    for part in name.split("/"):
        if len(part) > PART_BYTES_MAX:
            raise LocalProtocolError(
                f"{part!r} in the name {name!r} has {len(part)} bytes; {PART_BYTES_MAX} are allowed"
            )
        if _PART.fullmatch(part) is None:
            raise LocalProtocolError(
                f"{name!r} cannot name a file: between slashes a name has visible ASCII "
                "characters without a backslash, and does not begin with a dot"
            )
    return name
