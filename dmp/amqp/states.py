"""What an AMQP connection and its channels are doing, and what may happen then: the tables behind the
diagrams.

What the tables leave out: methods that are answered at once change no state; and in CLOSING all input but the
answer is thrown away without a look at what it is, as the specification wants it.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    STARTING = "connection.start is sent"
    TUNING = "connection.tune is sent"
    OPENING = "connection.open is expected"
    OPEN = "channels work"
    CLOSING = "connection.close is sent"
    ENDED = "pending answers are sent, then the connection closes"


class Event(Enum):
    START_OK = "start-ok"
    WRONG_LOGIN = "start-ok, wrong password"
    TUNE_OK = "tune-ok"
    OPEN = "open"
    REFUSED = "a connection exception, drain"
    CLOSE = "close"
    CLOSE_OK = "close-ok"
    END = "end of input, garbage, deadline"


class ChannelState(Enum):
    OPEN = "methods are expected"
    HEADER = "a content header is expected"
    BODY = "the rest of a body is expected"
    CLOSING = "channel.close is sent"
    CLOSED = "the number is free"


class ChannelEvent(Enum):
    PUBLISH = "basic.publish"
    HEADER = "header"
    EMPTY = "header, size 0"
    BODY_PART = "body, more to come"
    BODY_END = "body, its end"
    REFUSED = "a channel exception"
    CLOSE = "close"
    CLOSE_OK = "close-ok"


_ENDINGS = {Event.REFUSED: State.CLOSING, Event.CLOSE: State.ENDED, Event.END: State.ENDED}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.STARTING: {
        Event.START_OK: State.TUNING,
        Event.WRONG_LOGIN: State.ENDED,
        Event.REFUSED: State.CLOSING,
        Event.END: State.ENDED,
    },
    State.TUNING: {Event.TUNE_OK: State.OPENING, **_ENDINGS},
    State.OPENING: {Event.OPEN: State.OPEN, **_ENDINGS},
    State.OPEN: _ENDINGS,
    State.CLOSING: {Event.CLOSE: State.ENDED, Event.CLOSE_OK: State.ENDED, Event.END: State.ENDED},
    State.ENDED: {},
}

CHANNEL_TRANSITIONS: Mapping[ChannelState, Mapping[ChannelEvent, ChannelState]] = {
    ChannelState.OPEN: {
        ChannelEvent.PUBLISH: ChannelState.HEADER,
        ChannelEvent.REFUSED: ChannelState.CLOSING,
        ChannelEvent.CLOSE: ChannelState.CLOSED,
    },
    ChannelState.HEADER: {
        ChannelEvent.HEADER: ChannelState.BODY,
        ChannelEvent.EMPTY: ChannelState.OPEN,
        ChannelEvent.REFUSED: ChannelState.CLOSING,
    },
    ChannelState.BODY: {
        ChannelEvent.BODY_PART: ChannelState.BODY,
        ChannelEvent.BODY_END: ChannelState.OPEN,
        ChannelEvent.REFUSED: ChannelState.CLOSING,
    },
    ChannelState.CLOSING: {
        ChannelEvent.CLOSE: ChannelState.CLOSED,
        ChannelEvent.CLOSE_OK: ChannelState.CLOSED,
    },
    ChannelState.CLOSED: {},
}
