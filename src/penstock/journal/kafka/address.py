"""Everything that a process needs to open a Kafka cluster as a store, as one text. Pure.

`kafka://broker:9092,other:9092` is what users write and what pages show. Members get the whole
address, behind a `#`: settings with their secrets, subscriptions, and where reading begins. It goes
the way that other secrets go (`process_member.Given`), and into no log, page, offset or state file.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.journal.kafka.edges import Edge

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEME: Final = "kafka"
BOOTSTRAP: Final = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions a collection is: those of some topics, of all topics whose names a pattern
    matches, or single ones."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How values become columns: options of `formats/options.py`. None: they stay as they are."""
    view: str = ""
    """`dead_letters`: only the values that do not parse."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """How users name producers: the setting of `identities.py`. Empty: they do not."""
    headers: tuple[str, ...] = ()
    """Headers that are columns of their own, `header:NAME`."""
    is_topic: bool = False
    """It is one topic, which a binding names: it has to be there."""
    starting: Edge | None = None
    """Where a user asks a stream to begin. None: at the first rows that are kept."""
    starts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Where that was when the stream began, by topic and partition. Those that are not named are
    read from their begin."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigurationError(
                f"option 'subscribePattern': {self.pattern!r} is no regular expression: {error}"
            ) from None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics to ask for; None: all, to see which of them match."""
        return None if self.pattern else (*self.topics, *self.assigned)

    def has(self, topic: str, partition: int) -> bool:
        if self.pattern:
            # As Spark's own source has it: who means the whole name writes ^ and $.
            return re.search(self.pattern, topic) is not None
        return topic in self.topics or partition in self.assigned.get(topic, ())


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    options: Mapping[str, str] = field(repr=False)
    """The client's settings, by Kafka's own names."""
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    """By collection. Any other collection is the topic of its name."""
    with_headers: bool = False
    fail_on_data_loss: bool = True

    @property
    def url(self) -> str:
        """Without anything secret."""
        return f"{SCHEME}://{self.options.get(BOOTSTRAP, '')}"

    @property
    def text(self) -> str:
        """All of it."""
        document = json.dumps(asdict(self), sort_keys=True).encode()
        return f"{self.url}#{base64.urlsafe_b64encode(document).decode()}"

    @classmethod
    def parse(cls, text: str) -> KafkaAddress:
        servers, separator, rest = text.removeprefix(f"{SCHEME}://").partition("#")
        if not separator:
            if not servers or "/" in servers:
                raise ConfigurationError(
                    f"{text!r} is not the address of a Kafka cluster: write "
                    f"{SCHEME}://host:port,host:port and name topics as collections"
                )
            return cls({BOOTSTRAP: servers})
        try:
            found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(rest))
        except ValueError as error:
            raise ConfigurationError(
                f"what stands behind the # of {SCHEME}://{servers} is no address: {error}"
            ) from None
        found["subscriptions"] = {
            name: Subscription(
                tuple(one["topics"]),
                one["pattern"],
                {topic: tuple(numbers) for topic, numbers in one["assigned"].items()},
                one["values"],
                one["view"],
                one["identity"],
                tuple(one["headers"]),
                one["is_topic"],
                None if one["starting"] is None else Edge(**one["starting"]),
                one["starts"],
            )
            for name, one in found["subscriptions"].items()
        }
        return cls(**found)
