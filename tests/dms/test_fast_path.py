"""The fast path says what the plain path says, and the reads that it is for do take it."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dms import runs, wire
from dms.session import Session
from dms.settings import DmsSettings
from dms.wire import Status, Type
from shared.errors import StoreError
from shared.net.session import SessionBase
from tests.dms.world import Peer, World, statuses

NAME = wire.pack_name("q")
OTHER = wire.pack_name("r")


def produce(number: int, name: bytes = NAME, body: bytes = b"body") -> bytes:
    return wire.pack(Type.PRODUCE, number, name + body)


def turn(held: int, number: int, name: bytes = NAME, made: bytes = b"") -> bytes:
    return wire.pack(Type.ACK, held) + made + wire.pack(Type.CONSUME, number, name)


def first_id(number: int) -> int:
    return wire.DELIVERY_ID_BIT + number


READS = st.one_of(
    st.builds(produce, st.integers(0, 9), st.sampled_from([NAME, OTHER, b"", b"\0", b"\0\0", b"\0\1s"])),
    st.builds(turn, st.integers(0, 8).map(first_id), st.integers(0, 9), st.sampled_from([NAME, OTHER])),
    st.builds(
        turn,
        st.integers(0, 8).map(first_id),
        st.integers(0, 9),
        st.sampled_from([NAME, OTHER]),
        st.sampled_from(
            [produce(7), produce(7, OTHER), produce(7, b"\0\1s"), produce(7) * 2, b"\xde", produce(7)[:-1]]
        ),
    ),
    st.builds(lambda name: wire.pack(Type.CONSUME, 5, name), st.sampled_from([NAME, OTHER])),
    st.builds(lambda held: wire.pack(Type.NACK, first_id(held)), st.integers(0, 8)),
    st.builds(lambda held: wire.pack(Type.ACK, first_id(held)), st.integers(0, 8)),
    st.builds(lambda name: wire.pack(Type.DELETE_QUEUE, 6, name), st.just(OTHER)),
    st.sampled_from(
        [
            produce(1)[:-1],
            produce(1) + b"\xde",
            produce(1) * 2,
            b"".join((produce(1), turn(first_id(0), 2))),
            wire.pack(Type.PRODUCE, 3, NAME + bytes(5000)),
            wire.pack(Type.PRODUCE, 3, NAME, version=2),
            wire.pack(Type.PRODUCE, 3, NAME + b"x", status=4),
            turn(first_id(0), 2)[:-1],
            b"\xde\xad",
        ]
    ),
)


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
@given(st.lists(st.tuples(st.integers(0, 1), READS), max_size=16))
def test_both_paths_say_the_same(persist: bool, reads: list[tuple[int, bytes]]) -> None:
    assert said(persist, reads) == said(persist, reads, fast_path=False)


def said(
    persist: bool,
    reads: list[tuple[int, bytes]],
    *,
    fast_path: bool = True,
    one_by_one: bool = False,
    depth: int = 5,
) -> object:
    with pytest.MonkeyPatch.context() as patch:
        if not fast_path:
            patch.setattr(Session, "receive", SessionBase.receive)
        if one_by_one:
            patch.setattr(runs, "RUN_LEAST", 1 << 20)
        world = World(DmsSettings(persist=persist, depth=depth))
        peers = [world.connect(), world.connect()]
        for name in "qr":
            peers[0].create(name)
        found = []
        for place, data in reads:
            peers[place].send(data)
            found.append([peer.take() for peer in peers])
        peers[0].lose()
        found.append([peers[1].take()])
        return found, world.depths(), world.engine.counts.produced, world.engine.counts.delivered


def each(type_: Type, first: int, count: int, payload: bytes = b"") -> bytes:
    return b"".join(wire.pack(type_, number, payload) for number in range(first, first + count))


def turns(held: int, count: int, name: bytes = NAME) -> bytes:
    return b"".join(turn(first_id(held + number), number, name) for number in range(count))


NAMES = st.sampled_from([NAME, NAME, OTHER, b"\0\1s", b"\0\2q", b"\0\0", b"\0"])
COUNTS = st.sampled_from([1, 3, 4, 5, 6])
HELD = st.integers(0, 12)
RUNS = st.lists(
    st.one_of(
        st.builds(lambda name, count: each(Type.PRODUCE, 1, count, name + b"body"), NAMES, COUNTS),
        st.builds(lambda name, count: each(Type.CONSUME, 1, count, name), NAMES, COUNTS),
        st.builds(lambda held, count: each(Type.ACK, first_id(held), count), HELD, COUNTS),
        st.builds(turns, HELD, COUNTS, NAMES),
        st.sampled_from([b"", b"\xde", produce(1)[:-1], b"bad!" * 16, each(Type.ACK, 5, 4, NAME)]),
    ),
    max_size=5,
).map(b"".join)


TWO_QUEUES = each(Type.CONSUME, 10, 4, NAME) + each(Type.CONSUME, 14, 4, OTHER)
TURNS_OF_TWO = turns(0, 4, NAME) + turns(4, 4, OTHER)


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
@given(st.lists(st.tuples(st.integers(0, 1), RUNS), max_size=8))
@example([(0, each(Type.PRODUCE, 1, 9, NAME + b"x") + each(Type.CONSUME, 9, 1, NAME)), (0, TWO_QUEUES)])
@example([(0, each(Type.PRODUCE, 1, 20, NAME + b"x") + each(Type.CONSUME, 21, 8, NAME)), (0, TURNS_OF_TWO)])
def test_both_paths_say_the_same_of_runs(persist: bool, reads: list[tuple[int, bytes]]) -> None:
    found = said(persist, reads, depth=20)
    assert found == said(persist, reads, depth=20, fast_path=False)
    assert apart(found) == apart(said(persist, reads, depth=20, fast_path=False, one_by_one=True))


def apart(found: Any) -> object:
    """What was said, with what was pushed apart: where an ACK names a delivery that comes by the same
    read, that may stand before its answer or behind it.
    """
    exchanges, *rest = found
    frames = [frame for each in exchanges for frame in each]
    pushed = [[one for one in some if one[0] == Type.DELIVER] for some in frames]
    answers = [[one for one in some if one[0] != Type.DELIVER] for some in frames]
    return pushed, answers, rest


def test_of_a_damaged_queue_the_fast_path_gives_nothing_either() -> None:
    world = World()
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b")
    ((held, _),) = peer.consume("q")
    cold = world.engine.queues[b"q"].cold
    assert cold is not None
    cold.teller.untold = StoreError("a bit has turned over")
    peer.send(turn(held, 2))
    assert statuses(peer.take()) == [Status.OK, Status.INTERNAL]


def exchange(peer: Peer, data: bytes, *replies: tuple[Type, int]) -> None:
    if data:
        peer.send(data)
    assert [(frame[0], frame[3]) for frame in peer.take()] == [*replies]
