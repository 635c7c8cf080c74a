"""Lines of other programs: their topics, and where syslog's messages end in a stream."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.lines import LINES, MESSAGE_BYTES_MAX, STATSD, SYSLOG, LineKind, syslog_frame
from shared.errors import RemoteProtocolError

HOST = b"192.0.2.7"
KINDS = st.sampled_from((LINES, SYSLOG, STATSD))
ALMOST = st.one_of(
    st.binary(max_size=80),
    st.text("<>0129 :[]|/*+.-TZJan", max_size=80).map(str.encode),
    st.text("ab:|./ ", max_size=60).map(lambda text: b"<13>1 " + text.encode()),
)
"""Bytes of any kind, and of the kind that looks like a line."""


@pytest.mark.parametrize(
    ("line", "topic"),
    [
        # The examples of RFC 5424, 6.5, and of RFC 3164, 5.4.
        (b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - x", "auth/mymachine.example./su"),
        (b"<165>1 2003-08-24T05:14:15-07:00 192.0.2.1 myproc 8710 - - %% It", "local4/192.0.2.1/myproc"),
        (b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick", "auth/mymachine/su"),
        (b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!", "user/10.0.0.99/-"),
        # Without a time, without a host, with RFC 5424's time, with neither host nor app, and rsyslog's.
        (b"<13>cron[12]: hello", "user/192.0.2.7/cron"),
        (b"<13>Oct 11 22:14:15 su: hello", "user/192.0.2.7/su"),
        (b"<78>2026-03-01T09:30:00+01:00 db-1 CRON[7]: x", "cron/db-1/CRON"),
        (b"<86>Oct 11 22:14:15 fe80::1 sshd[9]: x", "authpriv/fe80__1/sshd"),
        (b"<191>1 - - - - - -", "local7/192.0.2.7/-"),
        (b"<0>", "kern/192.0.2.7/-"),
        # No character of a topic's own syntax, and neither part is too long.
        (b"<13>1 - a/*/+ \xc3\xbc#b - - -", "user/a____/___b"),
        (b"<13>1 - hhhhhhhhhhhhhhhhhhhhh aaaaaaaaaaaaaaaaaaaaa - - -", "user/" + 18 * "h" + "/" + 15 * "a"),
    ],
)  # fmt: skip
def test_a_syslog_message_has_its_facility_host_and_app_in_its_topic(line: bytes, topic: str) -> None:
    assert SYSLOG.message(line, HOST) == (f"syslog/{topic}".encode(), line)


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"<", b"<13", b"<013>x", b"<192>x", b"<1000>x", b"< 1>x", b"GET / HTTP/1.1"]
)
def test_a_line_without_a_priority_is_no_syslog(line: bytes) -> None:
    assert SYSLOG.message(line, HOST) == "malformed"


@pytest.mark.parametrize(
    ("line", "made"),
    [
        (b"web.hits:1|c|@0.1|#zone:a", (b"statsd/web/hits", b"web.hits:1|c|@0.1|#zone:a")),
        (b"a b/*:+3|g", (b"statsd/a_b__", b"a b/*:+3|g")),
        (b"x" * 43 + b":1|c", (b"statsd/" + b"x" * 43, b"x" * 43 + b":1|c")),
        (b"x" * 44 + b":1|c", "topic"),
        (b":1|c", "malformed"),
        (b"x|c", "malformed"),
        (b"x:1", "malformed"),
    ],
)
def test_a_metric_has_its_name_as_topic_a_level_for_each_dot(line: bytes, made: object) -> None:
    assert STATSD.message(line, HOST) == made


def test_a_plain_line_has_its_senders_address_as_topic() -> None:
    assert LINES.message(b"any text: \0|", b"::1") == (b"lines/__1", b"any text:  |")
    assert LINES.message(b"x" * 1500, HOST) == (b"lines/192.0.2.7", b"x" * 1500)
    assert LINES.message(b"x" * 1501, HOST) == "long"


def test_a_datagram_may_hold_several_lines_but_only_one_syslog_message() -> None:
    data = b"\na:1|c\r\nb:2|c\n\n"
    assert list(STATSD.lines(data)) == list(LINES.lines(data)) == [b"a:1|c", b"b:2|c"]
    assert list(SYSLOG.lines(b"<13>one\ntwo\n\0")) == [b"<13>one\ntwo"]
    assert list(SYSLOG.lines(b"\n")) == []


@given(KINDS, ALMOST, st.binary(max_size=60))
def test_a_topic_is_made_of_harmless_characters_or_the_line_is_dropped(
    kind: LineKind, line: bytes, host: bytes
) -> None:
    made = kind.message(line, host)
    if isinstance(made, str):
        assert made in ("malformed", "topic", "long")
    else:
        topic, payload = made
        assert re.fullmatch(rb"[A-Za-z0-9._/-]{1,50}", topic)
        assert topic.count(b"/") == 3 or kind is not SYSLOG
        assert payload == line.replace(b"\0", b" ")


def messages_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """What comes out of a stream that is read in pieces."""
    found = []
    at = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        there = data[:end]
        while at < end:
            start, stop, after = syslog_frame(there, at)
            if after > end:
                break
            found.append(data[start:stop])
            at = after
    assert at == len(data)
    return found


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=200))), st.lists(st.integers(0, 10_000), max_size=5)
)
def test_messages_framed_in_either_way_come_out_wherever_reads_cut_them(
    messages: list[tuple[bool, bytes]], cuts: list[int]
) -> None:
    said = [b"<13>" + (text if counted else text.replace(b"\n", b" ")) for counted, text in messages]
    data = b"".join(
        b"%d %b" % (len(text), text) if counted else text + b"\n"
        for (counted, _), text in zip(messages, said, strict=True)
    )
    assert messages_of(data, cuts) == said


@given(ALMOST)
def test_garbage_in_a_stream_is_a_protocol_error_or_waits_for_more(data: bytes) -> None:
    at = 0
    try:
        while at < len(data):
            start, stop, after = syslog_frame(data, at)
            assert at <= start <= stop <= after <= at + MESSAGE_BYTES_MAX
            assert after > at
            at = after
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("start", [b"99999 ", b"65536 ", b"123456", b"0", b"01 x", b"x", b"1x", b"\n"])
def test_a_stream_whose_messages_cannot_be_found_is_refused_at_once(start: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        syslog_frame(start, 0)


def test_a_line_without_an_end_is_refused_once_it_is_too_long() -> None:
    line = b"<13>" + b"x" * MESSAGE_BYTES_MAX
    assert syslog_frame(line[: MESSAGE_BYTES_MAX - 1], 0)[2] == MESSAGE_BYTES_MAX
    with pytest.raises(RemoteProtocolError):
        syslog_frame(line, 0)
