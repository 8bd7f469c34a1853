"""From a state to a verdict, in plain sentences. Pure."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.watch.causes import KINDS
from penstock.watch.wording import counted, lasting

if TYPE_CHECKING:
    from penstock.watch.state import FeedState, Verdict, Wait

SENTENCES_MAX: Final = 6
"""Of waits. The rest is counted: the first ones tend to be the cause of the others."""
HEALS_SECONDS_MAX: Final = 120.0
"""What mends itself and takes longer than that does not."""


def explained(state: FeedState) -> FeedState:
    """The same with verdict, explanation and advice made from the rest of it."""
    verdict = verdict_of(state)
    return replace(
        state,
        verdict=verdict,
        explanation=tuple(_sentences(state, verdict)),
        advice=tuple(_advice(state, verdict)),
    )


def gone(state: FeedState, since: float) -> FeedState:
    """The same when the process that wrote it is no more, and did not end in order."""
    moved = replace(
        state,
        phase="failed",
        reason=f"its process {state.process} on {state.host} is gone",
        waits=(),
    )
    return replace(
        moved,
        verdict="down",
        explanation=(
            f"Feed {state.feed} is down: its process {state.process} on {state.host} is gone "
            f"since about {_moment(since)}, and did not end in order.",
            f"It was {state.phase}{_newest(state)}.",
        ),
        advice=(
            "Start it again: it goes on from its newest epoch, and nothing is lost or doubled.",
        ),
    )


def silent(state: FeedState, since: float) -> FeedState:
    """The same when the process that writes it lives, and has written nothing for long."""
    who = f"its process {state.process} on {state.host}"
    return replace(
        state,
        verdict="stuck",
        explanation=(
            f"Feed {state.feed} says nothing: {who} lives, and has told nothing of itself since "
            f"about {_moment(since)}.",
            f"It was {state.phase} then{_newest(state)}.",
        ),
        advice=(
            "See whether the process is stopped, or hangs, or its disk is full. If it has to be "
            "killed, start it again: it goes on from its newest epoch, and nothing is lost.",
        ),
    )


def verdict_of(state: FeedState) -> Verdict:
    if state.phase in ("failed", "stopped"):
        return "down"
    stalls = [wait for wait in state.waits if wait.is_stall]
    if any(_needs_somebody(wait, state.written) for wait in stalls):
        return "stuck"
    is_waiting = any(not KINDS[wait.kind].is_normal or wait.is_stall for wait in state.waits)
    is_heard = all(member.queue is not None for member in state.members)
    is_healthy = state.phase == "running" and is_heard and not is_waiting
    return "healthy" if is_healthy else "waiting"


def _needs_somebody(wait: Wait, now: float) -> bool:
    return not KINDS[wait.kind].heals_itself or now - wait.since > HEALS_SECONDS_MAX


def _sentences(state: FeedState, verdict: Verdict) -> list[str]:
    if verdict == "down":
        how = "was stopped" if state.phase == "stopped" else "has failed"
        why = f": {state.reason}" if state.reason else ""
        return [f"Feed {state.feed} {how} at {_moment(state.written)}{why}.", _past(state)]
    return [_headline(state, verdict), *_wait_sentences(state), *_restarted(state)]


def _headline(state: FeedState, verdict: Verdict) -> str:
    match verdict:
        case "healthy":
            is_idle = any(wait.kind == "idle" for wait in state.waits)
            how = "healthy and idle" if is_idle else "healthy"
        case "waiting":
            how = {
                "starting": "starting",
                "restarting": "restarting",
                "recovering": "recovering what was lost",
            }.get(state.phase, "running")
        case _:
            how = "stuck" if not (state.rows_per_second or 0) else "held up in part"
    figures = []
    if state.rows_per_second is not None:
        figures.append(f"{counted(state.rows_per_second, 'row')} a second go into the queues")
    if state.rows_behind is not None:
        figures.append(f"{counted(state.rows_behind, 'row')} are left in the journals")
    told = f": {', '.join(figures)}" if figures else ""
    return f"Feed {state.feed} is {how}{told}{_newest(state, 'ago')}."


def _newest(state: FeedState, when: str = "before") -> str:
    commits = [each for each in state.epochs if each.verdict == "commit"]
    if not commits:
        return "; there is no epoch yet"
    newest = commits[-1]
    ended = newest.began + (newest.total_seconds or 0.0)
    return f"; epoch {newest.number} was committed {lasting(state.written - ended)} {when}"


def _wait_sentences(state: FeedState) -> list[str]:
    waits = [wait for wait in state.waits if wait.kind != "idle"] or list(state.waits)
    sentences = [wait.text for wait in waits[:SENTENCES_MAX]]
    if len(waits) > SENTENCES_MAX:
        sentences.append(f"There are {len(waits) - SENTENCES_MAX} other waits.")
    return sentences


def _restarted(state: FeedState) -> list[str]:
    if not state.restarts.count:
        return []
    last = state.restarts.events[-1:]
    why = f", the last at {_moment(last[0].at)} because {last[0].reason}" if last else ""
    times = "once" if state.restarts.count == 1 else f"{state.restarts.count} times"
    return [f"It was begun anew {times}{why}."]


def _past(state: FeedState) -> str:
    return f"It ran since {_moment(state.started)}{_newest(state)}."


def _advice(state: FeedState, verdict: Verdict) -> list[str]:
    if verdict == "down":
        if state.phase == "stopped":
            return ["Start it again when you like: it goes on from its newest epoch."]
        return ["Look at the reason, mend it, and start it again: it goes on from its epoch."]
    advice: list[str] = []
    stalls = [wait for wait in state.waits if wait.is_stall]
    for wait in (stalls or state.waits)[:SENTENCES_MAX]:
        if wait.advice is not None and wait.advice not in advice:
            advice.append(wait.advice)
    return advice


def _moment(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
