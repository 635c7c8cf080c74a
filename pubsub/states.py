"""The states of a subscriber's connection and the commands legal in each, as PROTOCOL.md draws them.

The table leaves out faults: malformed, late or above a limit, or an id that is connected already. The session
counts these by `wire.Fault`.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    ID = "the client id is expected"
    LOGIN = "a login is expected"
    SUBSCRIBER = "messages are sent as they come"
    ENDING = "what is in the outbox is sent, then the connection closes"


class Event(Enum):
    JOIN = "a client id that is not connected"
    LOGIN_COMES = "a client id that needs a login"
    LOGGED_IN = "4 (log in), which fits"
    SUBSCRIBE = "0, 3 or 4 (subscribe)"
    UNSUBSCRIBE = "1 (unsubscribe)"
    DISCONNECT = "2 (disconnect)"
    FAULT = "a fault"
    INPUT_ENDS = "end of input, drain"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.ID: {
        Event.JOIN: State.SUBSCRIBER,
        Event.LOGIN_COMES: State.LOGIN,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.LOGIN: {
        Event.LOGGED_IN: State.SUBSCRIBER,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.SUBSCRIBER: {
        Event.SUBSCRIBE: State.SUBSCRIBER,
        Event.UNSUBSCRIBE: State.SUBSCRIBER,
        Event.LOGGED_IN: State.SUBSCRIBER,
        Event.DISCONNECT: State.ENDING,
        Event.FAULT: State.ENDING,
        Event.INPUT_ENDS: State.ENDING,
    },
    State.ENDING: {},
}
