"""LogMQ's lines: bytes to requests and replies, and back. No I/O, no state; both ends use it.

Source: PROTOCOL.md, "Requests" and "Replies". A server reads most PRODUCE and CONSUME lines in runs instead
(`logmq.runs`); everything else goes through `split_request` and the checks below.
"""

import re
from enum import StrEnum
from types import MappingProxyType

import attrs

from shared.errors import (
    BrokerError,
    CorruptRecord,
    LogDeleted,
    NotARecord,
    OutOfRange,
    StoreError,
    printable,
)

NUMBER_MAX = 2**63 - 1
NAME_BYTES_MAX = 200
SKIPPED_BODY_BYTES_MAX = 64 * 1024 * 1024
"""A refused body up to this is read and thrown away; a larger one closes the connection."""

_NAME = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_DIGITS_MAX = 19  # of 2^63 - 1


class Code(StrEnum):
    """What an ERR line says first."""

    SYNTAX = "SYNTAX"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    BAD_TOPIC = "BAD_TOPIC"
    BAD_OFFSET = "BAD_OFFSET"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    NO_TOPIC = "NO_TOPIC"
    TOO_LARGE = "TOO_LARGE"
    NO_COMMIT = "NO_COMMIT"
    STORAGE = "STORAGE"
    LIMIT = "LIMIT"
    DENIED = "DENIED"


@attrs.define(eq=False)
class Refusal(BrokerError):
    """A request that is answered with an ERR line."""

    code: Code
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"

    @property
    def line(self) -> bytes:
        return f"ERR {self.code} {self.text}\n".encode()


@attrs.frozen
class Request:
    """One command of the grammar. `fields` counts what follows the word, least and most."""

    usage: str
    least: int
    most: int


def _request(usage: str) -> Request:
    fields = usage.split()[1:]
    return Request(usage, sum(not field.startswith("[") for field in fields), len(fields))


REQUESTS: MappingProxyType[bytes, Request] = MappingProxyType(
    {
        usage.split()[0].encode(): _request(usage)
        for usage in (
            "PRODUCE <topic> <message>",
            "CONSUME <topic> <offset>",
            "APPEND <topic> <length>",
            "FETCH <topic> <offset> <max-bytes> [<wait-ms>]",
            "MARKS <topic> <from> <to>",
            "BATCH <topic> <writer> <seq> <length>",
            "TAIL <topic> <offset>",
            "OFFSETS <topic>",
            "SEEK <topic> <unix-ms>",
            "TOPICS",
            "COMMIT <group> <topic> <offset>",
            "COMMITTED <group> <topic>",
            "DELETE <topic>",
            "AUTH <user> <password>",
            "PING",
            "HELP",
            "QUIT",
        )
    }
)
"""By word. PRODUCE's message may be empty and hold spaces, as AUTH's password may, so these two are not split
by `split_request`."""

TLS_BEGINS = b"\x16"
"""A TLS handshake, which no request begins with."""
_HTTP = re.compile(rb" HTTP/[0-9.]+ *$")

HELP_LINE = ("HELP " + " | ".join(request.usage for request in REQUESTS.values()) + "\n").encode()


_FIELDS_MAX = max(request.most for request in REQUESTS.values())


def split_request(line: bytes) -> tuple[bytes, list[bytes]]:
    """The word and the fields of a request's line (without its end). Raises Refusal."""
    word, *fields = line.split(b" ", _FIELDS_MAX + 1)
    request = REQUESTS.get(word)
    if request is None:
        if not line:
            raise Refusal(Code.SYNTAX, "an empty line is no request; HELP lists what is understood")
        raise Refusal(Code.UNKNOWN_COMMAND, f"{printable(word)}; HELP lists what is understood")
    if not request.least <= len(fields) <= request.most:
        raise Refusal(Code.SYNTAX, f"expected {request.usage}, fields one space apart")
    return word, fields


def begins_http(line: bytes) -> bool:
    """Whether the first line of a connection is one of HTTP.

    DELETE is a word of both protocols, so our words do not settle it. A message may be any text: PRODUCE to
    what can be a topic is ours, which HTTP's second field cannot be.
    """
    if not looks_like_http(line):
        return False
    word, _, rest = line.partition(b" ")
    return word != b"PRODUCE" or _NAME.fullmatch(rest.partition(b" ")[0]) is None


def looks_like_http(line: bytes) -> bool:
    """Whether a line (without its end) is the first of an HTTP request, or its host field.

    Every browser sends both before the body, which the page that it shows has written.
    """
    return _HTTP.search(line, max(0, len(line) - 16)) is not None or line[:5].lower() == b"host:"


def number_untrusted(field: bytes, name: str) -> int:
    """A decimal number from 0 to 2^63-1. Raises Refusal (SYNTAX), which calls it `name`."""
    if field.isdigit():  # of bytes: 0 to 9 alone
        digits = field if len(field) <= _DIGITS_MAX else field.lstrip(b"0")
        if len(digits) <= _DIGITS_MAX:
            value = int(digits or b"0")
            if value <= NUMBER_MAX:
                return value
    raise Refusal(Code.SYNTAX, f"{name} {printable(field)} is not a number from 0 to 2^63-1, in digits")


def topic_untrusted(name: bytes) -> str:
    """A topic's name as text. Raises Refusal (BAD_TOPIC)."""
    if _NAME.fullmatch(name) is None:
        raise Refusal(Code.BAD_TOPIC, f"{printable(name)}: {_NAMES}")
    return name.decode("ascii")


def name_untrusted(name: bytes, what: str) -> str:
    """The name of a group or a writer: made like a topic's. Raises Refusal (SYNTAX)."""
    if _NAME.fullmatch(name) is None:
        raise Refusal(Code.SYNTAX, f"{what} {printable(name)}: {_NAMES}")
    return name.decode("ascii")


_NAMES = "a name is 1 to 200 of A-Z a-z 0-9 . _ - and does not start with a dot"


def refusal_for(error: StoreError) -> Refusal:
    """The refusal that tells a peer about an error of the storage core."""
    match error:
        case OutOfRange(first=first):
            return Refusal(Code.OUT_OF_RANGE, f"the first kept offset is {first}")
        case NotARecord(below=below):
            return Refusal(Code.BAD_OFFSET, f"not the start of a record; the nearest below is {below}")
        case LogDeleted():
            return Refusal(Code.NO_TOPIC, "the topic was deleted")
        case CorruptRecord(offset=offset):
            return Refusal(Code.STORAGE, f"damaged bytes at offset {offset}; see brokers fsck")
        case _:
            return Refusal(Code.STORAGE, " ".join(str(error).split()) or type(error).__name__)


def no_topic(name: str) -> Refusal:
    return Refusal(Code.NO_TOPIC, f"{name} does not exist; the first write makes it")


def too_large(what: str, size: int | None, limit: int) -> Refusal:
    got = "" if size is None else f" of {size} bytes"
    return Refusal(Code.TOO_LARGE, f"{what}{got} is above the limit of {limit}")


def chunk_line(offset: int, length: int) -> bytes:
    """What stands before `length` raw bytes of whole records from `offset` on."""
    return b"CHUNK %d %d %d\n" % (offset, length, offset + length)
