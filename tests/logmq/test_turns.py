"""Long work leaves others their turn; input is held back where answers or the store cannot follow."""

import pytest

from logmq import runs
from shared.access import ANONYMOUS, Access, Rule, User
from tests.logmq.world import TIGHT, Peer, World, records, slow_reads
from tests.support.turns import short_turns


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch)


def test_what_a_connection_waits_for_is_said_in_words() -> None:
    world = World()
    peer = world.connect()
    peer.send(b"PRODUCE t one\nDELETE t\n")
    assert peer.session.waits_for == ["its earlier answers"]
    assert peer.ask(b"PRODUCE t two\n").splitlines()[0] == b"OK 0"
    with slow_reads("t") as disk:
        peer.send(b"CONSUME t 0\n")
        assert peer.session.waits_for == ["a read of a log"]
        disk.thaw()
    assert peer.session.waits_for == []


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


SMALL_ONES = [b"y" * (number % 2) for number in range(5 * runs.AT_ONCE)]
SMALL = records(*SMALL_ONES)


def small_batch(seq: int, blob: bytes = SMALL) -> bytes:
    return b"BATCH t w %d %d\n%b" % (seq, len(blob), blob)


def test_a_batch_that_is_broken_far_behind_is_refused_and_the_next_request_taken(peer: Peer) -> None:
    answers = peer.ask(small_batch(1, SMALL[:-1]) + b"PING\n" + small_batch(1))
    assert answers.startswith(b"ERR SYNTAX a batch is whole records")
    assert answers.endswith(b"PONG\nOK 0\n")


def test_many_small_records_are_read_in_turns_and_none_is_left_out(world: World, peer: Peer) -> None:
    peer.ask(small_batch(1))
    offsets = [4 * number + number // 2 for number in range(len(SMALL_ONES))]
    lines = b"".join(
        b"MESSAGE %d %d %b\n" % (offset, len(each), each)
        for offset, each in zip(offsets, SMALL_ONES, strict=True)
    )
    consumer = world.connect(bound=1 << 24)
    consumer.send(b"".join(b"CONSUME t %d\n" % offset for offset in offsets))
    assert consumer.connection.outbox.size < len(lines) // 2
    consumer.settle()
    assert consumer.take() == lines
    tail = world.connect(bound=1 << 24)
    tail.send(b"TAIL t 0\n")
    assert tail.connection.outbox.size < len(lines) // 2
    tail.settle()
    assert tail.take() == lines
    peer.ask(small_batch(2))
    tail.settle()
    assert tail.take().count(b"\n") == len(SMALL_ONES)


WAITING, EACH = 10, 5
CHUNK = b"CHUNK 5 5 10\n\0\0\0\1y"


def fetching(world: World, *, wait_ms: int = 60_000) -> list[Peer]:
    """Connections with FETCHes that wait for the second record of `t`, and a PING behind them."""
    peers = [world.connect() for _ in range(WAITING)]
    peers[0].ask(b"PRODUCE t x\n")
    for peer in peers:
        peer.send(b"FETCH t 5 100 %d\n" % wait_ms * EACH + b"PING\n")
        assert peer.take() == b""
    return peers


def come(world: World, request: bytes = b"PRODUCE t y\n") -> None:
    """A request of somebody else, as far as that goes in the turn of its commit."""
    peer = world.connect()
    peer.send(request)
    world.commit()
    assert peer.take().startswith(b"OK")


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 6)


@pytest.fixture
def crowd(small_turns: None) -> World:
    return World()


def test_a_record_for_many_fetches_is_sent_in_turns_and_answers_are_in_order(crowd: World) -> None:
    peers = fetching(crowd)
    come(crowd)
    answers = [peer.connection.taken() for peer in peers]
    assert 0 < b"".join(answers).count(CHUNK) < WAITING * EACH, (
        "the first turn is over, and there is more to do"
    )
    come(crowd)
    for peer, answer in zip(peers, answers, strict=True):
        whole = answer + peer.ask(b"")
        assert whole.startswith(b"CHUNK 5 "), "records that have come since may be in it"
        assert whole.endswith(b"PONG\n")
        assert whole.count(b"CHUNK") == EACH
    assert len(crowd.broker.topics.waiters) == 0
    assert not crowd.broker.topics.waiters.work.busy


