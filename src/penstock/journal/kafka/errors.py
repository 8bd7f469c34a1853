"""What can go wrong between a Kafka cluster and us, and who must act."""

from __future__ import annotations

import difflib

from penstock.errors import (
    ConfigurationError,
    CorruptStorageError,
    FencedError,
    PeerUnavailableError,
    PenstockError,
    RemoteProtocolError,
    UnreadableRowError,
)
from penstock.journal.errors import RowsTakenBackError, UnknownCollectionError


class KafkaSettingError(ConfigurationError):
    """A client setting is unknown, wrong, or cannot be honoured. Change or remove it."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting, self.reason = setting, reason

    def __str__(self) -> str:
        return f"the Kafka setting {self.setting!r} cannot be used: {self.reason}"


class BrokersUnavailableError(PeerUnavailableError):
    """Brokers did not answer within the caller's deadline. Nothing was lost: read again later."""

    def __init__(self, task: str, seconds: float, reason: str) -> None:
        super().__init__(task, seconds, reason)
        self.task, self.seconds, self.reason = task, seconds, reason

    def __str__(self) -> str:
        return (
            f"could not {self.task} within {self.seconds:g} s: {self.reason}. Check that the "
            "brokers run and can be reached from this machine (kafka.bootstrap.servers, the "
            "addresses that they advertise, and kafka.security.protocol), then try again"
        )


class KafkaAccessError(ConfigurationError):
    """The cluster does not accept our credentials, or they do not give the right to do this."""

    def __init__(self, task: str, reason: str, advice: str) -> None:
        super().__init__(task, reason, advice)
        self.task, self.reason, self.advice = task, reason, advice

    def __str__(self) -> str:
        return f"the cluster refused to let us {self.task}: {self.reason}. {self.advice}"


class UnknownTopicError(ConfigurationError):
    """The cluster has no such topic or partition. It may have been deleted; correct the name."""

    def __init__(self, topic: str, partition: int | None = None) -> None:
        super().__init__(topic, partition)
        self.topic, self.partition = topic, partition

    def __str__(self) -> str:
        if self.partition is None:
            return f"the cluster has no topic {self.topic!r}: create it, or correct the name"
        return (
            f"topic {self.topic!r} has no partition {self.partition}: the topic was deleted or "
            "made again with fewer partitions, or the number is wrong"
        )


class NoSuchTopicError(UnknownCollectionError):
    """No topic has the name of a collection: it was deleted, or the name is wrong."""

    def __str__(self) -> str:
        close = difflib.get_close_matches(self.name, self.known, n=3)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        return (
            f"the cluster has no topic {self.name!r}, or does not let us describe it: it was "
            f"deleted, or the name is wrong{meant}"
        )


class TopicMadeAgainError(PenstockError):
    """The topic was deleted and another one has its name now. Offsets mean other rows there."""

    def __init__(self, topic: str, known_id: str, found_id: str) -> None:
        super().__init__(topic, known_id, found_id)
        self.topic, self.known_id, self.found_id = topic, known_id, found_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and made again: its id was {self.known_id} and is "
            f"{self.found_id} now. Offsets of the old topic do not hold for the new one: begin "
            "the new topic from its start"
        )


class LogTruncatedError(RowsTakenBackError):
    """A leader that lacked rows was elected: rows that were read are no longer in the log."""

    def __init__(self, topic: str, partition: int, offset: int, end: int | None) -> None:
        super().__init__(topic, partition, offset, end)
        self.topic, self.partition, self.offset, self.end = topic, partition, offset, end
        self.kept = offset if end is None else end

    def __str__(self) -> str:
        kept = "" if self.end is None else f"; the log agrees with what was read below {self.end}"
        return (
            f"{self.topic}-{self.partition}: an unclean leader election took rows back that were "
            f"read before offset {self.offset}{kept}. Offsets from there on name other rows now: "
            "rebuild what was computed from them, and switch unclean.leader.election.enable off"
        )


class CorruptRecordsError(CorruptStorageError):
    """Bytes of a partition are not what a producer wrote, or not in a form that we read."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} at offset {self.offset}: {self.reason}; nothing of "
            "this fetch was returned. Read again; if the error stays, the broker's log is damaged "
            "there (`kafka-dump-log.sh --deep-iteration` shows it), and the read has to begin "
            "behind it"
        )


class KafkaProtocolError(RemoteProtocolError):
    """A broker sent what Kafka's protocol forbids, or an error that we do not expect."""

    def __init__(self, broker: str, task: str, reason: str) -> None:
        super().__init__(broker, task, reason)
        self.broker, self.task, self.reason = broker, task, reason

    def __str__(self) -> str:
        return (
            f"broker {self.broker} gave a wrong answer when asked to {self.task}: {self.reason}. "
            "Look at the broker's log, and check that the address is a Kafka broker's and that "
            "kafka.security.protocol is the one of its listener"
        )


class RowIdentityError(UnreadableRowError):
    """A row lacks the identity that the setting `identity` asks for. Correct the setting, or let
    such rows count by `on_error = "keep"`."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(topic, partition, offset, reason)
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason

    def __str__(self) -> str:
        return (
            f"the row at offset {self.offset} of {self.topic}-{self.partition} has no identity: "
            f"{self.reason}. Correct the setting identity, or set its on_error to keep: then such "
            "rows count, each of them, also if they are repetitions"
        )


class ChangeLogError(UnreadableRowError):
    """A change stands before others in the database's log, and was committed long after them: the
    log is another one. What follows cannot be told from repetitions."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset

    def __str__(self) -> str:
        return (
            f"the change at offset {self.offset} of {self.topic}-{self.partition} stands before "
            "earlier ones in the database's log, and was committed long after them: the database "
            "was restored, or the connector reads another one. Give the connector another "
            "topic.prefix, and read its topics with a new checkpoint"
        )


class KafkaFencedError(FencedError):
    """Another process has taken the transactional id, or the coordinator has ended a transaction
    that was open for too long. Of that transaction nothing is committed."""

    def __init__(self, transactional_id: str, task: str, reason: str, timeout_ms: int) -> None:
        super().__init__(transactional_id, task, reason, timeout_ms)
        self.transactional_id, self.task = transactional_id, task
        self.reason, self.timeout_ms = reason, timeout_ms

    def __str__(self) -> str:
        return (
            f"could not {self.task}: {self.reason}. Another process has taken the transactional id "
            f"{self.transactional_id!r}, or the transaction was open for longer than "
            f"{self.timeout_ms} ms. Stop one of the two processes; or raise "
            "kafka.transaction.timeout.ms"
        )


class RecordsTooLargeError(ConfigurationError):
    """A topic does not take record batches of this size."""

    def __init__(self, topic: str, size_bytes: int, reason: str) -> None:
        super().__init__(topic, size_bytes, reason)
        self.topic, self.size_bytes, self.reason = topic, size_bytes, reason

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} does not take {self.size_bytes} bytes at once: {self.reason}. "
            "Raise max.message.bytes of the topic (and kafka.max.request.size), or make the rows "
            "smaller"
        )
