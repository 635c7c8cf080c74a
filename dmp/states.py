"""What a DMP connection is doing, and what may happen then: the table behind the diagram."""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    LEASE = "the greeting is sent, a lease is expected"
    SINK = "messages are read"
    FEED = "messages are written"
    ENDED = "what is owed is sent, then the connection closes"


class Event(Enum):
    SINK_LEASE = "lease of a sink"
    FEED_LEASE = "lease of a feed"
    REFUSED = "no lease, no target, malformed, deadline"
    GONE = "the queue is gone"
    END = "end of input, connection lost"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.LEASE: {
        Event.SINK_LEASE: State.SINK,
        Event.FEED_LEASE: State.FEED,
        Event.REFUSED: State.ENDED,
        Event.END: State.ENDED,
    },
    State.SINK: {Event.REFUSED: State.ENDED, Event.END: State.ENDED},
    State.FEED: {Event.REFUSED: State.ENDED, Event.GONE: State.ENDED, Event.END: State.ENDED},
    State.ENDED: {},
}
