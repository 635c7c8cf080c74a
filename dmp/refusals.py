"""Refusals in AMQP 0-9-1's words: a reply code, and whether it closes the channel or the connection."""

from enum import IntEnum

import attrs

from shared.errors import BrokerError, StoreError

TEXT_BYTES_MAX = 255  # a reply text is a short string


class Code(IntEnum):
    """The specification's reply codes (its section 1.1, constants)."""

    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    @property
    def closes_connection(self) -> bool:
        """Whether the specification calls it a connection exception; else only the channel ends."""
        return self not in _CHANNEL_CODES


_CHANNEL_CODES = frozenset(
    {
        Code.NO_ROUTE,
        Code.NO_CONSUMERS,
        Code.ACCESS_REFUSED,
        Code.NOT_FOUND,
        Code.RESOURCE_LOCKED,
        Code.PRECONDITION_FAILED,
    }
)


@attrs.define(eq=False)
class Refusal(BrokerError):
    """A request is refused, and nothing has changed. `hard`: it closes the connection whatever the code."""

    code: Code
    text: str
    hard: bool = False

    def __str__(self) -> str:
        return f"{self.code.name} - {self.text}"

    @property
    def closes_connection(self) -> bool:
        return self.hard or self.code.closes_connection

    @property
    def reply_text(self) -> bytes:
        """The text as the bytes of a short string, cut where a character ends."""
        return str(self).encode()[:TEXT_BYTES_MAX].decode(errors="ignore").encode()


def shown(name: bytes) -> str:
    """A name in a text for its peer or the log: quoted, control characters escaped."""
    text = name.decode(errors="backslashreplace")
    return "'" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + "'"


def said_of(error: StoreError) -> str:
    """What a peer is told of it."""
    return str(error) or "the store takes no writes"


def refused_by_store(error: StoreError) -> Refusal:
    """The refusal where the store fails. It ends the connection: the specification has nothing softer."""
    return Refusal(Code.RESOURCE_ERROR, said_of(error))


def not_found(kind: str, name: bytes) -> Refusal:
    return Refusal(Code.NOT_FOUND, f"no {kind} {shown(name)} in vhost '/'")


def locked(name: bytes) -> Refusal:
    text = (
        f"cannot obtain exclusive access to locked queue {shown(name)} in vhost '/'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )
    return Refusal(Code.RESOURCE_LOCKED, text)


def inequivalent(what: str, kind: str, name: bytes, received: str, current: str) -> Refusal:
    """Tools take this text apart."""
    return Refusal(
        Code.PRECONDITION_FAILED,
        f"inequivalent arg '{what}' for {kind} {shown(name)} in vhost '/': "
        f"received {received} but current is {current}",
    )
