"""What is packed by hand is what pamqp packs; what is taken apart is taken apart as far as it is there."""

from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, decode, encode, frame, header

from dmp.amqp import wire
from dmp.amqp.wire import METHODS, Direct, decode_untrusted
from dmp.data_types import check_table, read_field, read_table
from dmp.message import Head
from dmp.properties import NO_PROPERTIES, note_untrusted, unpack
from dmp.refusals import Code, Refusal

names = st.text(max_size=60).filter(lambda text: len(text.encode()) <= 255)
plain_names = st.text("abcXYZ019-_.:@#,/+ ", max_size=60)  # what pamqp takes for an exchange's or a queue's
channels = st.integers(1, 65535)
tags = st.integers(0, (1 << 63) - 1)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.text(max_size=10), values, max_size=5)
properties = st.builds(
    commands.Basic.Properties,
    content_type=st.none() | names,
    headers=st.none() | tables,
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | names,
    expiration=st.none() | st.integers(0, 1 << 32).map(str).filter(lambda text: int(text) < 1 << 32),
    message_id=st.none() | names,
    user_id=st.none() | names,
)
contents = st.tuples(plain_names, names, properties, st.binary(max_size=300))


def head_of(exchange: str, key: str, of: commands.Basic.Properties, content: bytes) -> Head:
    return Head(exchange.encode(), key.encode(), len(content), of.marshal())


def content_frames(channel: int, of: commands.Basic.Properties, content: bytes) -> bytes:
    data = frame.marshal(header.ContentHeader(0, len(content), of), channel)
    return data + (frame.marshal(body.ContentBody(content), channel) if content else b"")


@given(contents, channels, tags, names, st.booleans())
def test_a_delivery_is_pamqps(
    content: tuple[str, str, commands.Basic.Properties, bytes],
    channel: int,
    tag: int,
    consumer: str,
    redelivered: bool,
) -> None:
    exchange, key, of, data = content
    head = head_of(*content)
    packed = b"".join(
        (
            wire.deliver_before(channel, consumer.encode(), head),
            wire.tag_bytes(tag),
            wire.deliver_between(channel, head, redelivered, 1 << 17),
            data,
            b"\xce",
        )
    )
    deliver = commands.Basic.Deliver(consumer, tag, redelivered, exchange, key)
    assert packed == frame.marshal(deliver, channel) + content_frames(channel, of, data)


@given(contents, channels, tags, st.booleans(), st.integers(0, (1 << 32) - 1))
def test_get_ok_and_return_are_pamqps(
    content: tuple[str, str, commands.Basic.Properties, bytes],
    channel: int,
    tag: int,
    redelivered: bool,
    left: int,
) -> None:
    exchange, key, _, _ = content
    head = head_of(*content)
    got = commands.Basic.GetOk(tag, redelivered, exchange, key, left)
    assert wire.get_ok(channel, tag, redelivered, head, left) == frame.marshal(got, channel)
    returned = commands.Basic.Return(312, "NO_ROUTE", exchange, key)
    assert wire.return_frame(channel, Code.NO_ROUTE, head) == frame.marshal(returned, channel)


@given(channels, plain_names, st.integers(0, 1 << 31), st.integers(0, 1 << 31))
def test_declare_ok_is_pamqps(channel: int, queue: str, ready: int, takers: int) -> None:
    declared = commands.Queue.DeclareOk(queue, ready, takers)
    assert wire.declare_ok(channel, queue.encode(), ready, takers) == frame.marshal(declared, channel)


@given(channels, tags, st.booleans())
def test_acks_and_nacks_are_pamqps(channel: int, tag: int, multiple: bool) -> None:
    assert wire.ack_frame(channel, tag, multiple) == frame.marshal(commands.Basic.Ack(tag, multiple), channel)
    assert wire.nack_frame(channel, tag, multiple) == frame.marshal(
        commands.Basic.Nack(tag, multiple, False), channel
    )


