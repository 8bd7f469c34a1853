"""Where the producers of a read stand, ready to be saved at any time.

A snapshot has every state, and is taken every few seconds; a round changes a few of them. So the
columns of the last snapshot are kept, and only what changed since is put into them.
"""

from __future__ import annotations

import numpy as np

from penstock.sequence import ProducerState, StateColumns

NO_STATES = StateColumns.of(())


class ReadStates(dict[int, ProducerState]):
    """By producer. Change it by `states[producer] = state` and `del states[producer]` only: others
    are not noticed."""

    def __init__(self, states: dict[int, ProducerState]) -> None:
        super().__init__(states)
        self._saved = NO_STATES
        self._changed: set[int] = set(states)
        """Since it was saved."""

    def __setitem__(self, producer: int, state: ProducerState) -> None:
        super().__setitem__(producer, state)
        self._changed.add(producer)

    def __delitem__(self, producer: int) -> None:
        super().__delitem__(producer)
        self._changed.add(producer)

    def columns(self) -> StateColumns:
        """All states of now."""
        changed, self._changed = self._changed, set()
        known = [(producer, self[producer]) for producer in changed if producer in self]
        if len(known) < len(changed):
            dropped = np.array([one for one in changed if one not in self], np.int64)
            self._saved = self._saved.select(~np.isin(self._saved.producers, dropped))
        self._saved = self._saved.updated(StateColumns.of(known))
        return self._saved
