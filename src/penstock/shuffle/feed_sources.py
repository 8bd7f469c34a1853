"""A feed as its users write it, resolved: one store, in which each binding has a collection.

A binding may be in a store of its own, and a topic has a format, an identity, headers as keys. All
of that goes into the address of one store (`journal/sources.py`): Session, Slices and Queues know
collections only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from penstock.journal.kafka.headers import header_in
from penstock.journal.sources import Source, SourceError, joined
from penstock.shuffle.feed import BindingError, Feed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.journal.kafka.edges import Edge
    from penstock.shuffle.feed import Binding


def resolved(
    feed: Feed,
    store: str,
    settings: Mapping[str, str] | None = None,
    *,
    secrets: Mapping[str, str] | None = None,
    with_headers: bool = False,
    fails_on_loss: bool = True,
    starting: Edge | None = None,
) -> tuple[Feed, str]:
    """The feed, and the address of the store that all of it is in. The arguments are those of
    `sources.joined`."""
    if not settings and starting is None and not any(map(_is_special, feed.bindings)):
        return feed, store
    sources = [(one.collection, one.key, one.source or Source()) for one in feed.bindings]
    try:
        found = joined(
            sources,
            store,
            settings or {},
            secrets=secrets,
            with_headers=with_headers,
            fails_on_loss=fails_on_loss,
            starting=starting,
        )
    except SourceError as error:
        raise BindingError(error.place, error.setting, error.problem) from error
    named = zip(feed.bindings, found.collections, strict=True)
    bindings = tuple(replace(one, collection=name, source=None) for one, name in named)
    return Feed(feed.name, bindings), found.address


def _is_special(binding: Binding) -> bool:
    return binding.source is not None or any(header_in(column) for column in binding.key)


def described(feed: Feed) -> list[dict[str, Any]]:
    """What is kept of a feed that is not resolved, to tell it from another. Without secrets; and a
    binding without a source is described as it was before there were any."""
    found = []
    for binding in feed.bindings:
        one = asdict(replace(binding, source=None))
        del one["source"]
        if binding.source is not None:
            one |= binding.source.described()
        found.append(json.loads(json.dumps(one, default=str)))
    return found
