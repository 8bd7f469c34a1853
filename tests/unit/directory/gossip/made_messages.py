"""Messages of all shapes, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.directory.gossip.messages import ClusterKey, Kind, Message
from penstock.directory.gossip.state import Delta, Entry, Mark

KEY = ClusterKey(b"the key of the tests' own cluster")
OTHER_KEY = ClusterKey(b"the key of somebody else's cluster")

_numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
_addresses = st.sampled_from(["127.0.0.1:1", "10.200.30.4:65535", "[fd00::7]:4100"])
_texts = st.text(max_size=20)

marks = st.builds(Mark, _numbers, _numbers, _numbers, _numbers, st.booleans())


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    versions = sorted(draw(st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=6)))
    after = draw(st.integers(0, versions[0] - 1))
    entries = tuple(Entry.of(draw(_texts), draw(_texts), version) for version in versions[:-1])
    address = draw(st.one_of(st.just(""), _addresses))
    return Delta(draw(_numbers), draw(_numbers), address, after, versions[-1], entries)


messages = st.builds(
    Message,
    st.sampled_from(Kind),
    marks,
    _addresses,
    st.lists(marks, max_size=4).map(tuple),
    st.lists(deltas(), max_size=3).map(tuple),
)

EXAMPLE = Message(
    Kind.CALL,
    Mark(3, 1_700_000_000_000_000, 17, 5),
    "10.0.0.3:4100",
    (Mark(4, 9, 1, 2, left=True),),
    (Delta(3, 1_700_000_000_000_000, "10.0.0.3:4100", 3, 5, (Entry.of("grüße", "é", 5),)),),
)