@given(plain_names, names, st.booleans(), st.booleans())
def test_a_publish_is_read_as_pamqp_writes_it(
    exchange: str, key: str, mandatory: bool, immediate: bool
) -> None:
    method = commands.Basic.Publish(0, exchange, key, mandatory, immediate)
    payload = frame.marshal(method, 1)[7:-1]
    assert wire.publish_untrusted(payload) == (exchange.encode(), key.encode(), mandatory, immediate)
    for cut in range(len(payload)):
        with pytest.raises(Refusal):
            wire.publish_untrusted(payload[:cut])
    with pytest.raises(Refusal):
        wire.publish_untrusted(payload + b"\0")


@given(properties, st.integers(0, 1 << 40))
def test_a_content_header_is_read_as_pamqp_writes_it(of: commands.Basic.Properties, size: int) -> None:
    payload = frame.marshal(header.ContentHeader(0, size, of), 1)[7:-1]
    found_size, packed = wire.header_untrusted(payload)
    assert (found_size, packed) == (size, of.marshal())
    noted = note_untrusted(packed)
    assert noted.persistent == (of.delivery_mode == 2)
    assert noted.ttl_ms == (int(of.expiration) if of.expiration else None)
    assert (noted.user_id or b"").decode() == (of.user_id or "")
    assert unpack(packed) == of or of.content_type == "" or "" in dict(of).values()
    for cut in range(len(packed)):
        with pytest.raises(Refusal):
            note_untrusted(packed[:cut])
    with pytest.raises(Refusal, match="surplus"):
        note_untrusted(packed + b"\0")


@given(st.binary(max_size=60))
def test_garbage_for_properties_is_refused_or_well_formed(data: bytes) -> None:
    try:
        noted = note_untrusted(data)
    except Refusal:
        return
    with suppress(Refusal):  # a time, or a decimal, that Python has none of
        assert isinstance(Head(b"", b"", 0, data, noted).headers, dict)


@given(tables)
def test_a_table_is_taken_whole_or_not(table: dict[str, Any]) -> None:
    packed = encode.field_table(table)
    check_table(packed, 0, len(packed))
    assert decode.field_table(packed)[1] == read_table(packed) == table
    for cut in range(len(packed)):
        with pytest.raises(Refusal):
            check_table(packed[:cut], 0, cut)
    for at in range(4, len(packed)):
        changed = packed[:at] + bytes((packed[at] ^ 0x80,)) + packed[at + 1 :]
        try:
            check_table(changed, 0, len(changed))
            read_table(changed)
        except Refusal:  # and nothing else, also of a time in the year 110,035,675
            continue


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"t\1", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"U\xff\xfe", -2),  # the published grammar's short-int
        (b"s\xff\xfe", -2),  # RabbitMQ's
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xfe", -2),
        (b"i\xff\xff\xff\xfe", 0xFFFFFFFE),
        (b"L" + b"\xff" * 8, -1),
        (b"l" + b"\xff" * 8, -1),  # signed, as RabbitMQ has it
        (b"f\x3f\x80\0\0", 1.0),
        (b"d\x3f\xf0\0\0\0\0\0\0", 1.0),
        (b"D\x02\0\0\0\x7b", Decimal("1.23")),
        (b"S\0\0\0\2ab", "ab"),
        (b"A\0\0\0\3U\0\1", [1]),
        (b"T" + b"\0" * 8, datetime(1970, 1, 1, tzinfo=UTC)),
        (b"F\0\0\0\5\1aU\0\1", {"a": 1}),
        (b"V", None),
        (b"x\0\0\0\2ab", b"ab"),  # RabbitMQ's
    ],
    ids=lambda part: part[:1].decode() if isinstance(part, bytes) else "",
)
def test_every_type_of_the_grammar_and_of_rabbitmq_is_read(field: bytes, value: Any) -> None:
    """Also before another field, by itself, and as a header of a message."""
    fields = b"\1n" + field + b"\4lastt\1"
    table = len(fields).to_bytes(4, "big") + fields
    check_table(table, 0, len(table))
    assert read_table(table) == {"n": value, "last": True}
    assert read_field(table, b"n") == value
    assert unpack(b"\x20\0" + table).headers == {"n": value, "last": True}
    declare = wire.encode(commands.Queue.Declare(0, "q"), 1)[7:-5] + table
    assert dict(decode_untrusted(declare).arguments) == {"n": value, "last": True}


