"""Clients that know the specification alone, on real sockets, through what it leaves open.

The server is the stand-alone form with half a second of patience, so that a CONSUME that nobody answers ends.
"""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import Server, speak

Address = tuple[str, int]
_names = count()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    flags = ("-p", "0", "-d", "5", "-t", "0.5")
    with Server(tmp_path_factory.mktemp("dms"), *flags, command=("dms", "serve")) as server:
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
    assert [reply[:3] for reply in replies] == [(spec.HANDSHAKE_ACK, 0, 1), (spec.ERROR, spec.TIMEOUT, 2)]


def test_refusals_have_the_specifications_numbers_and_the_connection_goes_on(
    client: SpecClient, queue: str
) -> None:
    named = spec.name(queue)
    for type_, payload, status in (
        (spec.CREATE, named, spec.EXISTS),
        (spec.PRODUCE, spec.name("nowhere"), spec.NOT_FOUND),
        (spec.CONSUME, named, spec.TIMEOUT),
        (spec.ACK, b"", spec.PROTOCOL),
        (spec.PRODUCE, named.ljust(4097, b"x"), spec.TOO_LARGE),
        (0x77, b"", spec.TYPE),
    ):
        found, said, message_id, text = client.ask(type_, payload, 0xABCDEF)
        assert (found, said, message_id) == (spec.ERROR, status, 0xABCDEF)
        assert text.decode().isprintable()
    for _ in range(5):
        client.produce(queue, b"x")
    assert client.ask(spec.PRODUCE, named, 1)[:3] == (spec.ERROR, spec.FULL, 1)
    assert client.consume(queue)[1] == b"x"


@pytest.mark.parametrize(
    ("sent", "type_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", spec.ERROR, spec.BAD_MAGIC),
        (spec.frame(spec.LIST, 7, version=2), spec.ERROR, spec.VERSION),
        (spec.frame(spec.HANDSHAKE, 7, version=2), spec.HANDSHAKE_NACK, spec.VERSION),
    ],
)
def test_what_cannot_be_gone_on_from_is_told_and_closed(
    address: Address, sent: bytes, type_: int, status: int
) -> None:
    with SpecClient(address, greet=False) as client:
        client.send(sent)
        ((found, said, _, _),) = client.rest()
        assert (found, said) == (type_, status)
