"""The classes that protoc makes of a file in `proto/`: what other languages have of messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from grpc_tools import protoc  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from types import ModuleType

_OURS = Path(__file__).parents[1] / "proto"
_THEIRS = Path(protoc.__file__).parent / "_proto"


def compiled(proto: str, folder: Path) -> ModuleType:
    """The module of `proto`, a path below `proto/`, made in `folder`."""
    paths = [f"-I{place}" for place in (_OURS, _THEIRS)]
    assert protoc.main(["protoc", *paths, f"--python_out={folder}", proto]) == 0
    path = folder / proto.replace(".proto", "_pb2.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
