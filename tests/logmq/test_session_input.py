"""However input is cut, whatever it holds, requests are executed once, in order, and answered in order."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logmq.settings import LogmqSettings
from tests.logmq import model
from tests.logmq.fakes import FakeLog, World, record, records


def ask_model(steps: list[tuple[Any, ...]]) -> list[model.Asked]:
    plain = model.Model()
    return [getattr(plain, what)(*arguments) for what, *arguments in steps]


def conversation() -> tuple[bytes, bytes]:
    """A stream with every kind of request, and what it is answered."""
    plain = model.Model()
    asked = [
        plain.produce("a", b"one"),
        plain.produce("a", b"two"),
        plain.produce("b", b""),
        plain.consume("a", 0),
        plain.append("a", b"x\n\r\ny"),
        plain.consume("a", 7),
        plain.batch("b", 1, [b"b1", b"b2"]),
        plain.batch("b", 1, [b"b1", b"b2"]),
        plain.fetch("b", 0, 4),
        plain.offsets("a"),
        plain.list_topics(),
        plain.commit("g", "a"),
        plain.committed("g", "a"),
        plain.delete("b"),
        plain.consume("b", 0),
        plain.produce("a", b"last"),
    ]
    return b"".join(one.sent for one in asked), b"".join(one.answers[-1] for one in asked)


SENT, ANSWERED = conversation()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_input_in_pieces_of_any_size_is_answered_alike(size: int) -> None:
    peer = World().connect()
    answers = b""
    for at in range(0, len(SENT), size):
        answers += peer.ask(SENT[at : at + size])
    assert answers == ANSWERED


@pytest.mark.parametrize("cut", range(1, len(SENT)))
def test_input_cut_anywhere_is_answered_alike(cut: int) -> None:
    peer = World().connect()
    peer.send(SENT[:cut])
    peer.send(SENT[cut:])
    peer.settle()
    assert peer.take() == ANSWERED


@settings(max_examples=120, deadline=None)
@given(
    st.lists(model.steps, max_size=40),
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(0, 7),
    st.data(),
)
def test_pipelined_requests_are_answered_as_by_a_plain_model(
    steps: list[tuple[Any, ...]], cuts: list[int], settled: int, data: st.DataObject
) -> None:
    asked = ask_model(steps)
    stream = b"".join(one.sent for one in asked)
    world = World()
    peer = world.connect(bound=data.draw(st.sampled_from([50, 1 << 20])))
    answers, before = b"", 0
    for number, cut in enumerate([*sorted(cuts), len(stream)]):
        peer.send(stream[before:cut])
        before = max(before, cut)
        if settled >> (number % 3) & 1:
            world.store.settle()
            answers += peer.take()
    while more := peer.ask(b""):
        answers += more
    assert model.strip_answers(answers, asked) == b""
    assert not peer.session.replies.owed


@settings(max_examples=100, deadline=None)
@given(st.lists(model.steps, max_size=25), st.sets(st.sampled_from(model.TOPICS)))
def test_cold_reads_change_no_answer(steps: list[tuple[Any, ...]], cold: set[str]) -> None:
    world = World()
    peer = world.connect()
    create = world.namespace.create

    def create_cold(name: str, *arguments: Any, **keywords: Any) -> tuple[FakeLog, Any]:
        log, ticket = create(name, *arguments, **keywords)
        log.cold = name in cold
        return log, ticket

    world.namespace.create = create_cold  # type: ignore[method-assign]
    asked = ask_model(steps)
    answers = peer.ask(b"".join(one.sent for one in asked))
    while world.store.frozen:
        world.store.frozen.pop(0)()
        answers += peer.ask(b"")
    assert model.strip_answers(answers, asked) == b""


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.sampled_from([b"\n", b"PRODUCE a ", b"APPEND a 9\n", b"FETCH "]))
    )
)
def test_garbage_never_breaks_a_connection_or_the_server(pieces: list[bytes]) -> None:
    world = World(LogmqSettings(message_bytes_max=50))
    peer, other = world.connect(), world.connect()
    for piece in pieces:
        peer.send(piece)
        peer.settle()
    peer.close_input()
    peer.settle()
    peer.take()
    if peer.session.tail is None and not peer.session._fetches:
        assert peer.connection.finished
    assert other.ask(b"PRODUCE other fine\n") == b"OK 0\n"
    for log in world.namespace.logs.values():
        assert len(log.data) == log.end


def test_a_hundred_thousand_requests_in_one_stream() -> None:
    rng = random.Random(1)
    world = World()
    peer = world.connect()
    lines, expected = [], []
    ends = dict.fromkeys("abc", 0)
    for number in range(100_000):
        topic = "a" if number % 1000 < 900 else rng.choice("abc")
        if rng.random() < 0.01:
            lines.append(b"PING\n")
            expected.append(b"PONG\n")
            continue
        payload = b"%d" % number if number % 2000 < 1000 else b"0123456789"
        lines.append(b"PRODUCE %b %b\n" % (topic.encode(), payload))
        expected.append(b"OK %d\n" % ends[topic])
        ends[topic] += 4 + len(payload)
    stream = b"".join(lines)
    answers = b""
    for at in range(0, len(stream), 1 << 16):
        answers += peer.ask(stream[at : at + (1 << 16)])
    assert answers == b"".join(expected)
    assert {name: log.visible for name, log in world.namespace.logs.items()} == ends


@pytest.mark.parametrize("mixed", [False, True])
def test_pipelined_consumes_read_the_log_once_for_many(mixed: bool) -> None:
    world = World()
    peer = world.connect()
    payloads = [b"m%04d" % number + b"x" * (number % 7 if mixed else 0) for number in range(3000)]
    peer.ask(b"APPEND t 0\n" + b"".join(b"PRODUCE t %b\n" % payload for payload in payloads))
    at, lines, expected = 4, [], []
    for payload in payloads:
        lines.append(b"CONSUME t %d\n" % at)
        expected.append(b"MESSAGE %d %d %b\n" % (at, len(payload), payload))
        at += 4 + len(payload)
    world.log("t").reads = 0
    assert peer.ask(b"".join(lines)) == b"".join(expected)
    assert world.log("t").reads < 5


def test_consumes_in_any_order_are_answered_alike() -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    order = random.Random(2).choices(range(110), k=500)
    lines = b"".join(b"CONSUME t %d\n" % (7 * number) for number in order)
    expected = b"".join(
        b"MESSAGE %d 3 %03d\n" % (7 * number, number) if number < 100 else b"EOF\n" for number in order
    )
    assert peer.ask(lines) == expected


# Half-close.


def test_a_half_closed_client_gets_everything_it_is_owed() -> None:
    peer = World().connect()
    peer.send(b"PRODUCE t one\nCONSUME t 0\nTOPICS\nPRODUCE t unfinished")
    peer.close_input()
    assert not peer.connection.finished
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b"OK 0\nMESSAGE 0 3 one\nTOPIC t 0 7\nEND\n"
    assert peer.world.log("t").end == 7


def test_a_half_closed_clients_waiting_fetch_is_answered() -> None:
    world = World()
    peer, writer = world.connect(), world.connect()
    peer.send(b"FETCH t 0 100 5000\nPING\n")
    peer.close_input()
    assert not peer.connection.finished
    writer.ask(b"PRODUCE t one\n")
    assert peer.connection.finished
    assert peer.take() == b"CHUNK 0 7 7\n" + record(b"one") + b"PONG\n"


def test_a_body_that_is_not_whole_is_not_executed() -> None:
    peer = World().connect()
    peer.send(b"APPEND t 5\nhell")
    peer.close_input()
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b""
    assert peer.world.namespace.logs == {}


def test_what_has_come_of_an_unfinished_body_counts_against_the_bound_of_all() -> None:
    peer = World().connect()
    peer.send(b"APPEND t 9000\n" + b"x" * 5000)
    assert peer.connection.held_bytes == 5000
    peer.send(b"x" * 3000)
    assert peer.connection.held_bytes == 8000
    assert peer.ask(b"x" * 1000 + b"PIN") == b"OK 0\n"
    assert peer.connection.held_bytes == 0


# Deadlines.


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


def test_lines_in_time_begin_the_five_minutes_anew_and_idleness_is_free() -> None:
    peer = World().connect()
    for _ in range(10):
        assert peer.ask(b"G\nPIN")[:3] in (b"ERR", b"PON")
        peer.advance(200)
    assert peer.ask(b"G\n") == b"PONG\n"
    peer.advance(1e6)
    assert peer.ask(b"PING\n") == b"PONG\n"


@pytest.mark.parametrize(
    "begun",
    [b"APPEND t 5\nhel", b"APPEND t 5\n", b"BATCH t w 1 9\nabc", b"APPEND .t 5\nhel", b"APPEND t 5000000\n"],
)
def test_a_body_that_is_not_there_within_30_s_closes_the_connection(begun: bytes) -> None:
    peer = World().connect()
    peer.send(begun)
    peer.advance(29)
    assert not peer.connection.finished
    peer.advance(2)
    assert peer.connection.finished
    assert b"took too long" in peer.take()
    assert peer.world.namespace.logs == {}


def test_the_rest_of_a_line_that_is_too_long_is_thrown_away_but_must_end() -> None:
    peer = World(LogmqSettings(message_bytes_max=10)).connect()
    flood = b"PRODUCE t " + b"x" * 1000
    assert peer.ask(flood).startswith(b"ERR TOO_LARGE ")
    assert peer.ask(b"x" * 100_000) == b""
    assert peer.ask(b"xxx\nPING\n") == b"PONG\n"
    peer.ask(flood)
    peer.advance(301)
    assert peer.connection.finished


def test_a_peer_is_not_late_while_we_hold_its_input_back() -> None:
    world = World()
    peer = world.connect()
    peer.send(b"PRODUCE t o")
    world.store.congested = True
    peer.send(b"ne\nPRODUCE t tw")
    peer.advance(1000)
    world.store.relieve()
    world.store.settle()
    assert peer.take() == b"OK 0\n"
    assert not peer.connection.finished
    assert peer.ask(b"o\n") == b"OK 7\n"


# Stops.


def test_a_congested_store_holds_input_back() -> None:
    world = World()
    peer = world.connect()
    world.store.congested = True
    peer.send(b"PRODUCE t one\n")
    assert not peer.connection.reading
    peer.send(b"PRODUCE t two\n")
    assert world.log("t").end == 7
    world.store.relieve()
    peer.settle()
    assert peer.connection.reading
    assert peer.take() == b"OK 0\nOK 7\n"


def test_what_arrives_although_reading_is_paused_is_kept_in_order() -> None:
    world = World()
    peer = world.connect()
    world.store.congested = True
    peer.session.receive(b"PRODUCE t one\nPRODUCE t t")
    peer.session.receive(b"wo\nPRODUCE t ")
    peer.session.receive(b"three\n")
    world.store.relieve()
    peer.settle()
    assert bytes(world.log("t").data) == records(b"one", b"two", b"three")


def test_a_peer_that_does_not_read_is_answered_only_so_far() -> None:
    world = World()
    peer = world.connect(bound=10_000)
    peer.ask(b"PRODUCE t %b\n" % (b"x" * 1000))
    peer.send(b"CONSUME t 0\n" * 500)
    assert peer.connection.outbox.size < 100_000
    assert not peer.connection.reading
    answers = b""
    while more := peer.ask(b""):
        answers += more
    assert answers == b"MESSAGE 0 1000 %b\n" % (b"x" * 1000) * 500


def test_too_many_owed_answers_hold_input_back() -> None:
    world = World()
    peer = world.connect()
    answers = 0
    for _ in range(40):
        peer.send(b"PRODUCE t x\n" * 10_000)
    assert not peer.connection.reading
    assert peer.session.replies.owed_bytes < 2 << 20
    while more := peer.ask(b""):
        answers += more.count(b"\n")
    assert answers == 400_000


def test_answers_behind_one_that_waits_are_bounded() -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE big %b\n" % (b"x" * 10_000))
    peer.send(b"FETCH t 0 100 60000\n")
    peer.send(b"CONSUME big 0\n" * 1000)
    for _ in range(50):
        peer.settle()
    assert peer.session.replies.owed_bytes < 2 << 20
    assert not peer.connection.reading
    peer.advance(61)
    got = peer.take()
    while more := peer.ask(b""):
        got += more
    assert got == b"EOF\n" + b"MESSAGE 0 10000 %b\n" % (b"x" * 10_000) * 1000


def test_a_flood_of_small_requests_lets_others_have_their_turn() -> None:
    world = World()
    peer = world.connect()
    peer.send(b"PING\n" * 10_000)
    assert peer.connection.outbox.size < 10_000 * 5 // 2
    assert not peer.connection.reading
    peer.settle()
    assert peer.take() == b"PONG\n" * 10_000
    assert peer.connection.reading


def test_reads_all_over_a_log_let_others_have_their_turn() -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    log = world.log("t")
    for lines in (
        b"".join(b"CONSUME t %d\n" % (7 * (number * 37 % 100)) for number in range(500)),
        b"".join(b"FETCH t %d 1\n" % (7 * (number * 37 % 100)) for number in range(500)),
        b"PING\n" + b"".join(b"CONSUME t %d\n" % (7 * (number * 37 % 100)) for number in range(500)),
    ):
        log.reads = 0
        peer.send(lines)
        assert log.reads <= 40
        peer.settle()
        assert log.reads == 500
        assert peer.take().count(b"\n") >= 500
        assert peer.connection.reading


@pytest.mark.parametrize("request_", [b"PRODUCE made-%d x\n", b"SEEK t %d\n"])
def test_topics_that_are_made_and_places_looked_for_let_others_have_their_turn(request_: bytes) -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t x\n")
    peer.send(b"".join(request_ % number for number in range(100)))
    assert not peer.connection.reading
    assert len(world.broker.topics) <= 33
    assert peer.connection.outbox.size <= 33 * len(b"OK 0\n")
    peer.settle()
    assert peer.take().count(b"OK") == 100
    assert peer.connection.reading


def test_listings_let_others_have_their_turn() -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t x\n")
    peer.send(b"TOPICS\n" * 100)
    assert peer.connection.outbox.size < 10 * len(b"TOPIC t 0 5\nEND\n")
    peer.settle()
    assert peer.take() == b"TOPIC t 0 5\nEND\n" * 100


def test_a_cold_read_is_waited_for_and_serves_what_follows() -> None:
    world = World()
    peer = world.connect()
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    log = world.log("t")
    log.cold, log.reads = True, 0
    peer.send(b"".join(b"CONSUME t %d\n" % (7 * number) for number in range(100)))
    assert peer.take() == b""
    assert not peer.connection.reading
    world.store.thaw()
    assert peer.take() == b"".join(b"MESSAGE %d 3 %03d\n" % (7 * number, number) for number in range(100))
    assert log.reads == 1


# The end of connections and of the server.


def test_a_lost_connection_leaves_nothing_behind() -> None:
    world = World()
    peers = [world.connect() for _ in range(5)]
    peers[0].ask(b"PRODUCE t one\n")
    log = world.log("t")
    assert peers[4].ask(b"CONSUME t 0\n") == b"MESSAGE 0 3 one\n"
    peers[0].send(b"TAIL t 0\n")
    peers[1].send(b"FETCH t 7 100 60000\nTAIL nix 0\n")
    peers[2].send(b"FETCH nix 0 100 60000\n")
    log.cold = True
    peers[3].send(b"CONSUME t 0\n")
    peers[4].send(b"PRODUCE t two\nFETCH t 0 100\n")
    for peer in peers:
        peer.lose()
    world.store.settle()
    world.store.thaw()
    assert world.broker.sessions == set()
    assert log.watchers == set()
    assert world.store.open_chunks == 0
    assert (world.broker.counts.tails, world.broker.counts.fetches_waiting) == (0, 0)
    assert world.broker.topics._waiting == {}
    assert world.broker.topics._feeds == {}
    assert world.broker.windows._by_owner == {}


def test_a_drain_answers_what_is_owed_ends_waits_and_closes() -> None:
    world = World()
    writer, tail, fetch, idle, begun = (world.connect() for _ in range(5))
    writer.ask(b"PRODUCE t one\n")
    tail.send(b"TAIL t 0\n")
    fetch.send(b"FETCH t 7 100 60000\nPING\n")
    begun.send(b"PRODUCE t unfin")
    writer.send(b"PRODUCE t two\n")
    world.broker.drain()
    assert [peer.connection.finished for peer in (writer, tail, fetch, idle, begun)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    world.store.settle()
    assert writer.connection.finished
    assert writer.take() == b"OK 7\n"
    assert tail.take() == b"MESSAGE 0 3 one\nOK 7\n"
    assert fetch.take() == b"EOF\nPONG\n"


def test_nothing_waits_once_the_server_drains() -> None:
    world = World()
    peer = world.connect()
    world.store.congested = True
    peer.send(b"PRODUCE t one\n")
    peer.session.receive(b"FETCH t 7 100 60000\nTAIL t 0\n")
    world.broker.drain()
    assert not peer.connection.finished
    world.store.relieve()
    peer.settle()
    assert peer.connection.finished
    assert peer.take() == b"OK 0\nEOF\nOK 0\n"
