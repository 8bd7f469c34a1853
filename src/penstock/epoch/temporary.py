"""Which errors pass by themselves, or once an operator has acted: the loops wait for that, and end
with any other."""

from __future__ import annotations

import logging
from typing import Final

from penstock.errors import PeerUnavailableError
from penstock.storage.errors import StorageDamagedError, StorageError, StorageRefusedError

_LOG: Final = logging.getLogger("penstock.epoch")
_TEMPORARY: Final = (PeerUnavailableError, StorageError)
_LASTING: Final = (StorageRefusedError, StorageDamagedError)
"""Storage errors that come again however often one tries."""


def is_temporary(error: Exception) -> bool:
    """Whether the same call, made again by the same process, may succeed."""
    return isinstance(error, _TEMPORARY) and not isinstance(error, _LASTING)


def put_up_with(error: Exception, problem: str) -> None:
    """Says why something has to wait. Raises what no waiting mends."""
    if not is_temporary(error):
        raise error
    _LOG.warning("%s for now: %s", problem, error)