def between_two_turns(crowd: World) -> Peer:
    """A connection whose FETCHes have been woken, and not served."""
    peer = fetching(crowd)[-1]
    come(crowd)
    assert peer.connection.taken() == b""
    return peer


def test_a_fetch_whose_time_ends_before_its_turn_gets_what_came_in_time(crowd: World) -> None:
    peer = between_two_turns(crowd)
    peer.advance(61)
    assert peer.take() == CHUNK * EACH + b"PONG\n"
    assert peer.ask(b"PING\n") == b"PONG\n"


def test_a_fetch_under_way_ends_as_it_began_and_the_next_request_is_under_the_new_rules(
    crowd: World,
) -> None:
    access = Access()
    crowd.broker.access = access.guard("logmq")
    peer = between_two_turns(crowd)
    access.replace({ANONYMOUS: User(ANONYMOUS, (Rule.parse("logmq:read:other"),))})
    peer.settle()
    assert peer.take() == CHUNK * EACH + b"PONG\n"
    assert peer.ask(b"FETCH t 5 100\n") == b"ERR DENIED not allowed\n"


def test_a_topic_that_is_deleted_before_a_fetch_has_its_turn(crowd: World) -> None:
    peer = between_two_turns(crowd)
    come(crowd, b"DELETE t\n")
    come(crowd, b"PRODUCE t new\n")
    peer.settle()
    answers = peer.take()
    assert answers.count(b"ERR NO_TOPIC") == EACH
    assert answers.endswith(b"PONG\n")


@pytest.mark.parametrize("begin", [b"TAIL t 0\n", b"FETCH t 0 100 60000\n"])
def test_a_topic_that_many_wait_for_is_deleted_and_made_in_turns(crowd: World, begin: bytes) -> None:
    peers = [crowd.connect() for _ in range(WAITING)]
    for peer in peers:
        peer.send(begin)
    come(crowd, b"PRODUCE t x\n")
    assert sum(peer.connection.outbox.size > 0 for peer in peers) < WAITING
    for peer in peers:
        assert peer.ask(b"").startswith((b"MESSAGE 0 1 x\n", b"CHUNK 0 5 5\n"))
    for peer in peers:
        peer.send(b"FETCH t 5 100 60000\n" if begin.startswith(b"FETCH") else b"")
    come(crowd, b"DELETE t\n")
    assert 0 < sum(peer.connection.outbox.size > 0 for peer in peers) < WAITING
    for peer in peers:
        assert peer.ask(b"").startswith(b"ERR NO_TOPIC")


def test_a_record_for_many_tails_is_sent_in_turns_and_none_is_lost_or_sent_twice(crowd: World) -> None:
    peers = [crowd.connect() for _ in range(100)]
    peers[0].ask(b"PRODUCE t x\n")
    for peer in peers:
        assert peer.ask(b"TAIL t 5\n") == b""
    come(crowd)
    served = sum(peer.connection.outbox.size > 0 for peer in peers)
    assert 0 < served < 50
    come(crowd)
    late = crowd.connect()
    late.send(b"TAIL t 0\n")
    peers[-1].lose()
    ended = peers[-2].ask(b"STOP\n")
    assert ended == b"MESSAGE 5 1 y\nMESSAGE 10 1 y\nOK 15\n" or ended.endswith(b"OK 5\n")
    for peer in peers[:-2]:
        assert peer.ask(b"") == b"MESSAGE 5 1 y\nMESSAGE 10 1 y\n"
    assert late.ask(b"") == b"MESSAGE 0 1 x\nMESSAGE 5 1 y\nMESSAGE 10 1 y\n"
