"""Lines of programs that do not know pub/sub: the topics that they get, and how syslog frames them over TCP.

Source: PROTOCOL.md, "Lines of other programs". No I/O, no state.
"""

import re
from collections.abc import Callable, Iterable

import attrs

from pubsub.wire import PAYLOAD_BYTES_MAX, TOPIC_BYTES_MAX, Fault
from shared.errors import RemoteProtocolError

MESSAGE_BYTES_MAX = 64 * 1024
"""Bytes of a syslog message over TCP. One above 1500 is read and dropped. Above this limit its end
is no longer looked for, and the connection is closed."""
HOST_BYTES_MAX = 18
APP_BYTES_MAX = 15
"""With `syslog/authpriv/` and a slash they fill a topic. Linux cuts names of programs at 15 bytes, too."""

FACILITIES = (
    *(
        b"kern",
        b"user",
        b"mail",
        b"daemon",
        b"auth",
        b"syslog",
        b"lpr",
        b"news",
        b"uucp",
        b"cron",
        b"authpriv",
    ),
    *(b"ftp", b"ntp", b"audit", b"alert", b"clock"),
    *(b"local%d" % number for number in range(8)),
)
"""By number: RFC 5424, 6.2.1, in the words of syslog.conf."""
_PRIORITY = rb"<(0|[1-9]\d{0,2})>"
_NEW = re.compile(_PRIORITY + rb"[1-9]\d{0,2} \S+ (\S+) (\S+) ")
"""RFC 5424: priority and version, time, host, app."""
_OLD = re.compile(
    _PRIORITY
    + rb"(?:(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{5,40}) "
    + rb"(?:([^\s\[]{0,254}[^\s\[:]) )?)?"
    + rb"(?:([^\s\[:]{1,128})[\[:])?"
)
"""RFC 3164 as it is sent: a time (also RFC 5424's) and a host, or neither; then the app before `[` or `:`."""
_NIL = b"-"
_OTHER = re.compile(rb"[^A-Za-z0-9._-]")
_LENGTH = re.compile(rb"[1-9]\d{0,4} ")


@attrs.frozen
class LineKind:
    """A kind of lines. `splits`: a datagram may hold several.

    `topic(line, host)`: the topic of a line that came from `host`; None: the line is not of this kind.
    """

    name: str
    topic: Callable[[bytes, bytes], bytes | None]
    splits: bool = True

    def lines(self, data: bytes) -> Iterable[bytes]:
        """The lines in a datagram, without their ends; empty ones are left out."""
        parts = data.split(b"\n") if self.splits else (data,)
        return filter(None, (part.rstrip(b"\r\n\0") for part in parts))

    def message(self, line: bytes, host: bytes) -> tuple[bytes, bytes] | str:
        """Topic and payload of a line; or the word that says why it is none."""
        if len(line) > PAYLOAD_BYTES_MAX:
            return "long"
        topic = self.topic(line, host)
        if topic is None:
            return "malformed"
        if len(topic) > TOPIC_BYTES_MAX:
            return "topic"
        return topic, line.replace(b"\0", b" ")


def level(text: bytes) -> bytes:
    """A level of a topic: each byte that is no letter, digit, `.`, `_` or `-` becomes `_`."""
    return _OTHER.sub(b"_", text)


def _plain_topic(line: bytes, host: bytes) -> bytes | None:
    return b"lines/" + level(host)


def _syslog_topic(line: bytes, host: bytes) -> bytes | None:
    match = _NEW.match(line) or _OLD.match(line)
    if match is None or int(match[1]) >= 8 * len(FACILITIES):
        return None
    said, app = match[2] or _NIL, match[3] or _NIL
    return b"/".join(
        (
            b"syslog",
            FACILITIES[int(match[1]) >> 3],
            level(host if said == _NIL else said)[:HOST_BYTES_MAX],
            level(app)[:APP_BYTES_MAX],
        )
    )


def _statsd_topic(line: bytes, host: bytes) -> bytes | None:
    name, colon, rest = line.partition(b":")
    if not (name and colon and b"|" in rest):
        return None
    return b"statsd/" + level(name).replace(b".", b"/")


LINES = LineKind("lines", _plain_topic)
SYSLOG = LineKind("syslog", _syslog_topic, splits=False)
STATSD = LineKind("statsd", _statsd_topic)


def syslog_frame(data: bytes, at: int) -> tuple[int, int, int]:
    """Where the syslog message at `at` starts and stops, and where the next one begins: RFC 6587, both ways.

    A message that is not whole ends behind `data`, at the most it can. Raises RemoteProtocolError.
    """
    most = at + MESSAGE_BYTES_MAX
    if data[at : at + 1] == b"<":
        stop = data.find(b"\n", at, most)
        if stop >= 0:
            return at, stop, stop + 1
        if len(data) < most:
            return at, most, most
        raise RemoteProtocolError(f"a message of more than {MESSAGE_BYTES_MAX} bytes", fault=Fault.SYSLOG)
    length = _LENGTH.match(data, at)
    if length is not None:
        stop = length.end() + int(length[0])
        if stop <= most:
            return length.end(), stop, stop
        raise RemoteProtocolError(f"a message of {int(length[0])} bytes", fault=Fault.SYSLOG)
    if data[at : at + 6].isdigit() and len(data) - at < 6 and data[at : at + 1] != b"0":
        return at, len(data) + 1, len(data) + 1
    raise RemoteProtocolError("neither a length nor <priority> begins a message", fault=Fault.SYSLOG)
