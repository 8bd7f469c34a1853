"""What a demo has checked, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from penstock.demo.stage import Stage


@dataclass(slots=True)
class Verdict:
    """What was checked, and whether it held."""

    checks: list[tuple[str, bool]] = field(default_factory=list)

    def check(self, what: str, holds: bool) -> None:
        self.checks.append((what, holds))

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(holds for _, holds in self.checks)


def tell_verdict(stage: Stage, number: int, verdict: Verdict, promise: str, seconds: float) -> None:
    """The last part of a story."""
    stage.heading(number, "Verdict")
    for what, holds in verdict.checks:
        mark = ("yes", "green") if holds else ("NO ", "bold red")
        stage.say(Text.assemble(mark, f"  {what}"))
    stage.say()
    if verdict.holds:
        stage.say(Text(f"{promise}: it held. ({seconds:.0f} s)", style="bold green"))
    else:
        stage.say(Text(f"{promise} did NOT hold. ({seconds:.0f} s)", style="bold red"))
