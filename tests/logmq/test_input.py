"""However input is cut, whatever it holds, requests are executed once, in order, and answered in order."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmq.settings import LogmqSettings
from tests.logmq import model
from tests.logmq.world import Peer, World, slow_reads


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
def test_input_in_pieces_of_any_size_is_answered_alike(peer: Peer, size: int) -> None:
    answers = b""
    for at in range(0, len(SENT), size):
        answers += peer.ask(SENT[at : at + size])
    assert answers == ANSWERED


def test_input_cut_anywhere_is_answered_alike() -> None:
    for cut in range(1, len(SENT)):
        peer = World().connect()
        peer.send(SENT[:cut])
        peer.send(SENT[cut:])
        peer.settle()
        assert peer.take() == ANSWERED, cut


@given(
    st.lists(model.steps, max_size=40),
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(0, 7),
    st.data(),
)
def test_pipelined_requests_are_answered_as_by_a_plain_model(
    steps: list[tuple[Any, ...]], cuts: list[int], settled: int, data: st.DataObject
) -> None:
    asked = model.ask_model(steps)
    stream = b"".join(one.sent for one in asked)
    world = World()
    peer = world.connect(bound=data.draw(st.sampled_from([50, 1 << 20])))
    answers, before = b"", 0
    for number, cut in enumerate([*sorted(cuts), len(stream)]):
        peer.send(stream[before:cut])
        before = max(before, cut)
        if settled >> (number % 3) & 1:
            world.commit()
            answers += peer.take()
    while more := peer.ask(b""):
        answers += more
    assert model.strip_answers(answers, asked) == b""
    assert not peer.session.replies.pending


@given(st.lists(model.steps, max_size=25), st.sets(st.sampled_from(model.TOPICS)))
def test_cold_reads_change_no_answer(steps: list[tuple[Any, ...]], cold: set[str]) -> None:
    world = World()
    peer = world.connect()
    asked = model.ask_model(steps)
    with slow_reads(*cold) as disk:
        answers = peer.ask(b"".join(one.sent for one in asked))
        while disk.waiting:
            disk.waiting.pop(0)()
            answers += peer.ask(b"")
    assert model.strip_answers(answers, asked) == b""


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
    if world.broker.counts.tails + world.broker.counts.fetches_waiting == 0:
        assert peer.connection.finished
    assert other.ask(b"PRODUCE other fine\n") == b"OK 0\n"


def test_consumes_in_any_order_are_answered_alike(peer: Peer) -> None:
    peer.ask(b"".join(b"PRODUCE t %03d\n" % number for number in range(100)))
    order = random.Random(2).choices(range(110), k=500)
    lines = b"".join(b"CONSUME t %d\n" % (7 * number) for number in order)
    expected = b"".join(
        b"MESSAGE %d 3 %03d\n" % (7 * number, number) if number < 100 else b"EOF\n" for number in order
    )
    assert peer.ask(lines) == expected


def test_what_has_come_of_an_unfinished_body_counts_against_the_bound_of_all(peer: Peer) -> None:
    peer.send(b"APPEND t 9000\n" + b"x" * 5000)
    assert peer.connection.held_bytes == 5000
    peer.send(b"x" * 3000)
    assert peer.connection.held_bytes == 8000
    assert peer.ask(b"x" * 1000 + b"PIN") == b"OK 0\n"
    assert peer.connection.held_bytes == 0


@pytest.mark.parametrize("word", [b"PRODUCE", b"PRODUCE to several", b"APPEND", b"CONSUME"])
@given(st.lists(st.binary(max_size=8), min_size=1, max_size=12), st.booleans())
def test_a_read_that_is_one_run_does_what_its_requests_do_one_by_one(
    word: bytes, messages: list[bytes], alike: bool
) -> None:
    """PING before them has them looked at line by line."""
    if alike:
        messages = [messages[0]] * len(messages)
    written = b"".join(b"APPEND t %d\n%b" % (len(message), message) for message in messages)
    lines = {
        b"PRODUCE": b"".join(b"PRODUCE t %b\n" % message for message in messages),
        b"PRODUCE to several": b"".join(
            b"PRODUCE %b %b\n" % (b"tuv"[number % 3 : number % 3 + 1], message)
            for number, message in enumerate(messages)
        ),
        b"APPEND": written,
        b"CONSUME": b"".join(b"CONSUME t %d\n" % (4 * n) for n in range(3 * len(messages))),
    }[word]
    found = []
    for before in (b"", b"PING\n"):
        world = World()
        peer = world.connect()
        peer.ask(b"PRODUCE t \n" + written)
        peer.ask(b"PRODUCE t x\nPRODUCE u x\nPRODUCE v x\nDELETE v\n")
        answers = peer.ask(before + lines)
        there = {name: world.messages(name) for name in world.topics()}
        found.append((answers.removeprefix(b"PONG\n"), there, world.broker.counts.refusals))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "message",
    [b"", b"x", b"\r", b"x\r", b"x\ry", b"x" * 1000, b"x" * 1001],
    ids=["empty", "short", "CR", "CR at its end", "CR inside", "longest", "too long"],
)
@pytest.mark.parametrize("rest", [b"", b"PRODU"], ids=["alone", "and a beginning"])
def test_a_line_of_the_topic_before_is_taken_as_any_other(message: bytes, rest: bytes) -> None:
    """PING before it has it looked at as a line."""
    found = []
    for before in (b"", b"PING\n"):
        world = World(LogmqSettings(message_bytes_max=1000))
        peer = world.connect()
        peer.ask(b"PRODUCE t first\n")
        answers = peer.ask(before + b"PRODUCE t " + message + b"\n" + rest)
        found.append((answers.removeprefix(b"PONG\n"), world.messages("t"), world.broker.counts.refusals))
    assert found[0] == found[1]
    assert len(found[0][1]) == (2 if len(message) <= 1000 else 1)
