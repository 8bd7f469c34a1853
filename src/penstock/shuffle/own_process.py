"""For processes in which nothing runs but members of a shuffle."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import numpy as np
import pyarrow as pa

_POOL: Final = "jemalloc"


def settle_own_process() -> None:
    """Before the first thing is done in it."""
    leave_out_pandas()
    _choose_memory_pool()


def _choose_memory_pool() -> None:
    """Arrow's usual pool, mimalloc, gives memory back to the system at once, which then has to
    clear it for the next batch: half of a member's system time. And with many threads it holds
    several times what is in use. This one keeps memory for a second."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and _POOL in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def leave_out_pandas() -> None:
    """pyarrow imports pandas, where it is installed, with the first column that it makes: a second
    or two of a processor, and no member has a use for it."""
    if "pandas" in sys.modules:
        return  # the program that runs the shuffle has imported it
    finder: Any = _NoPandas()
    sys.meta_path.insert(0, finder)
    pa.array(np.empty(0)).to_numpy()  # either looks once, and remembers
    sys.meta_path.remove(finder)


class _NoPandas:
    """Among the finders of modules: says that there is no such thing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
