"""A web page cannot drive LogMQ: the first line of HTTP closes, and nothing behind it is executed."""

import pytest

from logmq.states import State
from tests.logmq.world import Peer, World
from tests.support.browsers import post

BODY = b"DELETE orders\r\nPRODUCE orders from a page\nPING\n"


@pytest.fixture
def world() -> World:
    world = World()
    assert world.connect().ask(b"PRODUCE orders one\n") == b"OK 0\n"
    return world


def is_closed(peer: Peer) -> bool:
    return peer.connection.finished and peer.session.state is State.ENDING


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_browsers_post_is_closed_and_nothing_of_its_body_is_executed(
    world: World, peer: Peer, size: int
) -> None:
    request = post(BODY)
    for start in range(0, len(request), size):
        peer.send(request[start : start + size])
    peer.settle()
    assert is_closed(peer)
    assert peer.take() == b"ERR SYNTAX this is LogMQ, HTTP is not spoken here; closing\n"
    assert world.connect().ask(b"TOPICS\n") == b"TOPIC orders 0 7\nEND\n"
    assert world.broker.counts.http == 1


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.0",
        b"GET / HTTP/1.1 ",
        b"PRI * HTTP/2.0",
        b"DELETE /orders HTTP/1.1",
        b"PRODUCE / HTTP/1.1",
        b"PRODUCE orders HTTP/1.1",
        b"PRODUCE orders from a page HTTP/1.0",
        b"PRODUCE http://127.0.0.1:8080/orders HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"POST /" + b"x" * 2_000_000 + b" HTTP/1.1",
        b"Host: 127.0.0.1",
        b"host:127.0.0.1",
        b"HOST:",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_http_in_the_first_line_closes(world: World, peer: Peer, line: bytes, end: bytes) -> None:
    peer.send(line + end + BODY)
    peer.settle()
    assert is_closed(peer)
    assert world.connect().ask(b"TOPICS\n") == b"TOPIC orders 0 7\nEND\n"


@pytest.mark.parametrize("size", [1, 10_000])
def test_lines_that_a_tls_handshake_holds_are_none(world: World, peer: Peer, size: int) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n" + BODY  # where a ticket stands
    for start in range(0, len(hello), size):
        peer.send(hello[start : start + size])
    peer.settle()
    assert is_closed(peer)
    assert peer.take() == b"ERR SYNTAX this is LogMQ without TLS; closing\n"
    assert world.connect().ask(b"TOPICS\n") == b"TOPIC orders 0 7\nEND\n"
    assert world.broker.counts.tls == 1


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1", b"Host: 127.0.0.1", b"hOsT: x", b"x HTTP/1.0"])
def test_http_in_a_later_line_closes_once_what_came_before_is_answered(
    world: World, peer: Peer, line: bytes
) -> None:
    answer = peer.ask(b"PRODUCE orders two\nnonsense\n" + line + b"\r\n\r\n" + BODY)
    assert answer.startswith(b"OK 7\nERR UNKNOWN_COMMAND ")
    assert answer.endswith(b"\nERR SYNTAX this is LogMQ, HTTP is not spoken here; closing\n")
    assert is_closed(peer)
    assert world.connect().ask(b"TOPICS\n") == b"TOPIC orders 0 14\nEND\n"


def test_a_target_that_does_not_end_is_no_way_around(world: World, peer: Peer) -> None:
    request = post(BODY, path=b"/" + b"x" * 2_000_000)
    peer.send(request[:1_500_000])
    peer.send(request[1_500_000:])
    peer.settle()
    assert is_closed(peer)
    assert world.connect().ask(b"TOPICS\n") == b"TOPIC orders 0 7\nEND\n"


def test_messages_may_be_lines_of_http(peer: Peer) -> None:
    """But for a connection's first line, so a client sends such a message by APPEND."""
    assert peer.ask(b"PING\n") == b"PONG\n"
    lines = [b"GET / HTTP/1.1", b"HTTP/1.1", b"Host: example.org", b" HTTP/1.0"]
    for place, line in enumerate(lines):
        topic = b"t%d" % place
        assert peer.ask(b"PRODUCE %b %b\n" % (topic, line)) == b"OK 0\n"
        assert peer.ask(b"CONSUME %b 0\n" % topic) == b"MESSAGE 0 %d %b\n" % (len(line), line)
        assert peer.ask(b"APPEND %b %d\n%b" % (topic, len(line), line)) == b"OK %d\n" % (4 + len(line))
    first = World().connect()
    assert first.ask(b"APPEND log 14\nGET / HTTP/1.1PRODUCE log GET / HTTP/1.1\n") == b"OK 0\nOK 18\n"
