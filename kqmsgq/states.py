"""The states of a connection and the events legal in each: the table behind PROTOCOL.md's diagram.

An event that the table lacks for a state closes the connection, as does a malformed or late one. The session
counts these by `wire.Fault`.
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
