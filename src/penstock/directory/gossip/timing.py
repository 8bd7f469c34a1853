"""How often members speak, and how long they wait for what."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class GossipTiming:
    """Seconds. With the defaults a member that is killed is noticed after 2.0 to 2.6 seconds, and
    one that is held up for a second and a half now and then is not taken for dead.
    docs/gossip.md has the sums."""

    interval_seconds: float = 0.2
    """A member's heart beats this often, and it calls a few others each time."""
    phi_max: float = 8.0
    """A member whose silence is less likely than 1 in 10 to this power is taken for dead."""
    deviation_seconds_min: float = 0.32
    """Heartbeats are never taken to be more regular than that. On a quiet network they are regular
    to a millisecond, and the first pause of a busy process would look like its death."""
    silence_seconds_max: float = 2.4
    """However irregular a member was before, a longer silence is its death."""
    pause_seconds_max: float = 1.0
    """If this process itself was held up, it counts no more than this of it as others' silence."""
    forget_seconds: float = 86_400.0
    """Who is dead or has left for so long is forgotten, with all of its values. After half of that
    nobody tells others of it any more, so that who forgot it is not told again."""
    startup_seconds: float = 10.0
    """A process that hears within this time of a later life of its own member takes a generation
    above that: the clock was behind. After this time it was replaced."""

    def __post_init__(self) -> None:
        times = (
            self.interval_seconds,
            self.phi_max,
            self.deviation_seconds_min,
            self.pause_seconds_max,
            self.forget_seconds,
        )
        if not min(times) > 0 or not self.startup_seconds >= 0:
            raise ConfigurationError("the gossip's times are above zero")
        if not self.silence_seconds_max >= 3 * self.interval_seconds:
            raise ConfigurationError(
                f"silence_seconds_max ({self.silence_seconds_max:g}) must be at least three times "
                f"interval_seconds ({self.interval_seconds:g}): else two lost datagrams are a death"
            )
        if not self.pause_seconds_max < self.silence_seconds_max:
            raise ConfigurationError(
                f"pause_seconds_max ({self.pause_seconds_max:g}) must be less than "
                f"silence_seconds_max ({self.silence_seconds_max:g}): else one pause of this "
                "process is everybody's death"
            )
