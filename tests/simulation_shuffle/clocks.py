"""Producers whose machines have a wrong clock: for a moment, or all the time."""

from __future__ import annotations

from typing import Final

from tests.simulation.choices import Menu, seldom

_DAY: Final = 86_400.0
LIARS: Final = seldom(150)
"""Of the writers, in a thousand."""
LIES: Final = Menu(
    (6, 0.0),
    (1, -3000.0),
    (1, -2 * _DAY),
    (1, 4.0),
    (1, 3 * _DAY),
    (1, 3650 * _DAY),
)
"""By how much, in seconds. A clock that was ahead once stays there: it never goes back. Within five
seconds it is believed, and waited for."""
