"""Properties that are well formed on the wire, and that cannot be read, or not be written again."""

import struct
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing
from pamqp import commands, encode

from dmp.data_types import field_table, read_field, read_table
from dmp.definitions import table_in
from dmp.listener import DmpService
from dmp.message import Head
from dmp.properties import unpack_readable
from dmp.queues import Queue
from dmp.refusals import Refusal
from dmp.shown_properties import read
from shared.tracing import Tap
from tests.dmp.amqp_peer import Peer, publish
from tests.dmp.world import Taker, World, ready, singles

BYTES = b"\x01hS\0\0\0\x02\xff\xfe"  # no text: pamqp reads it as bytes, and writes no bytes
LATE = b"\x01tT" + b"\xff" * 8  # the year 584,554,051,223
NUMBER = b"\x07x-deathI\0\0\0\x05"
NOTHING = b"\x07x-deathV"


def properties(fields: bytes) -> bytes:
    return b"\x20\0" + struct.pack(">I", len(fields)) + fields


def deaths(**given: bytes) -> bytes:
    """`x-death` with one entry of these fields, each a type and a value."""
    entry = b"".join(bytes((len(name),)) + name.encode() + value for name, value in given.items())
    table = b"F" + struct.pack(">I", len(entry)) + entry
    return b"\x07x-deathA" + struct.pack(">I", len(table)) + table


def field(head: Head, name: bytes) -> Any:
    assert head.noted.headers is not None
    return read_field(head.properties[slice(*head.noted.headers)], name)


def leave(world: World, queue: Queue, reason: str) -> None:
    """Have all that is ready leave the queue, whose time to live is a second."""
    if reason == "rejected":
        taken = Taker(no_ack=False)
        queue.add_consumer(taken)
        queue.dispatch()
        queue.reject(taken.messages)
    else:
        world.advance(1.5)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        (BYTES, BYTES),
        (LATE, LATE),
        (NUMBER, b""),
        (NUMBER + BYTES, BYTES),
        (NOTHING + BYTES, BYTES),
        (deaths(queue=b"A\0\0\0\0"), b""),
        (deaths(queue=b"F\0\0\0\0") + LATE, LATE),
        (deaths(queue=b"S\0\0\0\x01q", reason=b"S\0\0\0\x07expired", count=b"l\x7f" + b"\xff" * 7), b""),
        (deaths(time=b"T" + b"\xff" * 8), b""),
    ],
)
@pytest.mark.parametrize("reason", ["expired", "rejected"])
async def test_whatever_headers_a_message_has_its_dead_letter_arrives(
    world: World, fields: bytes, kept: bytes, reason: str
) -> None:
    queue = world.queue(ttl_ms=1000, dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    world.publish(b"", b"q", b"before")
    world.publish(b"", b"q", b"odd", properties=properties(fields))
    world.publish(b"", b"q", b"after")
    leave(world, queue, reason)
    assert ready(dead) == [b"before", b"odd", b"after"]
    assert world.broker.counts.dead_letters_lost == 0
    head = singles(dead)[1].head
    assert kept in head.properties
    newest = field(head, b"x-death")[0]
    assert (newest["queue"], newest["reason"]) == ("q", reason)
    assert field(head, b"x-first-death-queue") == "q"


async def test_a_dead_letter_keeps_its_publishers_bytes_and_counts_in_one_type(world: World) -> None:
    """Clients of typed languages stop at a number whose width follows its value."""
    fields = b"\x01nI\0\0\0\x05\x01dd" + struct.pack(">d", 0.1) + b"\x01sU\0\x05"
    queue = world.queue(dead_letter_exchange=b"", dead_letter_key=b"q")
    world.publish(b"", b"q", b"x", properties=properties(fields))
    for count in range(1, 201):
        message = queue.get(False)
        assert message is not None
        queue.reject([message])
        kept = queue.row.ready.first().head.properties
        assert fields in kept
        assert b"\x05countl" + struct.pack(">q", count) in kept


def test_a_number_in_a_table_has_one_type() -> None:
    for number in (0, 5, -200, 1 << 31, (1 << 63) - 1):
        assert field_table({"n": number})[4:7] == b"\x01nl"
        assert read_table(field_table({"n": [number, {"m": 0.1}]})) == {"n": [number, {"m": 0.1}]}
    assert read(({"properties": {"headers": {"n": 5}}}), persistent=True)[6:9] == b"\x01nl"
    assert table_in({"arguments": {"x-max-length": 5}})[-9:] == b"l" + (5).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("wanted", "arrives"),
    [
        ({}, True),
        ({"x-match": "any"}, False),
        ({"n": 5}, True),
        ({"n": 6}, False),
        ({"n": 6, "x-match": "any"}, False),
        ({"n": 5, "m": 1, "x-match": "any"}, True),
        ({"n": 5, "t": None}, True),  # the header that cannot be read is there
        ({"n": 5, "t": 1}, False),
    ],
)
@pytest.mark.parametrize("reason", ["expired", "rejected"])
async def test_a_headers_exchange_takes_a_dead_letter_by_the_headers_that_can_be_read(
    world: World, wanted: dict[str, Any], arrives: bool, reason: str
) -> None:
    queue = world.queue(ttl_ms=1000, dead_letter_exchange=b"amq.headers")
    dead = world.queue(b"dead")
    table = encode.field_table(wanted)
    world.topology.bind(b"amq.headers", dead, b"", table)
    world.publish(b"", b"q", b"odd", properties=properties(LATE + b"\x01nI\0\0\0\x05"))
    leave(world, queue, reason)
    assert ready(dead) == [b"odd"] * arrives
    assert world.broker.counts.dead_letters_lost == (not arrives)


