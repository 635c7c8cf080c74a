"""A line and a body have a time to arrive in."""

from collections.abc import Callable

import pytest

from logmq.settings import LogmqSettings
from shared.access import Access, User
from tests.logmq.world import Peer, World


def test_a_line_that_does_not_end_within_five_minutes_closes_the_connection() -> None:
    peer = World().connect(now=1000.0)
    peer.ask(b"PING\nPRODUCE t slow")
    peer.advance(299)
    peer.send(b"er")
    peer.advance(0.9)
    assert not peer.connection.finished
    peer.advance(0.2)
    assert peer.connection.finished
    assert peer.take().startswith(b"ERR SYNTAX the line took too long")
    assert peer.world.broker.counts.too_late == 1


@pytest.mark.parametrize("line", [b"PING\n", b"\n", b"nonsense\r\n", b"APPEND t 5\n"])
def test_the_first_request_is_the_first_line_whatever_it_is(peer: Peer, line: bytes) -> None:
    peer.send(line[:-1])
    assert (peer.connection.awaits_first or b"").startswith(b"ERR SYNTAX ")
    peer.send(line[-1:])
    assert peer.connection.awaits_first is None


def test_where_a_login_is_asked_for_the_first_request_is_one_that_fits() -> None:
    access = Access({"ann": User("ann")})
    answers: list[Callable[[bool], None]] = []
    access.check_password = lambda user, password, peer, done: answers.append(done)
    world = World()
    world.broker.access = access.guard("logmq", "always")
    peer = world.connect()
    first = peer.connection.awaits_first
    assert (first or b"").startswith(b"ERR DENIED log in first")
    assert peer.ask(b"PING\n") == first
    assert peer.connection.awaits_first == first
    for fits in (False, True):
        peer.send(b"AUTH ann x\n")
        assert peer.connection.awaits_first is None, "nobody is closed while the password is checked"
        answers.pop()(fits)
        peer.settle()  # input goes on in the next turn
        assert peer.connection.awaits_first == (None if fits else first)


@pytest.mark.parametrize(
    "begun",
    [b"APPEND t 5\nhel", b"APPEND t 5\n", b"BATCH t w 1 9\nabc", b"APPEND .t 5\nhel", b"APPEND t 5000000\n"],
)
def test_a_body_that_is_not_there_within_30_s_closes_the_connection(peer: Peer, begun: bytes) -> None:
    peer.send(begun)
    peer.advance(29)
    assert not peer.connection.finished
    peer.advance(2)
    assert peer.connection.finished
    assert b"the bytes of the message took too long" in peer.take()
    assert peer.world.topics() == []


def test_the_rest_of_a_line_that_is_too_long_is_thrown_away_but_must_end() -> None:
    peer = World(LogmqSettings(message_bytes_max=10)).connect()
    flood = b"PRODUCE t " + b"x" * 1000
    assert peer.ask(flood).startswith(b"ERR TOO_LARGE ")
    assert peer.ask(b"x" * 100_000) == b""
    assert peer.ask(b"xxx\nPING\n") == b"PONG\n"
    peer.ask(flood)
    peer.advance(301)
    assert peer.connection.finished
