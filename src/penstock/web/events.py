"""What the page is sent: all feeds in a line each, and one of them in full."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.web.feeds import Look

_URGENCY: Final = ("stuck", "down", "waiting", "healthy")
"""Which of several feeds is shown unless one is chosen."""


def event_text(
    looks: Sequence[Look],
    look: Look | None,
    *,
    places: list[str],
    aborts: list[dict[str, Any]],
    left_out: int = 0,
) -> bytes:
    """JSON in one line. The state is passed on as it was written. `left_out`: so many feeds are
    not among the looks."""
    event: dict[str, Any] = {
        "now": time.time(),
        "places": places,
        "feeds": [summary(one) for one in looks],
        "left_out": left_out,
        "feed": None if look is None else look.name,
    }
    if look is None:
        return json.dumps(event | {"state": None}).encode()
    event |= {"alive": look.is_alive, "problem": look.problem, "batches": look.batches}
    event["aborts"] = aborts
    return json.dumps(event).encode()[:-1] + b', "state": ' + look.text + b"}"


def chosen(looks: Sequence[Look], name: str | None) -> Look | None:
    """The one asked for, or the most urgent of those that run."""
    if name is not None:
        return next((look for look in looks if look.name == name), None)
    return min(looks, key=lambda look: (not look.is_alive, _urgency(look)), default=None)


def _urgency(look: Look) -> int:
    verdict = "" if look.state is None else look.state.get("verdict")
    return _URGENCY.index(verdict) if verdict in _URGENCY else len(_URGENCY)


def summary(look: Look) -> dict[str, Any]:
    state = look.state or {}
    return {
        "feed": look.name,
        "folder": str(look.folder),
        "collections": [one.get("collection") for one in state.get("bindings") or []],
        "alive": look.is_alive,
        "verdict": state.get("verdict"),
        "phase": state.get("phase"),
        "problem": look.problem,
    }
