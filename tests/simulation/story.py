"""Effects, in words short enough for one line of a story."""

from __future__ import annotations

from penstock.epoch.announcements import Acknowledgement, Announcement
from penstock.epoch.decisions import Decision
from penstock.epoch.follower import AbortUnlessDecided, Acknowledge, Capture, Finish
from penstock.epoch.leader import Announce, Concluded, Decide, Deposed


def plain(what: object) -> str:
    match what:
        case Announcement():
            watermark = "" if what.watermark is None else f", watermark {what.watermark}"
            reason = f" ({what.reason})" if what.reason else ""
            return f"{what.phase} of epoch {what.epoch}, term {what.term}{watermark}{reason}"
        case Acknowledgement():
            error = f" ({what.error})" if what.error else ""
            return (
                f"epoch {what.epoch} {what.stage}{error}, term {what.term}, "
                f"watermark {what.watermark}, finished {what.finished}"
            )
        case Decision():
            reason = f" ({what.reason})" if what.reason else ""
            return (
                f"{what.verdict} of epoch {what.epoch} by member {what.decider}, "
                f"term {what.term}{reason}"
            )
        case Announce():
            return f"announces {plain(what.announcement)}"
        case Acknowledge():
            return f"acknowledges {plain(what.acknowledgement)}"
        case Decide():
            return f"decides {plain(what.decision)}"
        case Concluded() | Deposed():
            return f"{type(what).__name__.lower()}: {plain(what.decision)}"
        case AbortUnlessDecided():
            return f"asks for {plain(what.decision)}"
        case Capture():
            return f"captures epoch {what.barrier.epoch}"
        case Finish():
            return f"{'commits' if what.commit else 'aborts'} epoch {what.epoch}"
        case _:
            return str(what)
