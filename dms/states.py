"""The states of a DMS connection and their transitions: the table behind the diagram in PROTOCOL.md.

Not in the table: requests that are answered at once change no state; while the peer or the disk is slow,
input is held back without a state of its own.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    NEW = "the handshake is expected"
    OPEN = "requests are expected"
    SKIPPING_NEW = "a payload that is too large is thrown away"
    SKIPPING = "the same, after the handshake"
    CLOSING = "pending answers are sent, then the connection closes"


class Event(Enum):
    HANDSHAKE = "HANDSHAKE"
    TOO_LARGE = "a payload of 4097 bytes to 1 MiB"
    SKIPPED = "its last byte"
    BROKEN = "bad magic, length, version"
    TOO_EARLY = "a request before the handshake"
    TOO_MANY = "one client too many"
    LOGIN_REFUSED = "a HANDSHAKE without the login that is asked for, or with a wrong one"
    DISCONNECT = "DISCONNECT"
    INPUT_ENDS = "end of input"
    DRAIN = "the server stops"
    TOO_LATE = "deadline"


_ENDS = {
    Event.BROKEN: State.CLOSING,
    Event.INPUT_ENDS: State.CLOSING,
    Event.DRAIN: State.CLOSING,
    Event.TOO_LATE: State.CLOSING,
}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.NEW: {
        Event.HANDSHAKE: State.OPEN,
        Event.TOO_LARGE: State.SKIPPING_NEW,
        Event.TOO_EARLY: State.CLOSING,
        Event.TOO_MANY: State.CLOSING,
        Event.LOGIN_REFUSED: State.CLOSING,
        **_ENDS,
    },
    State.OPEN: {
        Event.TOO_LARGE: State.SKIPPING,
        Event.DISCONNECT: State.CLOSING,
        **_ENDS,
    },
    State.SKIPPING_NEW: {
        Event.SKIPPED: State.NEW,
        Event.INPUT_ENDS: State.CLOSING,
        Event.DRAIN: State.CLOSING,
        Event.TOO_LATE: State.CLOSING,
    },
    State.SKIPPING: {
        Event.SKIPPED: State.OPEN,
        Event.INPUT_ENDS: State.CLOSING,
        Event.DRAIN: State.CLOSING,
        Event.TOO_LATE: State.CLOSING,
    },
    State.CLOSING: {},
}
