"""Pub/sub's datagrams, commands and frames: bytes to values and back. No I/O, no state; both ends use it.

Source: PROTOCOL.md. The server does not parse messages: a datagram becomes a frame as it is
(`pubsub.fanout`). Subscribers parse frames here.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from enum import IntEnum, StrEnum

import attrs

from shared.errors import RemoteProtocolError, printable
from shared.routing.syntax import Wildcards
from shared.units import moment_ms

ID_BYTES = 11
ID_CHARACTERS_MAX = 10
TOPIC_BYTES_MAX = 50
PAYLOAD_BYTES_MAX = 1500

DATAGRAM_TYPE_AT = TOPIC_BYTES_MAX
DATAGRAM_BYTES_MIN = TOPIC_BYTES_MAX + 1
DATAGRAM_BYTES_MAX = DATAGRAM_BYTES_MIN + PAYLOAD_BYTES_MAX
NOBODY = b"0.0.0.0:0"
"""The sender in frames that a bridge publishes."""

COMMAND_BYTES = 52

SENDER_BYTES = 50
TOPIC_AT = SENDER_BYTES
TYPE_AT = TOPIC_AT + TOPIC_BYTES_MAX + 1
DATA_AT = TYPE_AT + 1
FRAME_BYTES = DATA_AT + PAYLOAD_BYTES_MAX + 1

RECORDED_FRAMES = 1
"""The codec of recorded blocks (RECORDING.md): datagrams in frames, without their padding."""

WILDCARDS = Wildcards(separator=b"/", any_levels=b"*", one_level=b"+")
"""The levels of topics, and the wildcards of patterns."""
SINCE_MINUTES_MAX = 525_600
"""A year: the longest past that a subscription may ask for."""

U16_MAX = 0xFFFF
U32_MAX = 0xFFFFFFFF
EXPONENT_MAX = 0xFF

Buffer = bytes | bytearray


class Kind(IntEnum):
    """The type of a payload."""

    INT = 0
    SHORT_REAL = 1
    FLOAT = 2
    STRING = 3


PAYLOAD_BYTES_MIN: Mapping[int, int] = {Kind.INT: 5, Kind.SHORT_REAL: 2, Kind.FLOAT: 6, Kind.STRING: 0}


class Command(IntEnum):
    """A subscriber's commands. KEEP is **ext**: subscribe, and keep messages while the client is away. LOGIN
    is **ext**, too: its topic is `<user>:<password>`; or, of a subscription as KEEP from the past,
    `<minutes>:<pattern>`."""

    SUBSCRIBE = 0
    UNSUBSCRIBE = 1
    DISCONNECT = 2
    KEEP = 3
    LOGIN = 4


class Fault(StrEnum):
    """Why a connection is closed, without a reply; also the label in metrics."""

    ID = "id"
    CONNECTED = "already_connected"
    COMMAND = "command"
    TOPIC = "topic"
    SESSIONS = "sessions"
    SUBSCRIPTIONS = "subscriptions"
    SINCE = "since"
    TOO_LATE = "too_late"
    LOGIN = "login"
    SYSLOG = "syslog"


@attrs.frozen
class Message:
    """A message as a subscriber gets it. `sender`: `IP:port`; `topic`: 0 to 50 bytes, no NUL."""

    sender: str
    topic: bytes
    kind: int
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")

    @property
    def value(self) -> bytes:
        """The value as the specification prints it: a decimal number, or a text's own bytes.

        Raises RemoteProtocolError for an unknown kind.
        """
        return value_text(self.kind, self.data)


# A subscriber's side of the connection.


def encode_id(client_id: bytes) -> bytes:
    """A subscriber's first bytes. Raises ValueError."""
    if not 1 <= len(client_id) <= ID_CHARACTERS_MAX or not _is_printable(client_id):
        raise ValueError(f"an id is 1 to {ID_CHARACTERS_MAX} printable ASCII characters")
    return client_id.ljust(ID_BYTES, b"\0")


def decode_id(field: Buffer) -> bytes:
    """The id in these 11 bytes; bytes after its first NUL are ignored. Raises RemoteProtocolError."""
    client_id, end, _ = bytes(field).partition(b"\0")
    if not end or not client_id or not _is_printable(client_id):
        text = f"the first {ID_BYTES} bytes are no client id; a login comes behind it"
        raise RemoteProtocolError(
            text, fault=Fault.ID
        )  # the text leaves the bytes out: they may be part of a login
    return client_id


def encode_command(command: Command, topic: bytes = b"") -> bytes:
    """A subscriber's command. Raises ValueError."""
    return bytes([command]) + _topic(topic).ljust(TOPIC_BYTES_MAX + 1, b"\0")


