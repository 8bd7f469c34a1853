"""Numbers as people say them. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_WORD: Final = re.compile(r"[\w.:@%+=/-]+", re.ASCII)
NAMED_MAX: Final = 3
"""Of a list of names: more would hide the sentence."""


def lasting(seconds: float) -> str:
    """A time span: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 days."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} days"


def counted(number: float, thing: str) -> str:
    """1 row, 1,234 rows."""
    rounded = round(number)
    return f"{rounded:,} {thing}{'' if rounded == 1 else 's'}"


def sized(size_bytes: float) -> str:
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_SIZES[unit]}" if unit == 0 else f"{value:,.1f} {_SIZES[unit]}"


def quoted(text: str) -> str:
    """As a shell takes it for one word, whatever is in it."""
    return text if _WORD.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def listed(names: Iterable[object], thing: str = "") -> str:
    """a; a and b; a, b, c and 4 others. With a thing: member 1; members 1 and 2."""
    texts = [str(name) for name in names]
    if thing:
        thing = f"{thing} " if len(texts) == 1 else f"{thing}s "
    if len(texts) > NAMED_MAX + 1:
        left = len(texts) - NAMED_MAX
        return f"{thing}{', '.join(texts[:NAMED_MAX])} and {left} others"
    if len(texts) > 1:
        return f"{thing}{', '.join(texts[:-1])} and {texts[-1]}"
    return f"{thing}{''.join(texts)}"
