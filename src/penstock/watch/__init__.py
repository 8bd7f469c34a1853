"""What a feed is doing and what it waits for, as plain data: one state, and all views are of it.

causes     the kinds of waits, each with its facts, a sentence and what a person could do
standing   which waits last, and since when
state      the whole state of a feed
encoding   as JSON
explaining the verdict, in sentences
history    the last ten minutes, a point a second
loading    from a feed's folder
"""

from penstock.watch.encoding import StateFormatError, decode_state, encode_state
from penstock.watch.loading import STATE_NAME, StateMissingError, find_folders, load, load_spark
from penstock.watch.state import FeedState, Phase, Verdict, Wait

__all__ = [
    "STATE_NAME",
    "FeedState",
    "Phase",
    "StateFormatError",
    "StateMissingError",
    "Verdict",
    "Wait",
    "decode_state",
    "encode_state",
    "find_folders",
    "load",
    "load_spark",
]
