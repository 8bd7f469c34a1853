"""How long the transport waits for what."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. The defaults suit a data centre: a peer that says nothing for 20 s is gone."""

    connect_seconds_max: float = 5.0
    """To reach a peer, prove who one is, and hear its answer."""
    heartbeat_seconds: float = 5.0
    """An end with nothing to say says so this often."""
    silence_seconds_max: float = 20.0
    """A peer that was silent for so long, or accepted no byte for so long, is gone."""

    def __post_init__(self) -> None:
        if not min(self.connect_seconds_max, self.heartbeat_seconds) > 0:
            raise ConfigurationError("the transport's times are above zero")
        if not self.silence_seconds_max >= 2 * self.heartbeat_seconds:
            raise ConfigurationError(
                f"silence_seconds_max ({self.silence_seconds_max:g}) must be at least twice "
                f"heartbeat_seconds ({self.heartbeat_seconds:g}): else a late heartbeat ends a "
                "good connection"
            )
