"""A small S3 server for tests: objects in memory, spoken to over HTTP by pyarrow's real client.

It knows what pyarrow asks for: objects put, got (also in ranges), looked at, deleted and listed in
pages, and uploads in several parts. Signatures are not checked. As on S3, an object is there whole
or not at all, the last one to put it wins, and whoever lists or reads sees it at once.

`/_control` is for the tests: it says what goes wrong, and tells what was asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE_KEYS_MAX = 7
"""S3 lists 1,000 keys at once. So few here that the client has to ask for more."""
BUCKET = "bucket"


@dataclass
class Stored:
    data: bytes
    modified: float = field(default_factory=time.time)

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Faults:
    """What is to go wrong. `kill_after` counts requests that change something."""

    status: int = 0
    method: str = ""
    key: str = ""
    times: int = 0
    kill_after: int = 0
    kill_pid: int = 0


class Shelf:
    """All that the server holds, with one lock around it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.upload_numbers = itertools.count(1)
        self.asked: list[str] = []
        self.changes = 0
        self.faults = Faults()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shelf = Shelf()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        pass

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name in ("do_GET", "do_HEAD", "do_PUT", "do_POST", "do_DELETE"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        body = self._body()
        with self.shelf.lock:
            if url.path == "/_control":
                self._control(body)
                return
            bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
            self.shelf.asked.append(f"{self.command} {key}{'?' if query else ''}{','.join(query)}")
            if self._goes_wrong(key):
                return
            if bucket != BUCKET:
                self._fail(404, "NoSuchBucket")
            elif self.command in ("GET", "HEAD"):
                self._read(key, query)
            else:
                self._change(key, query, body)

    def _goes_wrong(self, key: str) -> bool:
        faults = self.shelf.faults
        hit = faults.times > 0 and self.command == faults.method and faults.key in key
        if hit:
            faults.times -= 1
            codes = {403: "AccessDenied", 503: "SlowDown", 500: "InternalError"}
            self._fail(faults.status, codes[faults.status])
        return hit

    def _read(self, key: str, query: dict[str, str]) -> None:
        if not key and "list-type" in query:
            self._list(query)
        elif not key:
            self._answer(200)
        elif key not in self.shelf.objects:
            self._fail(404, "NoSuchKey")
        else:
            stored = self.shelf.objects[key]
            data, status, headers = stored.data, 200, {"ETag": stored.tag}
            headers["Last-Modified"] = self.date_time_string(int(stored.modified))
            asked = self.headers.get("Range")
            if asked:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                end = min(int(last) + 1, len(data)) if last else len(data)
                headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
                data, status = data[int(first) : end], 206
            self._answer(status, data, headers)

    def _change(self, key: str, query: dict[str, str], body: bytes) -> None:
        """Does what is asked, and then perhaps kills the client before it hears of it."""
        shelf = self.shelf
        headers, answer = {}, b""
        if self.command == "POST" and "uploads" in query:
            upload = f"upload-{next(shelf.upload_numbers)}"
            shelf.uploads[upload] = {}
            answer = _xml("InitiateMultipartUploadResult", UploadId=upload, Bucket=BUCKET, Key=key)
        elif self.command == "PUT" and "partNumber" in query:
            shelf.uploads[query["uploadId"]][int(query["partNumber"])] = body
            headers["ETag"] = Stored(body).tag
        elif self.command == "POST" and "uploadId" in query:
            parts = shelf.uploads.pop(query["uploadId"])
            shelf.objects[key] = Stored(b"".join(parts[number] for number in sorted(parts)))
            answer = _xml("CompleteMultipartUploadResult", ETag=shelf.objects[key].tag, Key=key)
        elif self.command == "DELETE" and "uploadId" in query:
            shelf.uploads.pop(query["uploadId"], None)
        elif self.command == "DELETE":
            shelf.objects.pop(key, None)
        elif self.command == "PUT":
            shelf.objects[key] = Stored(body)
            headers["ETag"] = shelf.objects[key].tag
        else:
            self._fail(501, "NotImplemented")
            return
        shelf.changes += 1
        if shelf.changes == shelf.faults.kill_after:
            os.kill(shelf.faults.kill_pid, signal.SIGKILL)
        self._answer(204 if self.command == "DELETE" else 200, answer, headers)

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        shown: list[str] = []
        seen: set[str] = set()
        more = ""
        for key in sorted(self.shelf.objects):
            if not key.startswith(prefix):
                continue
            below, found, _ = (
                key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            )
            name = prefix + below + delimiter if found else key
            if name in seen or name <= after:
                continue
            if len(seen) == min(PAGE_KEYS_MAX, int(query.get("max-keys", 1_000))):
                more = max(seen)
                break
            seen.add(name)
            if found:
                shown.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                stored = self.shelf.objects[key]
                when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
                shown.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
                    f"<LastModified>{when}</LastModified><ETag>{escape(stored.tag)}</ETag></Contents>"
                )
        fields = {"KeyCount": str(len(seen)), "IsTruncated": str(bool(more)).lower()}
        if more:
            fields["NextContinuationToken"] = more
        self._answer(200, _xml("ListBucketResult", "".join(shown), Prefix=prefix, **fields))

    def _control(self, body: bytes) -> None:
        """An order changes the faults and starts the counts anew; every answer tells all."""
        if body:
            order = json.loads(body)
            for key, data in order.pop("objects", {}).items():
                self.shelf.objects[key] = Stored(bytes.fromhex(data))
            if order.pop("clear", False):
                self.shelf.objects.clear()
                self.shelf.uploads.clear()
            self.shelf.faults = Faults(**order)
            self.shelf.asked.clear()
            self.shelf.changes = 0
        told = {
            "asked": self.shelf.asked,
            "changes": self.shelf.changes,
            "objects": {key: stored.data.hex() for key, stored in self.shelf.objects.items()},
            "uploads": len(self.shelf.uploads),
        }
        self._answer(200, json.dumps(told).encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b"".join(self._chunks())
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            data = _without_chunks(data)
        return data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, _xml("Error", Code=code, Message=code))

    def _answer(
        self, status: int, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        with contextlib.suppress(ConnectionError):  # it may have been killed
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)


def _without_chunks(data: bytes) -> bytes:
    """The body of an upload that is signed or summed chunk by chunk: sizes stand between."""
    found: list[bytes] = []
    place = 0
    while True:
        end = data.index(b"\r\n", place)
        size = int(data[place:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(found)
        found.append(data[end + 2 : end + 2 + size])
        place = end + 2 + size + 2


def _xml(root: str, inner: str = "", **fields: str) -> bytes:
    told = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{told}{inner}</{root}>'.encode()


class S3Server:
    """The server in a process of its own, at a port that was free."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.s3_server"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def place(self, folder: str) -> str:
        """The address of a folder, as a Storage opens it. The keys are never checked."""
        options = f"endpoint_override={self.address}&scheme=http&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{folder}?{options}"

    def control(self, **order: Any) -> dict[str, Any]:
        """Without an order it only tells."""
        body = json.dumps(order).encode() if order else None
        url = f"http://{self.address}/_control"
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def objects(self) -> dict[str, bytes]:
        return {key: bytes.fromhex(data) for key, data in self.control()["objects"].items()}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
