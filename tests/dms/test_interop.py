"""Clients that know the specification alone, on real sockets, line by line through what it leaves open.

The server is the stand-alone form with one second of patience, so that a CONSUME that nobody answers ends.
"""

import socket
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support import dms_spec as spec
from tests.support.dms_spec import Refused, SpecClient
from tests.support.server import Server, speak

FULL, NOT_FOUND, EXISTS, TIMEOUT, PROTOCOL, MAGIC, VERSION, TOO_LARGE, TYPE, INTERNAL = range(1, 11)
Address = tuple[str, int]
_names = count()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    flags = ("-p", "0", "-d", "5", "-t", "1")
    with Server(tmp_path_factory.mktemp("dms"), *flags, verb=("dms", "serve")) as server:
        yield server.address("dms")
        assert "Traceback" not in server.said


@pytest.fixture
def client(address: Address) -> Iterator[SpecClient]:
    with SpecClient(address) as client:
        yield client


@pytest.fixture
def queue(address: Address) -> Iterator[str]:
    """A new one, gone after the test."""
    name = f"queue-{next(_names)}"
    with SpecClient(address) as client:
        client.create(name)
    yield name
    with SpecClient(address) as client:
        for each in client.queues():
            client.delete(each)


def test_a_life_of_a_message(client: SpecClient, queue: str) -> None:
    client.produce(queue, b"order #42")
    delivery, body = client.consume(queue)
    assert body == b"order #42"
    assert delivery & 0x80000000
    assert client.queues()[queue] == 1, "held ones count"
    client.nack(delivery)
    again, body = client.consume(queue)
    assert (body, again != delivery) == (b"order #42", True)
    client.ack(again)
    assert client.queues()[queue] == 0
    client.delete(queue)
    assert queue not in client.queues()
    client.disconnect()
    assert client.rest() == []


def test_any_bytes_up_to_the_limit(client: SpecClient, queue: str) -> None:
    room = 4096 - 2 - len(queue)
    for body in (b"", b"\0", bytes(range(256)), b"x" * room, spec.frame(spec.PRODUCE, 1)):
        client.produce(queue, body)
        delivery, found = client.consume(queue)
        assert found == body
        client.ack(delivery)


def test_first_in_first_out_and_what_comes_back_keeps_its_place(client: SpecClient, queue: str) -> None:
    for body in (b"1", b"2", b"3"):
        client.produce(queue, body)
    first, _ = client.consume(queue)
    second, _ = client.consume(queue)
    client.nack(second)
    client.nack(first)
    assert [client.consume(queue)[1] for _ in range(3)] == [b"1", b"2", b"3"]


