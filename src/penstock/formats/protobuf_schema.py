"""Protobuf's schemas: .proto text is compiled by the protoc that grpcio-tools carries.

protoc runs as a process of its own: it knows files only, and writes its complaints to the standard
error of whoever it runs in. It runs once for a schema.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from penstock.formats.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

COMPILE_SECONDS: Final = 60.0
_MAIN: Final = "penstock_values.proto"


def message_of(text: str, message: str = "", referenced: Iterable[tuple[str, str]] = ()) -> Any:
    """The descriptor of a message: the one named, or the first of the text."""
    from google.protobuf import descriptor_pool  # noqa: PLC0415

    pool = descriptor_pool.DescriptorPool()
    for file in _compiled(text, referenced).file:
        pool.AddSerializedFile(file.SerializeToString())
    file = pool.FindFileByName(_MAIN)
    names = list(file.message_types_by_name)
    if not names:
        raise SchemaError("the Protobuf schema has no message")
    if not message:
        return file.message_types_by_name[names[0]]
    for name in (message, f"{file.package}.{message}"):
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            continue
    raise SchemaError(f"the Protobuf schema has no message {message!r}; it has {', '.join(names)}")


def message_path(descriptor: Any) -> tuple[int, ...]:
    """Where the message is in its file: the number of each message on the way, from outside in."""
    path = []
    inner = descriptor
    while inner.containing_type is not None:
        path.append(list(inner.containing_type.nested_types).index(inner))
        inner = inner.containing_type
    path.append(list(inner.file.message_types_by_name.values()).index(inner))
    return tuple(reversed(path))


def _compiled(text: str, referenced: Iterable[tuple[str, str]]) -> Any:
    try:
        import grpc_tools  # type: ignore[import-untyped]  # noqa: PLC0415
        from google.protobuf import descriptor_pb2  # noqa: PLC0415
    except ImportError:
        raise SchemaError(
            "format protobuf needs more packages: pip install 'penstock[kafka]'"
        ) from None
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as name:
        folder = Path(name)
        for path, content in (*referenced, (_MAIN, text)):
            _write(folder, path, content)
        known = Path(grpc_tools.__path__[0]) / "_proto"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}",
                   "--include_imports", f"--descriptor_set_out={folder / 'compiled'}",
                   _MAIN]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise SchemaError("protoc took too long over the Protobuf schema") from None
        if done.returncode != 0:
            complaint = done.stderr.strip().replace(f"{folder}/", "").replace(_MAIN, "line")[:500]
            raise SchemaError(f"the Protobuf schema does not compile: {complaint}")
        return descriptor_pb2.FileDescriptorSet.FromString((folder / "compiled").read_bytes())


def _write(folder: Path, name: str, content: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SchemaError(f"the Protobuf schema refers to {name!r}, which is outside of it")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
