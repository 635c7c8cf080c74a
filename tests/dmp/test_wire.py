"""DMP's bytes without a session: short strings, envelopes of both revisions, every cut, every lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from dmp import wire
from dmp.data_types import short, take_short
from dmp.properties import NO_PROPERTIES
from dmp.wire import Message, MessageOptions, Reply
from shared.errors import RemoteProtocolError

SPEC = bytes.fromhex(
    "00000018"  # 24 bytes follow
    "0471756f74"  # exchange: "quot"
    "036b6579"  # key: "key"
    "0000"  # no properties
    "00000009 68656c6c6f20646d70"  # body: "hello dmp"
)
names = st.binary(max_size=255)
properties = st.sampled_from(
    [
        NO_PROPERTIES,
        commands.Basic.Properties(delivery_mode=2).marshal(),
        commands.Basic.Properties(content_type="text/plain", headers={"a": 1, "b": {"c": "d"}}).marshal(),
        commands.Basic.Properties(message_id="x" * 200, correlation_id="", priority=0).marshal(),
    ]
)
messages = st.builds(
    Message,
    names,
    names,
    st.binary(max_size=300),
    properties,
    st.sampled_from(
        [MessageOptions(0), MessageOptions.IMMEDIATE, MessageOptions.MANDATORY, MessageOptions(3)]
    ),
)


def test_the_envelope_is_the_specifications() -> None:
    assert wire.message(Message(b"quot", b"key", b"hello dmp")) == SPEC
    assert wire.take_messages(SPEC) == ([Message(b"quot", b"key", b"hello dmp")], len(SPEC))


def test_the_smallest_message_is_twelve_octets_beside_its_names_lengths() -> None:
    assert wire.message(Message(b"", b"", b"")) == bytes.fromhex("00000008 00 00 0000 00000000")


def test_the_later_revision_puts_options_into_the_first_byte_of_the_length() -> None:
    data = wire.message(Message(b"", b"", b"abc", options=MessageOptions.MANDATORY))
    assert data == bytes.fromhex("0000000b 00 00 0000 02 000003") + b"abc"
    assert wire.take_messages(data)[0][0].options is MessageOptions.MANDATORY


def test_options_that_nobody_knows_are_not_looked_at() -> None:
    data = bytes.fromhex("0000000b 00 00 0000 fc 000003") + b"abc"
    assert wire.take_messages(data) == ([Message(b"", b"", b"abc")], len(data))


@given(st.lists(messages, max_size=5), st.data())
def test_what_is_packed_is_read_again_from_every_cut(given_: list[Message], data: st.DataObject) -> None:
    whole = b"".join(wire.message(message) for message in given_)
    assert wire.take_messages(whole) == (given_, len(whole))
    cut = data.draw(st.integers(0, len(whole)))
    first, end = wire.take_messages(whole[:cut])
    second, _ = wire.take_messages(whole[end:])
    assert end <= cut
    assert first + second == given_


@given(messages, st.integers(1, 64))
def test_a_size_that_lies_is_an_error_never_another_message(message: Message, off: int) -> None:
    """Whatever else stands behind it: surplus bytes inside, or a body that is cut."""
    data = bytearray(wire.message(message))
    size = int.from_bytes(data[:4], "big")
    for lie in (size + off, size - off):
        if lie <= 0:
            continue
        data[:4] = lie.to_bytes(4, "big")
        with pytest.raises(RemoteProtocolError) as error:
            wire.take_messages(bytes(data) + bytes(off))
        assert error.value.fault == "dmp SYNTAX_ERROR"


@given(st.binary(max_size=200))
def test_garbage_is_messages_or_an_error(data: bytes) -> None:
    try:
        found, end = wire.take_messages(data)
    except RemoteProtocolError as error:
        refused = error
    else:
        refused = None
        assert end <= len(data)
        rest = data[end:]
        assert len(rest) < 4 or len(rest) < 4 + int.from_bytes(rest[:4], "big")
        assert all(len(message.key) < 256 for message in found)
    assert refused is None or refused.reply[1:].startswith(b"502 SYNTAX-ERROR ")


@pytest.mark.parametrize("size", [1, 7, (1 << 24) + (1 << 18), 0xFFFFFFFF])
def test_a_size_that_no_message_has_is_refused_before_the_rest_has_come(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"size {size}"):
        wire.take_messages(size.to_bytes(4, "big"))


def test_the_largest_body_fits_and_one_more_byte_does_not() -> None:
    size_max = wire.size_max_of(wire.BODY_BYTES_MAX)
    largest = wire.envelope(b"e" * 255, b"k" * 255, NO_PROPERTIES, wire.BODY_BYTES_MAX)
    assert wire.end_of(largest, 0, size_max) == len(largest) + wire.BODY_BYTES_MAX
    with pytest.raises(RemoteProtocolError, match="at most"):
        wire.take_messages(wire.message(Message(b"", b"", b"abcd")), body_bytes_max=3)


def test_null_messages_are_ignored() -> None:
    one = wire.message(Message(b"", b"k", b"x"))
    data = wire.NULL_MESSAGE + one + wire.NULL_MESSAGE * 2 + one
    found, end = wire.take_messages(data)
    assert [message.body for message in found] == [b"x", b"x"]
    assert end == len(data)


@given(messages)
def test_an_envelope_says_what_was_put_in_it(message: Message) -> None:
    data = wire.message(message)
    before = data[: len(data) - len(message.body)]
    assert wire.read_envelope(before) == (
        message.exchange,
        message.key,
        message.properties,
        len(message.body),
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=30))
def test_runs_are_the_messages_again(shapes: list[tuple[int, int]]) -> None:
    given_ = [Message(b"", b"key%d" % kind, bytes(size)) for kind, size in shapes]
    data = b"".join(wire.message(message) for message in given_)
    found = wire.runs(data)
    again = [(*wire.read_envelope(before)[1:2], body) for before, bodies in found for body in bodies]
    assert again == [(message.key, message.body) for message in given_]


@pytest.mark.parametrize(
    ("code", "text"),
    [(Reply.OK, "200 OK x"), (Reply.BAD_LEASE, "402 BAD-LEASE x"), (Reply.NOT_FOUND, "404 NOT-FOUND x")],
)
def test_a_response_is_code_indicator_and_text(code: Reply, text: str) -> None:
    data = wire.reply(code, "x")
    assert data == bytes([len(text)]) + text.encode()
    assert wire.read_reply(take_short(data) or b"") == (int(code), text[4:])


def test_the_answer_to_a_lease_names_sink_or_feed_and_fits_whatever_the_name() -> None:
    assert wire.ready(True, b"quotes")[1:] == b'200 OK Ready to write to "quotes"'
    assert wire.ready(False, b"mine")[1:] == b'200 OK Ready to read from "mine"'
    longest = wire.ready(False, "\N{EURO SIGN}".encode() * 85)
    assert len(longest) == 1 + longest[0] <= 256
    assert longest.endswith(b'"')
    longest[1:].decode()


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_short_string_is_all_there_or_not_there(data: bytes, cut: int) -> None:
    whole = short(data[:255])
    assert take_short(whole) == data[:255]
    if cut < len(whole):
        assert take_short(whole[:cut]) is None


@given(
    st.integers(1, 40) | st.sampled_from([128, 1000]),
    st.integers(0, 40),
    st.sampled_from([b"", b"longer"]) | st.integers(0, 30),
    st.integers(0, 300),
)
def test_as_many_are_found_alike_as_there_are(alike: int, at: int, odd: bytes | int, others: int) -> None:
    """`alike` messages with one envelope. Then those of another: with a byte that differs, or another body;
    or an envelope alone.
    """
    one = wire.message(Message(b"sink", b"some key", b"body"))
    before = len(one) - 4
    other = bytearray(one)
    if isinstance(odd, int):
        other[odd % before] ^= 1
    else:
        other[:] = wire.message(Message(b"sink", b"some key", odd)) if odd else one[:before]
    data = bytes(at) + one * alike + bytes(other) * (others if odd != b"" else 1)
    assert wire.uniform(data, at, len(one), before) == alike
