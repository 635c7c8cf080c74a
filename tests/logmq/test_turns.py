"""Long work leaves others their turn; input is held back where answers or the store cannot follow."""

import pytest

from tests.logmq.world import TIGHT, Peer, World, slow_reads


def test_a_congested_store_holds_input_back() -> None:
    world = World(storage=TIGHT)
    peer = world.connect()
    world.congest()
    peer.send(b"PRODUCE t one\n")
    assert not peer.connection.reading
    peer.send(b"PRODUCE t two\n")
    assert world.log("t").end == 7
    world.commit()
    peer.settle()
    assert peer.connection.reading
    assert peer.take() == b"OK 0\nOK 7\n"


def test_a_peer_that_does_not_read_is_answered_only_so_far(world: World) -> None:
    peer = world.connect(bound=10_000)
    peer.ask(b"PRODUCE t %b\n" % (b"x" * 1000))
    peer.send(b"CONSUME t 0\n" * 500)
    assert peer.connection.outbox.size < 100_000
    assert not peer.connection.reading
    answers = b""
    while more := peer.ask(b""):
        answers += more
    assert answers == b"MESSAGE 0 1000 %b\n" % (b"x" * 1000) * 500


def test_too_many_owed_answers_hold_input_back(peer: Peer) -> None:
    answers = 0
    for _ in range(40):
        peer.send(b"PRODUCE t x\n" * 10_000)
    assert not peer.connection.reading
    assert peer.session.replies.pending_bytes < 2 << 20
    while more := peer.ask(b""):
        answers += more.count(b"\n")
    assert answers == 400_000


def test_answers_behind_one_that_waits_are_bounded(peer: Peer) -> None:
    peer.ask(b"PRODUCE big %b\n" % (b"x" * 10_000))
    peer.send(b"FETCH t 0 100 60000\n")
    peer.send(b"CONSUME big 0\n" * 1000)
    for _ in range(50):
        peer.settle()
    assert peer.session.replies.pending_bytes < 2 << 20
    assert not peer.connection.reading
    peer.advance(61)
    got = peer.take()
    while more := peer.ask(b""):
        got += more
    assert got == b"EOF\n" + b"MESSAGE 0 10000 %b\n" % (b"x" * 10_000) * 1000


def test_a_flood_of_small_requests_lets_others_have_their_turn(peer: Peer) -> None:
    peer.send(b"PING\n" * 10_000)
    assert peer.connection.outbox.size < 10_000 * 5 // 2
    assert not peer.connection.reading
    peer.settle()
    assert peer.take() == b"PONG\n" * 10_000
    assert peer.connection.reading


def test_reads_all_over_a_log_let_others_have_their_turn(peer: Peer) -> None:
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    for lines in (
        b"".join(b"CONSUME t %d\n" % (7 * (number * 37 % 100)) for number in range(500)),
        b"".join(b"FETCH t %d 1\n" % (7 * (number * 37 % 100)) for number in range(500)),
        b"PING\n" + b"".join(b"CONSUME t %d\n" % (7 * (number * 37 % 100)) for number in range(500)),
    ):
        with slow_reads() as disk:
            peer.send(lines)
            assert disk.reads <= 40
            peer.settle()
            assert disk.reads == 500
        assert peer.take().count(b"\n") >= 500
        assert peer.connection.reading


@pytest.mark.parametrize("request_", [b"PRODUCE made-%d x\n", b"SEEK t %d\n"])
def test_topics_that_are_made_and_places_looked_for_let_others_have_their_turn(
    world: World, peer: Peer, request_: bytes
) -> None:
    peer.ask(b"PRODUCE t x\n")
    peer.send(b"".join(request_ % number for number in range(100)))
    assert not peer.connection.reading
    assert len(world.broker.topics) <= 33
    assert peer.connection.outbox.size <= 33 * len(b"OK 0\n")
    peer.settle()
    assert peer.take().count(b"OK") == 100
    assert peer.connection.reading


def test_listings_let_others_have_their_turn(peer: Peer) -> None:
    peer.ask(b"PRODUCE t x\n")
    peer.send(b"TOPICS\n" * 100)
    assert peer.connection.outbox.size < 10 * len(b"TOPIC t 0 5\nEND\n")
    peer.settle()
    assert peer.take() == b"TOPIC t 0 5\nEND\n" * 100


def test_a_cold_read_is_waited_for_and_serves_what_follows(peer: Peer) -> None:
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    with slow_reads("t") as disk:
        peer.send(b"".join(b"CONSUME t %d\n" % (7 * number) for number in range(100)))
        assert peer.take() == b""
        assert not peer.connection.reading
        disk.thaw()
        assert peer.take() == b"".join(b"MESSAGE %d 3 %03d\n" % (7 * number, number) for number in range(100))
        assert disk.reads == 1
