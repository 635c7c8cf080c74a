"""The states of a LogMQ connection and their transitions: the table behind the diagram in PROTOCOL.md.

Not in the table: requests that are answered at once change no state; while an answer, the disk or the peer is
awaited, input is held back without a state of its own (`SessionBase.stopped`).
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    FIRST_LINE = "the first line is expected"
    REQUESTS = "a request's line is expected"
    BODY = "the bytes of an APPEND or BATCH are coming"
    SKIPPED_BODY = "the bytes of a refused APPEND or BATCH are thrown away"
    SKIPPED_LINE = "the rest of a line is thrown away"
    TAIL = "records are sent as they become visible"
    ENDING = "pending answers are sent, then the connection closes"


class Event(Enum):
    LINE_COMES = "any other line"
    HTTP = "a line of an HTTP request"
    TLS = "the first byte of TLS"
    BODY_ANNOUNCED = "APPEND or BATCH"
    BODY_COMPLETE = "the last byte"
    BODY_REFUSED = "APPEND or BATCH that is refused"
    BODY_TOO_LARGE = "a body above 64 MiB"
    BODY_SKIPPED = "its last byte"
    LINE_TOO_LONG = "a line above the limit"
    LINE_END = "the line's end"
    TAIL_BEGINS = "TAIL"
    TAIL_STOPPED = "any line"
    TAIL_REFUSED = "DELETE of the topic, a bad offset"
    TAIL_REFUSED_IN_LINE = "the same, amid a line"
    QUIT = "QUIT"
    LOGIN_REFUSED = "AUTH refused, the third in a row"
    INPUT_ENDS = "end of input, drain"
    TOO_LATE = "deadline"


_ENDS = {Event.INPUT_ENDS: State.ENDING, Event.TOO_LATE: State.ENDING}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.FIRST_LINE: {
        Event.LINE_COMES: State.REQUESTS,
        Event.HTTP: State.ENDING,
        Event.TLS: State.ENDING,
        **_ENDS,
    },
    State.REQUESTS: {
        Event.BODY_ANNOUNCED: State.BODY,
        Event.BODY_REFUSED: State.SKIPPED_BODY,
        Event.BODY_TOO_LARGE: State.ENDING,
        Event.LINE_TOO_LONG: State.SKIPPED_LINE,
        Event.TAIL_BEGINS: State.TAIL,
        Event.HTTP: State.ENDING,
        Event.QUIT: State.ENDING,
        Event.LOGIN_REFUSED: State.ENDING,
        **_ENDS,
    },
    State.BODY: {Event.BODY_COMPLETE: State.REQUESTS, **_ENDS},
    State.SKIPPED_BODY: {Event.BODY_SKIPPED: State.REQUESTS, **_ENDS},
    State.SKIPPED_LINE: {Event.LINE_END: State.REQUESTS, **_ENDS},
    State.TAIL: {
        Event.TAIL_STOPPED: State.REQUESTS,
        Event.TAIL_REFUSED: State.REQUESTS,
        Event.TAIL_REFUSED_IN_LINE: State.SKIPPED_LINE,
        **_ENDS,
    },
    State.ENDING: {},
}
