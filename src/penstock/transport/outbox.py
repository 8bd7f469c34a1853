"""The outbox: frames that wait to be written to one connection, in order.

Any thread puts frames in; the carrier's writer takes them out and encodes them there, off the
callers' threads. Its size is bounded by the credits of what is in it.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from penstock.transport.frames import ALIVE, Close, Credit, Frame

Outgoing: TypeAlias = tuple[Frame, int]
"""A frame, and what its sender reserved for it."""


class Outbox:
    def __init__(self, heartbeat_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._frames: list[Outgoing] = []
        self._closed = False

    def put(self, frame: Frame, estimate_bytes: int = 0) -> None:
        """Adds a frame at the end. Nothing follows a Close."""
        with self._lock:
            if self._closed:
                return
            last = self._frames[-1][0] if self._frames else None
            if isinstance(last, Credit) and isinstance(frame, Credit):
                # Credits add up, so a peer that reads none of them costs one frame and no more.
                data_bytes = last.data_bytes + frame.data_bytes
                control_frames = last.control_frames + frame.control_frames
                self._frames[-1] = (Credit(data_bytes, control_frames), 0)
            else:
                self._frames.append((frame, estimate_bytes))
            self._closed = isinstance(frame, Close)
            if last is None:  # else the writer, which takes all there is, does not wait
                self._changed.notify()

    def take(self) -> list[Outgoing]:
        """What there is, or a heartbeat if nothing comes in time. Empty: closed, and all taken."""
        with self._lock:
            if not self._frames:
                self._changed.wait_for(
                    lambda: self._frames or self._closed, timeout=self._heartbeat_seconds
                )
            if not self._frames:
                return [] if self._closed else [(ALIVE, 0)]
            frames, self._frames = self._frames, []
            return frames

    def discard(self) -> None:
        """The connection is gone: what is in here will not be written."""
        with self._lock:
            self._closed = True
            self._frames.clear()
            self._changed.notify()