def encode_login(user: str, password: str) -> bytes:
    """The login, which a subscriber sends after its id where the server requires one.

    Raises ValueError, whose text shows no password.
    """
    topic = f"{user}:{password}".encode()
    if not user or ":" in user or len(topic) > TOPIC_BYTES_MAX or b"\0" in topic:
        raise ValueError(
            f"a login of pub/sub, user:password, has at most {TOPIC_BYTES_MAX} bytes, none of them NUL; "
            "longer ones need a client certificate"
        )
    return encode_command(Command.LOGIN, topic)


def encode_since(minutes: int, pattern: bytes) -> bytes:
    """The command to subscribe from so many minutes ago on. Raises ValueError."""
    if not 0 <= minutes <= SINCE_MINUTES_MAX:
        raise ValueError(f"{minutes} minutes; from 0 to {SINCE_MINUTES_MAX} can be asked for")
    topic = b"%d:%b" % (minutes, pattern)
    if len(topic) > TOPIC_BYTES_MAX:
        raise ValueError(
            f"minutes and pattern have at most {TOPIC_BYTES_MAX} bytes, with a colon between them"
        )
    return encode_command(Command.LOGIN, topic)


def since_minutes(since: str | float, now_ms: int) -> int:
    """The whole minutes, rounded up, of a time: seconds ago, or text as `10m`, `2h` or ISO 8601.

    Raises ValueError.
    """
    seconds = (now_ms - moment_ms(since, now_ms)) / 1000 if isinstance(since, str) else since
    if not 0 <= seconds <= 60 * SINCE_MINUTES_MAX:
        raise ValueError(f"since {since}: it is in the past, and at most {SINCE_MINUTES_MAX} minutes ago")
    return math.ceil(seconds / 60)


def encode_past(minutes: int, pattern: bytes, *, keep: bool) -> bytes:
    """As `encode_since`; without `keep` nothing is kept while the client is away. Raises ValueError."""
    return encode_since(minutes, pattern) + (b"" if keep else encode_command(Command.SUBSCRIBE, pattern))


def decode_since(topic: bytes, *, may_log_in: bool) -> tuple[int, bytes] | None:
    """Minutes and pattern of a command of type 4. None: it begins with no number, and a client `may_log_in`.

    Raises RemoteProtocolError, whose text shows no password.
    """
    minutes, colon, pattern = topic.partition(b":")
    is_number = minutes.removeprefix(b"-").isdigit()
    if may_log_in and not is_number:
        return None
    if not colon or not minutes.isdigit() or len(minutes) > 6 or int(minutes) > SINCE_MINUTES_MAX:
        raise RemoteProtocolError(
            f"a subscription from the past is <minutes>:<pattern>, with 0 to {SINCE_MINUTES_MAX} minutes"
            + (f", not {printable(minutes)}" if is_number else ""),
            fault=Fault.SINCE,
        )
    return int(minutes), pattern


def decode_command(data: Buffer, at: int) -> tuple[int, bytes] | None:
    """The command at `at` as (type, topic); None while it is not whole. Raises RemoteProtocolError.

    An unknown type is an error before its topic is there.
    """
    command = data[at]
    if command > Command.LOGIN:
        raise RemoteProtocolError(f"{command} is no command", fault=Fault.COMMAND)
    end = at + COMMAND_BYTES
    if end > len(data):
        return None
    topic, nul, _ = bytes(data[at + 1 : end]).partition(b"\0")
    if not nul and command != Command.DISCONNECT:
        shown = "of a login" if command == Command.LOGIN else printable(topic)
        raise RemoteProtocolError(f"the topic {shown} has no end", fault=Fault.TOPIC)
    return command, topic


# A publisher's datagrams.


def datagram(topic: bytes, kind: Kind, payload: bytes) -> bytes:
    """A publisher's datagram. Raises ValueError."""
    if not PAYLOAD_BYTES_MIN[kind] <= len(payload) <= PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes")
    return _topic(topic).ljust(TOPIC_BYTES_MAX, b"\0") + bytes([kind]) + payload


def int_payload(value: int) -> bytes:
    """Raises ValueError."""
    return _signed(value, "an INT")


def short_real_payload(value: Decimal) -> bytes:
    """0 to 655.35, two decimals at most. Raises ValueError."""
    hundredths = value * 100 if value.is_finite() else Decimal(-1)
    if hundredths != hundredths.to_integral_value() or not 0 <= hundredths <= U16_MAX:
        raise ValueError(f"a SHORT_REAL is 0 to 655.35 with two decimals at most, not {value}")
    return int(hundredths).to_bytes(2, "big")


