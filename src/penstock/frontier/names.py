"""Names written as their difference from the name before: cut some bytes off, add some others.

Journal names in order share long beginnings, and what is written is mostly their ends.
"""

from __future__ import annotations


def name_delta(previous: bytes, name: bytes) -> tuple[int, bytes]:
    """How many bytes to cut off the previous name, and which to add. Both names are UTF-8."""
    length = min(len(previous), len(name))
    # The highest bit in which the two differ, as numbers, gives the first byte that differs.
    difference = int.from_bytes(previous[:length], "big") ^ int.from_bytes(name[:length], "big")
    shared = length - (difference.bit_length() + 7) // 8
    # What is added must be text by itself, so a character is never split.
    while 0 < shared < len(name) and name[shared] & 0xC0 == 0x80:
        shared -= 1
    return len(previous) - shared, name[shared:]


def apply_name_delta(previous: bytes, truncate: int, suffix: bytes) -> bytes:
    """The name that a difference makes of the previous one.

    A negative cut discards all of the previous name, and so does one that is longer than it.
    """
    kept = len(previous) - truncate if truncate >= 0 else 0
    return previous[: max(kept, 0)] + suffix
