"""For processes in which nothing runs but members of a shuffle."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa


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