class Copied(bytes):
    """Counts what is copied out of it."""

    count = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, bytes):
            self.count += len(found)
        return found


def test_of_a_table_with_many_fields_nothing_is_copied_for_each() -> None:
    packed = Copied(encode.field_table({str(number): [number, "text" * 5] for number in range(1000)}))
    assert len(read_table(packed)) == 1000
    assert packed.count <= len(packed)


def test_tables_have_a_depth_and_a_size() -> None:
    deep: Any = 1
    for _ in range(16):
        deep = [deep]
    packed = encode.field_table({"deep": deep})
    with pytest.raises(Refusal, match="tables in each other"):
        check_table(packed, 0, len(packed))
    packed = encode.field_table({"wide": [True] * 4096})
    with pytest.raises(Refusal, match="fields"):
        check_table(packed, 0, len(packed))


EXAMPLES = [
    commands.Exchange.Declare(0, "e", "topic", False, True, False, True, False, {"a": 1}),
    commands.Queue.Declare(0, "q", False, True, True, False, True, {"x-expires": 5}),
    commands.Queue.Bind(0, "q", "e", "k", True, {"x-match": "any"}),
    commands.Basic.Consume(0, "q", "tag", True, False, True, False, {}),
    commands.Basic.Qos(0, 10, True),
    commands.Connection.StartOk({"capabilities": {"a": True}}, "PLAIN", "\0u\0p", "en_US"),
    commands.Connection.TuneOk(10, 4096, 60),
    Direct.Put("sink"),
    Direct.GetOk("lease"),
]


@pytest.mark.parametrize("method", EXAMPLES, ids=lambda method: str(method.name))
def test_methods_are_read_whole_or_refused(method: Any) -> None:
    data = wire.encode(method, 7)
    if not method.name.startswith("Direct"):
        assert data == frame.marshal(method, 7)
    payload = data[7:-1]
    found = decode_untrusted(payload)
    assert dict(found) == dict(method)
    for table in (value for value in dict(found).values() if isinstance(value, wire.FieldTable)):
        assert table.raw in payload
        assert read_table(table.raw) == table
    for cut in range(len(payload)):
        with pytest.raises(Refusal):
            decode_untrusted(payload[:cut])
    with pytest.raises(Refusal, match="do not fill"):
        decode_untrusted(payload + b"\0")


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=80))
def test_garbage_for_a_method_is_a_refusal_or_a_method(index: int, arguments: bytes) -> None:
    with suppress(Refusal):
        decode_untrusted(index.to_bytes(4, "big") + arguments)


@pytest.mark.parametrize("index", sorted(METHODS), ids=lambda index: METHODS[index].name)
def test_every_method_is_read_also_those_that_pamqp_warns_of(index: int) -> None:
    """With the fewest arguments: all zero. (Warnings are errors here.)"""
    read = []
    for size in range(40):
        with suppress(Refusal):
            read.append(decode_untrusted(index.to_bytes(4, "big") + bytes(size)))
    assert [method.index for method in read] == [index]


def test_class_direct_has_the_published_numbers_and_pamqps_own_table_is_untouched() -> None:
    numbers = [method.index for method in (Direct.Put, Direct.PutOk, Direct.Get, Direct.GetOk)]
    assert [(index >> 16, index & 0xFFFF) for index in numbers] == [(61500, n) for n in (10, 11, 20, 21)]
    assert not set(numbers) & set(commands.INDEX_MAPPING)
    assert wire.encode(Direct.Put("s"), 1) == b"\x01\0\x01\0\0\0\x06\xf0\x3c\0\x0a\x01s\xce"


@given(st.binary(max_size=500), st.integers(1, 90), channels)
def test_a_split_body_is_frames(data: bytes, payload_max: int, channel: int) -> None:
    packed = wire.content_head(channel, len(data), NO_PROPERTIES, payload_max) + wire.split(
        channel, data, payload_max
    )
    expected = frame.marshal(header.ContentHeader(0, len(data)), channel)
    for at in range(0, len(data), payload_max):
        expected += frame.marshal(body.ContentBody(data[at : at + payload_max]), channel)
    assert packed + b"\xce" == expected