@pytest.mark.parametrize("fields", [BYTES, LATE, NUMBER + BYTES])
async def test_a_circle_ends_also_where_headers_cannot_be_written_again(world: World, fields: bytes) -> None:
    one = world.queue(b"one", ttl_ms=10, dead_letter_exchange=b"", dead_letter_key=b"two")
    two = world.queue(b"two", ttl_ms=10, dead_letter_exchange=b"", dead_letter_key=b"one")
    world.publish(b"", b"one", b"x", properties=properties(fields))
    for _ in range(10):
        world.advance(0.1)
    assert (len(one.row.ready), len(two.row.ready)) == (0, 0)
    assert (world.broker.counts.dead_lettered, world.broker.counts.dead_letters_lost) == (1, 1)


async def test_a_letter_whose_headers_are_bytes_does_not_expire_again(world: World) -> None:
    world.queue(dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    with_expiration = b"\xa1\0\x04text" + properties(LATE)[2:] + b"\x0210"
    world.publish(b"", b"q", b"x", properties=with_expiration)
    for _ in range(3):
        world.advance(1)
    assert ready(dead) == [b"x"]
    head = dead.row.ready.first().head
    assert head.ttl_ms is None
    assert head.properties.startswith(b"\xa0\0\x04text")


@pytest.mark.parametrize("odd", [b"\x80\0", b"\x80\0\x05text", b"\x20\0\0\0", b"\0\0\0"])
def test_properties_of_a_server_that_do_not_fill_their_place_are_refused(odd: bytes) -> None:
    with pytest.raises(Refusal, match="do not fill"):
        unpack_readable(odd)


@pytest.mark.parametrize(
    "odd",
    [properties(LATE), b"\0\x40" + b"\xff" * 8, b"\x80\0\x02\xff\xff"],
    ids=["header", "timestamp", "text"],
)
async def test_a_trace_costs_no_publisher_its_connection(world: World, peer: Peer, odd: bytes) -> None:
    taken: list[Mapping[str, Any]] = []
    peer.ask(commands.Queue.Declare(0, "q"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(DmpService(world.broker).trace, Tap("*", taken.append))
        await trio.testing.wait_all_tasks_blocked()
        peer.send(publish("", "q", b"odd", properties=odd) + publish("", "q", b"plain"))
        nursery.cancel_scope.cancel()
    assert ready(world.broker.queues[b"q"]) == [b"odd", b"plain"]
    assert [row["text"] for row in taken] == ["odd", "plain"]