def float_payload(value: Decimal) -> bytes:
    """A FLOAT with all its written digits, trailing zeros included. Raises ValueError."""
    if not value.is_finite():
        raise ValueError("a FLOAT is a decimal number")
    negative, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if exponent < -EXPONENT_MAX or exponent > len(str(U32_MAX)):
        raise ValueError(f"a FLOAT has at most {EXPONENT_MAX} decimals, and {U32_MAX} as its digits")
    written = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return _signed(-written if negative else written, "a FLOAT's digits") + bytes([max(-exponent, 0)])


def string_payload(text: bytes) -> bytes:
    """Raises ValueError."""
    if len(text) > PAYLOAD_BYTES_MAX or b"\0" in text:
        raise ValueError(f"a STRING has at most {PAYLOAD_BYTES_MAX} bytes, none of them NUL")
    return text


def payload_of(kind: Kind, text: str) -> bytes:
    """The payload that prints as `text`. Raises ValueError."""
    if kind is Kind.STRING:
        return string_payload(text.encode("utf-8", "surrogateescape"))
    try:
        value = Decimal(text)
        if kind is Kind.INT and value == value.to_integral_value():
            return int_payload(int(max(min(value, Decimal(U32_MAX + 1)), Decimal(-U32_MAX - 1))))
        if kind is Kind.SHORT_REAL:
            return short_real_payload(value)
        if kind is Kind.FLOAT:
            return float_payload(value)
    except ArithmeticError:
        pass
    raise ValueError(f"{text!r} is no {kind.name}")


# What the server sends.


def frame(sender: bytes, topic: bytes, kind: int, data: bytes) -> bytes:
    """The frame with which a subscriber gets a message."""
    return b"".join(
        (
            sender.ljust(SENDER_BYTES, b"\0"),
            topic.ljust(TOPIC_BYTES_MAX + 1, b"\0"),
            bytes([kind]),
            data.ljust(PAYLOAD_BYTES_MAX + 1, b"\0"),
        )
    )


def frame_topic(frame: bytes) -> bytes:
    """The topic of a frame, which may lack its padding."""
    return frame[TOPIC_AT:TYPE_AT].partition(b"\0")[0]


def frame_sender(frame: bytes) -> bytes:
    """The sender's address in a frame, as text."""
    return frame[:SENDER_BYTES].partition(b"\0")[0]


def take_frames(data: Buffer) -> tuple[list[Message], int]:
    """Every whole frame at the front of `data`, and where they end."""
    found = []
    end = len(data) - len(data) % FRAME_BYTES
    for at in range(0, end, FRAME_BYTES):
        sender = bytes(data[at : at + SENDER_BYTES]).partition(b"\0")[0]
        topic = bytes(data[at + TOPIC_AT : at + TYPE_AT]).partition(b"\0")[0]
        payload = bytes(data[at + DATA_AT : at + FRAME_BYTES])
        found.append(Message(sender.decode("ascii", "backslashreplace"), topic, data[at + TYPE_AT], payload))
    return found, end


def value_text(kind: int, data: bytes) -> bytes:
    """The printed form of a payload. Raises RemoteProtocolError."""
    if kind == Kind.STRING:
        return data.partition(b"\0")[0]
    if kind not in PAYLOAD_BYTES_MIN or len(data) < PAYLOAD_BYTES_MIN[kind]:
        raise RemoteProtocolError(f"a message of type {kind} with {len(data)} bytes", fault=Fault.COMMAND)
    if kind == Kind.SHORT_REAL:
        value = int.from_bytes(data[:2], "big")
        return b"%d.%02d" % divmod(value, 100)
    digits = int.from_bytes(data[1:5], "big")
    sign = b"-" if data[0] and digits else b""
    decimals = data[5] if kind == Kind.FLOAT else 0
    if not decimals:
        return b"%b%d" % (sign, digits)
    text = b"%0*d" % (decimals + 1, digits)
    return b"%b%b.%b" % (sign, text[:-decimals], text[-decimals:])


def line(message: Message) -> bytes:
    """A message as a subscriber prints it, without the line's end. Raises RemoteProtocolError."""
    value = message.value
    return b"%b - %b - %b - %b" % (
        message.sender.encode(),
        message.topic,
        Kind(message.kind).name.encode(),
        value,
    )


def _signed(value: int, what: str) -> bytes:
    if abs(value) > U32_MAX:
        raise ValueError(f"{what} is -{U32_MAX} to {U32_MAX}")
    return bytes([value < 0]) + abs(value).to_bytes(4, "big")


def _topic(topic: bytes) -> bytes:
    if len(topic) > TOPIC_BYTES_MAX or b"\0" in topic:
        raise ValueError(f"a topic has at most {TOPIC_BYTES_MAX} bytes, none of them NUL")
    return topic


def _is_printable(text: bytes) -> bool:
    return all(0x20 <= byte <= 0x7E for byte in text)
