"""What a connection is, and what it may send then: the table behind the diagram in PROTOCOL.md.

What the table leaves out: an event that is not in it for a state closes the connection, as does one that is
malformed or too late; the session counts them by `wire.Fault`.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    ROLE = "the first 7 bytes are expected"
    PRODUCER = "its messages are handed on"
    CONSUMER = "messages are sent as they come"
    ENDING = "what is in the outbox is sent, then the connection closes"


class Event(Enum):
    ACCOUNT = "account, and a login that fits"
    PRODUCE = "produce"
    CONSUME = "consume"
    MESSAGE = "*"
    SUBSCRIBE = "> (subscribe)"
    UNSUBSCRIBE = "/ (unsubscribe)"
    FAULT = "a fault"
    INPUT_ENDS = "end of input, drain"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.ROLE: {
        Event.ACCOUNT: State.ROLE,
        Event.PRODUCE: State.PRODUCER,
        Event.CONSUME: State.CONSUMER,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.PRODUCER: {
        Event.MESSAGE: State.PRODUCER,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.CONSUMER: {
        Event.SUBSCRIBE: State.CONSUMER,
        Event.UNSUBSCRIBE: State.CONSUMER,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.ENDING: {},
}