def test_the_end_of_a_connection_gives_back_what_it_held(
    address: Address, client: SpecClient, queue: str
) -> None:
    for body in (b"1", b"2", b"3"):
        client.produce(queue, body)
    with SpecClient(address) as other:
        assert [other.consume(queue)[1] for _ in range(2)] == [b"1", b"2"]
        other.disconnect()
        other.rest()
    assert [client.consume(queue)[1] for _ in range(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("type_", "payload", "status"),
    [
        (spec.CREATE, b"", PROTOCOL),
        (spec.CREATE, b"\0", PROTOCOL),
        (spec.CREATE, b"\0\0", PROTOCOL),
        (spec.CREATE, b"\0\5abc", PROTOCOL),
        (spec.CREATE, b"\0\1\n", PROTOCOL),
        (spec.CREATE, b"\0\2\xff\xfe", PROTOCOL),
        (spec.CREATE, spec.name("x" * 65), PROTOCOL),
        (spec.CREATE, spec.name("x") + b"{", PROTOCOL),
        (spec.CREATE, spec.name("x") + b"[]", PROTOCOL),
        (spec.CREATE, spec.name("x") + b'{"dpeth": 1}', PROTOCOL),
        (spec.CREATE, spec.name("x") + b'{"depth": -1}', PROTOCOL),
        (spec.CREATE, spec.name("x") + b'{"depth": "1"}', PROTOCOL),
        (spec.CREATE, spec.name("x") + b'{"depth": true}', PROTOCOL),
        (spec.CREATE, spec.name("x") + b'{"depth": 1e999}', PROTOCOL),
        (spec.CREATE, spec.name("x") + b"[" * 4000, PROTOCOL),
        (spec.DELETE, spec.name("nowhere"), NOT_FOUND),
        (spec.DELETE, spec.name("nowhere") + b"x", PROTOCOL),
        (spec.PRODUCE, spec.name("nowhere"), NOT_FOUND),
        (spec.PRODUCE, b"\0", PROTOCOL),
        (spec.CONSUME, spec.name("nowhere"), NOT_FOUND),
        (spec.CONSUME, spec.name("nowhere") + b"x", PROTOCOL),
        (spec.CONSUME, b"", PROTOCOL),
        (spec.ACK, b"", PROTOCOL),
        (spec.ACK, b"\0", PROTOCOL),
        (spec.NACK, spec.name("nowhere"), PROTOCOL),
        (spec.HANDSHAKE, b"", PROTOCOL),
        (spec.DISCONNECT, b"x", PROTOCOL),
        (0x00, b"", TYPE),
        (0x12, b"", TYPE),
        (0x34, b"", TYPE),
        (0x77, b"", TYPE),
        (0xFE, b"", TYPE),
        (0xFF, b"", TYPE),
    ],
)
def test_what_is_wrong_is_refused_and_the_connection_goes_on(
    client: SpecClient, queue: str, type_: int, payload: bytes, status: int
) -> None:
    found, said, message_id, text = client.ask(type_, payload, 0xABCDEF)
    assert (found, said, message_id) == (spec.ERROR, status, 0xABCDEF)
    assert text.decode().isprintable()
    client.produce(queue, b"as before")
    assert client.consume(queue)[1] == b"as before"


def test_disconnect_ok_from_a_client_is_ignored(client: SpecClient, queue: str) -> None:
    client.send(spec.frame(0x52, 5))
    client.produce(queue, b"x")


def test_full_missing_and_there_already(client: SpecClient, queue: str) -> None:
    for _ in range(4):
        client.produce(queue, b"x")
    held, _ = client.consume(queue)
    client.produce(queue, b"x")
    for action, status in (
        (lambda: client.produce(queue, b"x"), FULL),
        (lambda: client.create(queue), EXISTS),
        (lambda: client.consume("nowhere"), NOT_FOUND),
    ):
        with pytest.raises(Refused) as refused:
            action()
        assert refused.value.status == status
    client.ack(held)
    client.produce(queue, b"x")


def test_a_consume_that_nothing_comes_for_times_out(client: SpecClient, queue: str) -> None:
    assert client.ask(spec.CONSUME, spec.name(queue), 77)[:3] == (spec.ERROR, TIMEOUT, 77)


def test_a_waiting_consume_holds_up_nothing(address: Address, client: SpecClient, queue: str) -> None:
    client.send(spec.frame(spec.CONSUME, 5, spec.name(queue)))
    client.send(spec.frame(spec.LIST, 6))
    assert client.reply()[:3] == (spec.LIST + 1, 0, 6)
    with SpecClient(address) as other:
        other.produce(queue, b"now")
    type_, _, delivery, body = client.reply()
    assert (type_, body) == (spec.DELIVER, b"now")
    client.ack(delivery)


def test_while_one_queue_is_waited_for_another_may_not_be(client: SpecClient, queue: str) -> None:
    client.create(queue + "-other")
    client.send(spec.frame(spec.CONSUME, 5, spec.name(queue)))
    assert client.ask(spec.CONSUME, spec.name(queue + "-other"), 6)[:3] == (spec.ERROR, PROTOCOL, 6)
    assert client.reply()[:3] == (spec.ERROR, TIMEOUT, 5)
    client.produce(queue + "-other", b"x")
    assert client.consume(queue + "-other")[1] == b"x"


def test_waiting_consumers_take_turns(address: Address, client: SpecClient, queue: str) -> None:
    with SpecClient(address) as one, SpecClient(address) as other:
        for each in (one, other, one, other):
            each.send(spec.frame(spec.CONSUME, 9, spec.name(queue)) + spec.frame(spec.LIST, 10))
            assert each.reply()[0] == spec.LIST + 1  # it waits in line by now
        for body in (b"1", b"2", b"3", b"4"):
            client.produce(queue, body)
        assert [one.reply()[3], other.reply()[3]] == [b"1", b"2"]
        assert [one.reply()[3], other.reply()[3]] == [b"3", b"4"]


def test_deleting_a_queue_ends_the_waits_on_it_and_its_deliveries(
    address: Address, client: SpecClient, queue: str
) -> None:
    client.produce(queue, b"x")
    held, _ = client.consume(queue)
    client.send(spec.frame(spec.CONSUME, 5, spec.name(queue)))
    with SpecClient(address) as other:
        other.delete(queue)
    assert client.reply()[:3] == (spec.ERROR, NOT_FOUND, 5)
    with pytest.raises(Refused) as refused:
        client.ack(held)
    assert refused.value.status == NOT_FOUND
    client.create(queue)
    assert client.queues()[queue] == 0


def test_an_ack_may_name_its_queue_and_no_other(address: Address, client: SpecClient, queue: str) -> None:
    for _ in range(2):
        client.produce(queue, b"x")
    first, _ = client.consume(queue)
    second, _ = client.consume(queue)
    assert client.ask(spec.ACK, spec.name("another"), first)[:3] == (spec.ERROR, PROTOCOL, first)
    assert client.ask(spec.ACK, spec.name(queue), first)[:3] == (spec.ACK + 1, 0, first)
    assert client.ask(spec.ACK, b"", first)[:3] == (spec.ERROR, PROTOCOL, first), "not twice"
    with SpecClient(address) as thief:
        assert thief.ask(spec.ACK, b"", second)[:3] == (spec.ERROR, PROTOCOL, second), "not another's"
    client.nack(second)


def test_requests_may_all_be_sent_at_once_the_handshake_with_them(address: Address) -> None:
    queue = f"queue-{next(_names)}"
    named = spec.name(queue)
    sent = [
        spec.frame(spec.HANDSHAKE, 1),
        spec.frame(spec.CREATE, 2, named),
        spec.frame(spec.PRODUCE, 3, named + b"x"),
        spec.frame(spec.PRODUCE, 3, named + b"y"),
        spec.frame(spec.LIST, 0xFFFFFFFF),
        spec.frame(spec.DELETE, 0, named),
        spec.frame(spec.DISCONNECT, 4),
    ]
    replies = spec.parse(bytearray(speak(address, b"".join(sent))))
    assert [(type_, message_id) for type_, _, message_id, _ in replies] == [
        (spec.HANDSHAKE_ACK, 1),
        (spec.CREATE + 1, 2),
        (spec.PRODUCE + 1, 3),
        (spec.PRODUCE + 1, 3),
        (spec.LIST + 1, 0xFFFFFFFF),
        (spec.DELETE + 1, 0),
        (spec.DISCONNECT + 1, 4),
    ]


def test_who_has_said_all_and_half_closed_still_gets_every_answer(address: Address, queue: str) -> None:
    """As `nc -N` does; a CONSUME that waits is owed its answer too."""
    named = spec.name(queue)
    sent = spec.frame(spec.HANDSHAKE, 1) + spec.frame(spec.CONSUME, 2, named) + b"\xde\xad"
    replies = spec.parse(bytearray(speak(address, sent)))
    assert [reply[:3] for reply in replies] == [(spec.HANDSHAKE_ACK, 0, 1), (spec.ERROR, TIMEOUT, 2)]


@pytest.mark.parametrize(
    ("sent", "status", "message_id"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", MAGIC, None),
        (b"\xde\xad\xbe\xee" + bytes(12), MAGIC, 0),
        (spec.frame(spec.LIST, 7), PROTOCOL, 7),
        (spec.frame(0x77, 7), PROTOCOL, 7),
        (spec.frame(spec.PRODUCE, 7, spec.name("x") + b"x"), PROTOCOL, 7),
        (spec.frame(spec.LIST, 7, version=2), VERSION, 7),
        (spec.HEADER.pack(spec.MAGIC, (1 << 20) + 1, spec.HANDSHAKE, 1, 0, 7), TOO_LARGE, 7),
        (spec.frame(spec.HANDSHAKE, 1) + b"\x00" * 16, MAGIC, None),
        (spec.frame(spec.HANDSHAKE, 1) + spec.frame(spec.LIST, 7, version=0), VERSION, 7),
        (
            spec.frame(spec.HANDSHAKE, 1) + spec.HEADER.pack(spec.MAGIC, 0xFFFFFFFF, 0x21, 1, 0, 7),
            TOO_LARGE,
            7,
        ),
    ],
)
def test_what_cannot_be_gone_on_from_is_told_and_closed(
    address: Address, sent: bytes, status: int, message_id: int | None
) -> None:
    with SpecClient(address, greet=False) as client:
        client.send(sent)
        *before, last = client.rest()
        assert [reply[0] for reply in before] in ([], [spec.HANDSHAKE_ACK])
        assert last[:2] == (spec.ERROR, status)
        assert message_id in (None, last[2])


def test_a_handshake_of_another_version_is_refused_as_such(address: Address) -> None:
    for version in (0, 2, 255):
        with SpecClient(address, greet=False) as client:
            client.send(spec.frame(spec.HANDSHAKE, 9, version=version))
            (reply,) = client.rest()
            assert reply[:3] == (spec.HANDSHAKE_NACK, VERSION, 9)


@pytest.mark.parametrize("length", [4097, 65_536, 1 << 20])
def test_a_payload_too_large_is_thrown_away_and_told(client: SpecClient, queue: str, length: int) -> None:
    for type_ in (spec.PRODUCE, spec.LIST):
        client.send(spec.HEADER.pack(spec.MAGIC, length, type_, 1, 0, 8))
        never = spec.frame(spec.PRODUCE, 1, spec.name(queue) + b"never")
        client.send((never * (length // len(never) + 1))[:length])
        assert client.reply()[:3] == (spec.ERROR, TOO_LARGE, 8)
    client.produce(queue, b"as before")
    assert client.queues()[queue] == 1


def test_the_129th_queue_is_one_too_many(address: Address) -> None:
    with SpecClient(address) as client:
        there = len(client.queues())
        made = [f"many-{number}" for number in range(128 - there)]
        for name in made:
            client.create(name)
        with pytest.raises(Refused) as refused:
            client.create("one too many")
        assert refused.value.status == INTERNAL
        assert "128" in str(refused.value)
        for name in made:
            client.delete(name)


def test_a_list_is_sorted_and_shows_what_fits(address: Address) -> None:
    with SpecClient(address) as client:
        before = client.queues()
        made = [f"{number:02}" + "x" * 62 for number in range(80)]
        for name in reversed(made):
            client.create(name)
        total, page = spec.listed(client.ask(spec.LIST, b"")[3])
        assert total == 80 + len(before)
        names = [name for name, _ in page]
        assert names == sorted({*before, *made})[: len(names)]
        assert 50 < len(names) < 80
        more = spec.listed(client.ask(spec.LIST, spec.name(names[-1]))[3])
        assert names + [name for name, _ in more[1]] == sorted({*before, *made})
        for name in made:
            client.delete(name)


def test_a_delivery_id_is_nobody_elses_while_it_is_held(address: Address, queue: str) -> None:
    held: set[int] = set()
    clients: list[SpecClient] = []
    try:
        clients += (SpecClient(address) for _ in range(5))
        for client in clients:
            client.produce(queue, b"x")
        for client in clients:
            held.add(client.consume(queue)[0])
        assert len(held) == 5
    finally:
        for client in clients:
            client.socket.close()


def test_bytes_come_one_at_a_time(address: Address, queue: str) -> None:
    with SpecClient(address) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in spec.frame(spec.PRODUCE, 3, spec.name(queue) + b"slow"):
            client.send(bytes([byte]))
        assert client.reply()[:3] == (spec.PRODUCE + 1, 0, 3)
        assert client.consume(queue)[1] == b"slow"
