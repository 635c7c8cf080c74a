"""LogMQ's lines: bytes to requests and replies, and back, for client and server. No I/O, no state.

Source: PROTOCOL.md, "Requests" and "Replies". A server reads most PRODUCE and CONSUME lines as runs
(`logmq.runs`). All other lines go through `split_request` and the checks below.
"""

import re
from enum import StrEnum
from types import MappingProxyType

import attrs

from shared.budget import Account, OverBudget
from shared.errors import (
    BeyondEnd,
    BrokerError,
    BucketAway,
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
"""A refused body up to this size is read and discarded. A larger one closes the connection."""

_NAME = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_DIGITS_MAX = 19  # of 2^63 - 1


class Code(StrEnum):
    """The first word of an ERR line."""

    SYNTAX = "SYNTAX"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    BAD_TOPIC = "BAD_TOPIC"
    BAD_OFFSET = "BAD_OFFSET"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    NO_TOPIC = "NO_TOPIC"
    TOO_LARGE = "TOO_LARGE"
    NO_COMMIT = "NO_COMMIT"
    STORAGE = "STORAGE"
    BUCKET = "BUCKET"
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
    """A request of the grammar. `least`, `most`: the number of fields behind its word."""

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
"""By word. `split_request` is not for PRODUCE and AUTH: messages and passwords may contain spaces, and a
message may be empty."""

TLS_BEGINS = b"\x16"
"""The first byte of a TLS handshake. No request begins with it."""
_HTTP = re.compile(rb" HTTP/[0-9.]+ *$")

HELP_LINE = ("HELP " + " | ".join(request.usage for request in REQUESTS.values()) + "\n").encode()


_FIELDS_MAX = max(request.most for request in REQUESTS.values())


def split_request(line: bytes) -> tuple[bytes, list[bytes]]:
    """The word and fields of a request's line, which has no line end. Raises Refusal."""
    word, *fields = line.split(b" ", _FIELDS_MAX + 1)
    request = REQUESTS.get(word)
    if request is None:
        if not line:
            raise Refusal(Code.SYNTAX, "an empty line is no request; HELP lists what is understood")
        raise Refusal(Code.UNKNOWN_COMMAND, f"{printable(word)}; HELP lists what is understood")
    if not request.least <= len(fields) <= request.most:
        raise Refusal(Code.SYNTAX, f"expected {request.usage}, fields one space apart")
    return word, fields


def looks_like_http(line: bytes) -> bool:
    """Whether a line, without its end, is the first of an HTTP request, or its Host field.

    Every browser sends both before the body, which a web page may choose. The method proves nothing: a page
    may choose that, too.
    """
    return _HTTP.search(line, max(0, len(line) - 16)) is not None or line[:5].lower() == b"host:"


def number_untrusted(field: bytes, name: str) -> int:
    """A decimal number from 0 to 2^63-1. `name`: for the text of a Refusal (SYNTAX)."""
    if field.isdigit():  # for bytes: only 0 to 9
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
    """The name of a group or writer, by the rules for topics. Raises Refusal (SYNTAX)."""
    if _NAME.fullmatch(name) is None:
        raise Refusal(Code.SYNTAX, f"{what} {printable(name)}: {_NAMES}")
    return name.decode("ascii")


_NAMES = "a name is 1 to 200 of A-Z a-z 0-9 . _ - and does not start with a dot"


def check_memory(memory: Account, size: int, user: str = "") -> None:
    """Raise Refusal if the budget, or the user's share of it, has no room for `size` bytes more."""
    try:
        memory.check(size, user)
    except OverBudget as error:
        raise Refusal(Code.LIMIT, str(error)) from None


def refusal_for(error: StoreError | Refusal) -> Refusal:
    """The refusal for an error of the store. A refusal is its own."""
    match error:
        case Refusal():
            return error
        case OutOfRange(first=first):
            return Refusal(Code.OUT_OF_RANGE, f"the first kept offset is {first}")
        case BeyondEnd():
            return Refusal(Code.OUT_OF_RANGE, str(error))
        case NotARecord(below=below):
            return Refusal(Code.BAD_OFFSET, f"not the start of a record; the nearest below is {below}")
        case LogDeleted():
            return Refusal(Code.NO_TOPIC, "the topic was deleted")
        case CorruptRecord(offset=offset):
            return Refusal(Code.STORAGE, f"damaged bytes at offset {offset}{error.goes_on}; see brokers fsck")
        case BucketAway():
            return Refusal(Code.BUCKET, " ".join(str(error).split()))
        case _:
            return Refusal(Code.STORAGE, " ".join(str(error).split()) or type(error).__name__)


def no_topic(name: str) -> Refusal:
    return Refusal(Code.NO_TOPIC, f"{name} does not exist; the first write makes it")


def too_large(what: str, size: int | None, limit: int) -> Refusal:
    got = "" if size is None else f" of {size} bytes"
    return Refusal(Code.TOO_LARGE, f"{what}{got} is above the limit of {limit}")


def chunk_line(offset: int, length: int) -> bytes:
    """The line before `length` raw bytes, which are whole records from `offset` on."""
    return b"CHUNK %d %d %d\n" % (offset, length, offset + length)
