"""Kafka's Java client, driven from Python: the one that speaks transaction version 2.

    with JavaProducer(kafka.bootstrap_servers, "transfers") as producer:
        producer.init()
        producer.begin()
        producer.send("orders", b"...")
        producer.commit()

A Java runs the client, with the gateway that PySpark uses for itself (py4j). Nothing is compiled.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from py4j.java_gateway import (  # type: ignore[import-untyped] # it has no types
    GatewayClient,
    GatewayParameters,
    JavaGateway,
)
from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
)

from penstock.errors import PenstockError
from penstock.testing.kafka.archive import archive_options
from penstock.testing.kafka.jars import kafka_jars, pyspark_jars
from penstock.testing.kafka.machine import BRIEF, JavaMachine, wait_until
from penstock.testing.kafka.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

START_SECONDS_MAX: Final = 60.0
SENT_MAX: Final = 10_000
"""Messages whose fate is not asked for yet. With more of them the producer is flushed."""
_HEAP: Final = "-Xmx256m"
_SERIALIZER: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"
_GATEWAY_LINES: Final = 2
"""The gateway prints its port, and the token that it wants."""


class JavaClientError(PenstockError):
    """Kafka's Java client refused a call, or its process is gone. `kind` is the Java class of the
    error: look it up in Kafka's documentation."""

    def __init__(self, call: str, kind: str, reason: str) -> None:
        super().__init__(call, kind, reason)
        self.call, self.kind, self.reason = call, kind, reason

    def __str__(self) -> str:
        return f"Kafka's Java client failed in {self.call}: {self.kind}: {self.reason}"


class JavaGatewayProcess:
    """A Java with Kafka's client. Several producers may share one, and end with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-kafka-client-"))
        self._output = self._folder / "output"
        path = os.pathsep.join(map(str, [*kafka_jars(), *_gateway_jars()]))
        options = [
            _HEAP,
            *BRIEF,
            *archive_options(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        ]
        arguments = [*options, "-cp", path, "py4j.GatewayServer", "--enable-auth", "0"]
        self.machine = JavaMachine(arguments, self._output, self._folder)
        self._client: Any = None
        try:
            wait_until(self._has_begun, "a Java client to start", START_SECONDS_MAX, self._text)
            port, token = self._text().splitlines()[:_GATEWAY_LINES]
            given = GatewayParameters(LOOPBACK, int(port), auto_convert=True, auth_token=token)
        except ValueError:
            printed = self._text()
            self.close()
            raise JavaClientError("its start", "it ended at once", printed) from None
        except BaseException:
            self.close()
            raise
        self._client = GatewayClient(gateway_parameters=given)
        self._gateway = JavaGateway(gateway_client=self._client, gateway_parameters=given)

    @property
    def jvm(self) -> Any:
        """Everything that is on its class path, by name."""
        return self._gateway.jvm

    def kill(self) -> None:
        """SIGKILL: all its producers are gone without a word."""
        if self._client is not None:
            # Else every object of Java's that is forgotten here would be looked for there.
            self._client.is_connected = False
            self._client.close()
        self.machine.kill()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _text(self) -> str:
        return self._output.read_text(errors="replace")

    def _has_begun(self) -> bool:
        return not self.machine.is_running or self._text().count("\n") >= _GATEWAY_LINES


class JavaProducer:
    """A producer of the Java client, in a Java of its own unless one is given."""

    def __init__(
        self,
        bootstrap_servers: str,
        transactional_id: str | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        process: JavaGatewayProcess | None = None,
    ) -> None:
        self._owns_process = process is None
        self.process = process or JavaGatewayProcess()
        self._sent: list[Any] = []
        chosen = {
            "bootstrap.servers": bootstrap_servers,
            "key.serializer": _SERIALIZER,
            "value.serializer": _SERIALIZER,
            **({} if transactional_id is None else {"transactional.id": transactional_id}),
            **(settings or {}),
        }
        try:
            self._producer = self._call("the constructor", lambda: self._construct(chosen))
        except BaseException:
            self._end_process()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def init(self) -> None:
        """Takes the transactional id over: older producers with it are fenced, and what they left
        open is aborted."""
        self._call("initTransactions", self._producer.initTransactions)

    def begin(self) -> None:
        self._call("beginTransaction", self._producer.beginTransaction)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Hands a message to the client. `flush` and `commit` tell if it was not delivered."""
        jvm = self.process.jvm
        record = self._call(
            "ProducerRecord",
            lambda: jvm.org.apache.kafka.clients.producer.ProducerRecord(
                topic, partition, timestamp_ms, key, value
            ),
        )
        for name, content in (headers or {}).items():
            record.headers().add(name, content)
        self._sent.append(self._call("send", lambda: self._producer.send(record)))
        if len(self._sent) >= SENT_MAX:
            self.flush()

    def flush(self) -> None:
        """Waits until everything that was sent is stored, or one of it is not: JavaClientError."""
        self._call("flush", self._producer.flush)
        sent, self._sent = self._sent, []
        for each in sent:
            self._call("send", each.get)

    def commit(self) -> None:
        self._call("commitTransaction", self._producer.commitTransaction)
        self._sent.clear()

    def abort(self) -> None:
        self._call("abortTransaction", self._producer.abortTransaction)
        self._sent.clear()

    def kill(self) -> None:
        """Ends the Java of this producer by SIGKILL: what it had open stays open."""
        self.process.kill()

    def close(self) -> None:
        """An open transaction is aborted, as the client does it."""
        try:
            if self.process.machine.is_running:
                self._call("close", self._producer.close)
        finally:
            self._end_process()

    def _construct(self, settings: Mapping[str, str]) -> Any:
        jvm = self.process.jvm
        properties = jvm.java.util.HashMap()
        for name, value in settings.items():
            properties.put(name, value)
        return jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        if not self.process.machine.is_running:
            raise JavaClientError(name, "its process is gone", "it was killed, or ended by itself")
        try:
            return call()
        except Py4JJavaError as error:
            kind, reason = _cause(error.java_exception)
            raise JavaClientError(name, kind, reason) from error
        except Py4JError as error:
            raise JavaClientError(name, type(error).__name__, str(error)) from error

    def _end_process(self) -> None:
        if self._owns_process:
            self.process.close()


def _cause(error: Any) -> tuple[str, str]:
    """What is behind the wrappings of futures."""
    while error.getCause() is not None and "Execution" in error.getClass().getName():
        error = error.getCause()
    return error.getClass().getName(), str(error.getMessage())


@functools.cache
def _gateway_jars() -> tuple[Path, ...]:
    carried = pyspark_jars()
    return () if carried is None else tuple(carried.glob("py4j-*.jar"))
