"""What a binding reads, and how its rows become documents; and the one store that several such
sources are together. Pure, but for a schema registry.

    a collection of the reader's own store      as it is
    topics of one Kafka cluster                 a subscription each, in the cluster's address
    in several stores                           `joined://`, the addresses of all (`joined.py`)

A collection has one name in there. Two sources that would have the same one and are not the same,
because their stores or formats differ, are `orders` and `orders-2`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigurationError
from penstock.formats.options import NAMES, SECRETS, URL, USER_INFO
from penstock.journal.kafka.headers import header_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.journal.kafka.address import KafkaAddress
    from penstock.journal.kafka.edges import Edge

KAFKA: Final = "kafka"
SECRET_SETTING: Final = USER_INFO
"""Of values: it does not stand in a feed file."""
VALUE_SETTINGS: Final = tuple(sorted(NAMES - {SECRET_SETTING}))
"""Of values, that a feed file may have."""
SUBSCRIPTION_SETTINGS: Final = ("subscribe", "subscribe_pattern", "assign")
"""Which topics a binding reads, in place of the one that its collection names."""
STARTING_SETTINGS: Final = (
    "starting_offsets",
    "starting_timestamp",
    "starting_offsets_by_timestamp",
    "starting_offsets_by_timestamp_strategy",
)
"""Where reading of topics begins. Both sorts are read by `kafka/subscribing.py`."""

FORMS: Final = '{header = "NAME"} or {producer = "COLUMN", sequence = "COLUMN"}'
"""Of an identity."""


class SourceError(ConfigurationError):
    """A setting of one of several sources is wrong; `place` is its number."""

    def __init__(self, place: int, setting: str, problem: str) -> None:
        super().__init__(place, setting, problem)
        self.place, self.setting, self.problem = place, setting, problem

    def __str__(self) -> str:
        return f"source {self.place}: {self.setting}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Source:
    """A collection as a binding asks for it."""

    store: str = field(default="", repr=False)
    """The address of its store. Empty: the reader's own."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How values of a topic become columns: options of `formats/options.py`."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Who wrote a row of a topic, where the log does not say: `kafka/identities.py`."""
    subscription: Mapping[str, Any] = field(default_factory=dict)
    """`SUBSCRIPTION_SETTINGS`. None: the collection is one topic."""
    starting: Mapping[str, Any] = field(default_factory=dict)
    """`STARTING_SETTINGS`."""

    def described(self) -> dict[str, Any]:
        """What may be kept of it, where anybody reads it, to tell it from another. Where reading
        begins is no part of it: that is asked for once, at the first start."""
        return {
            "store": self.store.partition("#")[0],
            "values": {name: text for name, text in self.values.items() if name not in SECRETS},
            "identity": dict(self.identity),
            **({"subscription": dict(self.subscription)} if self.subscription else {}),
        }


@dataclass(frozen=True, slots=True)
class Joined:
    """Sources as collections of one store."""

    address: str = field(repr=False)
    collections: tuple[str, ...]
    """Of each source, what the store calls it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A source with everything that tells it from another."""

    url: str
    collection: str
    source: Source
    headers: tuple[str, ...]


def joined(
    sources: Sequence[tuple[str, Sequence[str], Source]],
    store: str,
    settings: Mapping[str, str],
    *,
    secrets: Mapping[str, str] | None = None,
    with_headers: bool = False,
    fails_on_loss: bool = True,
    starting: Edge | None = None,
) -> Joined:
    """Of each source its collection, the columns of its key, and the rest. `store` is the address
    of those that name none; `settings` are the Kafka client's, and `secrets` the registry's, beside
    what stands in addresses and sources. Topics of sources that do not say where reading begins are
    read from `starting` on."""
    asked = [
        _asked(place, collection, key, source, store)
        for place, (collection, key, source) in enumerate(sources)
    ]
    names = _named(asked)
    _check_clusters(asked, settings, starting)
    addresses = {one.url: one.source.store for one in asked}
    parts: dict[str, dict[str, str]] = {url: {} for url in addresses}
    for name, one in zip(names, asked, strict=True):
        # A subscription is called as it is asked for.
        parts[one.url][name] = name if _kind(one.url) == KAFKA else one.collection
    clusters = {url: text for url, text in addresses.items() if _kind(url) == KAFKA}
    for url, text in clusters.items():
        subscribed = {
            name: (place, one)
            for place, (name, one) in enumerate(zip(names, asked, strict=True))
            if one.url == url
        }
        address = _cluster(text, settings, subscribed, secrets or {}, starting)
        addresses[url] = replace(
            address,
            with_headers=with_headers or address.with_headers,
            fail_on_data_loss=fails_on_loss and address.fail_on_data_loss,
        ).text
    if len(addresses) == 1:
        return Joined(next(iter(addresses.values())), names)
    from penstock.journal.joined import JoinedAddress  # noqa: PLC0415 - seldom needed

    return Joined(
        JoinedAddress(tuple((text, parts[url]) for url, text in addresses.items())).text, names
    )


