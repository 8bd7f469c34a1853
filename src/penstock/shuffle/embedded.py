"""A shuffle in one process: the Session and all members, over the local carrier."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.directory.keyvalue import MemoryKeyValue
from penstock.shuffle import control
from penstock.shuffle.member import Member, Settings
from penstock.shuffle.running import Shuffle
from penstock.shuffle.session.actor import EPOCH_SECONDS, Session
from penstock.transport.security import Security, Token

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.store import ReadableStore
    from penstock.shuffle.feed import Feed
    from penstock.shuffle.member import Setup
    from penstock.shuffle.resume import Resume


class EmbeddedShuffle(Shuffle):
    """From `start` to `close`; a context."""

    def __init__(
        self,
        feed: Feed,
        store: ReadableStore,
        folder: Path,
        *,
        members: int = 2,
        settings: Settings | None = None,
        epoch_seconds: float = EPOCH_SECONDS,
    ) -> None:
        super().__init__(
            feed,
            store,
            folder,
            members=members,
            settings=replace(settings or Settings(), carrier="local"),
            epoch_seconds=epoch_seconds,
        )
        self._members: list[Member] = []

    def _open_parts(self, setup: Setup, resume: Resume) -> None:
        token = Token.generate()  # and no TLS: nothing leaves the process
        slots = MemoryKeyValue(control.SESSION)
        self._session = Session(
            setup,
            self._store,
            Security(control.SESSION, token, None),
            slots,
            place=self._place,
            resume=resume,
            epoch_seconds=self._epoch_seconds,
        )
        for member in self.members:
            self._members.append(
                Member(
                    setup,
                    self._store,
                    Security(member, token, None),
                    slots.view(member),
                    place=self._place,
                    folder=self.queue_folder(member),
                )
            )
        for each in self._members:
            each.start()
        self._session.start()

    def _close_parts(self) -> None:
        members, session = self._members, self._session
        self._members, self._session = [], None
        with contextlib.ExitStack() as stack:
            if session is not None:
                stack.callback(session.close)
            for each in members:
                stack.callback(each.close)
            for each in members:
                stack.callback(each.stop)
            if session is not None:
                stack.callback(session.stop)