def _check_clusters(
    asked: Sequence[_Asked], settings: Mapping[str, str], starting: Edge | None
) -> None:
    clusters = {one.url: place for place, one in enumerate(asked) if _kind(one.url) == KAFKA}
    if len(clusters) > 1:
        first, second = list(clusters)[:2]
        raise SourceError(
            clusters[second],
            "store",
            f"{second} is another Kafka cluster than {first}: a feed reads from one, because "
            "producers of two may have the same ids. Make a feed for each",
        )
    if settings and not clusters:
        raise ConfigurationError(
            f"{min(settings)!r} is a setting of a Kafka client, and nothing is read from Kafka"
        )
    if starting is not None and not clusters:
        raise ConfigurationError(
            f"option {starting.option!r} is of Kafka, and nothing is read from there"
        )


def _asked(place: int, collection: str, key: Sequence[str], source: Source, store: str) -> _Asked:
    # What stands behind the # of an address may be secret, and is in the reader's own only.
    if not source.store or source.store == store.partition("#")[0]:
        source = replace(source, store=store)
    if not source.store:
        raise SourceError(
            place, "store", "it is missing; say where the collection is, like kafka://broker:9092"
        )
    kind = _kind(source.store)
    headers = tuple(name for name in map(header_in, key) if name is not None)
    if kind == KAFKA:
        _check_identity(place, source)
        return _Asked(source.store.partition("#")[0], collection, source, headers)
    for setting, value in (("identity", source.identity), ("key", headers)):
        if value:
            raise SourceError(place, setting, f"it goes with topics of Kafka, not with {kind}://")
    for settings in (source.values, source.subscription, source.starting):
        if settings:
            raise SourceError(
                place, min(settings), f"it goes with topics of Kafka, not with {kind}://"
            )
    from penstock.journal import local_folder  # noqa: PLC0415 - it imports every store

    # A store is one, however it is written: its transactions are whole.
    url = local_folder(source.store).as_uri() if kind == "file" else source.store
    return _Asked(url, collection, replace(source, store=url), ())


def _check_identity(place: int, source: Source) -> None:
    from penstock.journal.kafka.identities import Identity  # noqa: PLC0415 - it is an extra

    if source.identity:
        try:
            Identity.parse(source.identity)
        except ConfigurationError as error:
            raise SourceError(place, "identity", str(error)) from error


def _kind(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    return scheme if separator else "file"


def _named(asked: Sequence[_Asked]) -> tuple[str, ...]:
    known: dict[str, _Asked] = {}
    names = []
    for one in asked:
        name, number = one.collection, 1
        while known.setdefault(name, one) != one:
            number += 1
            name = f"{one.collection}-{number}"
        names.append(name)
    return tuple(names)


def _only(topics: Sequence[str]) -> str:
    """The topic, if it is one. Of several it is not known whose newest schema is meant."""
    return topics[0] if len(topics) == 1 else ""


def _cluster(
    address: str,
    settings: Mapping[str, str],
    asked: Mapping[str, tuple[int, _Asked]],
    secrets: Mapping[str, str],
    starting: Edge | None,
) -> KafkaAddress:
    """The address of a cluster, with a subscription for each of these."""
    from penstock.journal.kafka.address import KafkaAddress  # noqa: PLC0415 - it is an extra
    from penstock.journal.kafka.shapes import with_schema  # noqa: PLC0415
    from penstock.journal.kafka.subscribing import (  # noqa: PLC0415
        SubscribingError,
        edge_of,
        subscription_of,
    )

    found = KafkaAddress.parse(address)
    subscriptions = dict(found.subscriptions)
    for name, (place, one) in asked.items():
        given = one.source.values
        try:
            topics = subscription_of(one.source.subscription, one.collection)
            edge = edge_of(one.source.starting, topics)
        except SubscribingError as error:
            raise SourceError(place, error.setting, error.problem) from error
        try:
            values = with_schema(
                {**given, **(secrets if URL in given else {})}, _only(topics.names or ())
            )
        except ConfigurationError as error:
            raise SourceError(place, "format", str(error)) from error
        subscriptions[name] = replace(
            topics,
            values=values,
            identity=dict(one.source.identity),
            headers=one.headers,
            starting=starting if edge is None else edge,
        )
    return replace(found, options={**settings, **found.options}, subscriptions=subscriptions)
