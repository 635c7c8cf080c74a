"""The fast path says what the plain path says, and the reads that it is for do take it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dms import runs, wire
from dms.session import Session
from dms.settings import DmsSettings
from dms.wire import Status, Type
from shared.errors import StoreError
from shared.net.session import SessionBase
from shared.storage.log import Ticket
from tests.dms.world import Peer, World, deliveries, statuses
from tests.support.connections import MemoryConnection

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


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
@given(st.lists(st.tuples(st.integers(0, 1), RUNS), max_size=8))
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


def test_more_than_a_few_runs_are_taken_too() -> None:
    reads = [(0, each(Type.PRODUCE, 1, 2500, NAME + b"body")), (0, each(Type.CONSUME, 1, 1500, NAME))]
    reads += [(0, turns(0, 1000)), (0, each(Type.ACK, first_id(1000), 1500))]
    assert said(False, reads, depth=3000) == said(False, reads, depth=3000, fast_path=False)


def test_what_a_closed_loop_sends_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(DmsSettings(persist=False))
    producer, consumer = world.connect(), world.connect()
    producer.create("q")
    consumer.send(wire.pack(Type.CONSUME, 1, NAME))
    monkeypatch.delattr(Session, "apply")
    for number in range(3):
        exchange(producer, produce(number), (Type.PRODUCE_OK, number))
        exchange(consumer, b"", (Type.DELIVER, first_id(number)))
        exchange(consumer, turn(first_id(number), 2), (Type.ACK_OK, first_id(number)))
    exchange(producer, produce(3), (Type.PRODUCE_OK, 3))
    exchange(consumer, b"", (Type.DELIVER, first_id(3)))
    acked, made, came = (Type.ACK_OK, first_id(3)), (Type.PRODUCE_OK, 4), (Type.DELIVER, first_id(4))
    exchange(consumer, turn(first_id(3), 2, made=produce(4)), acked, made, came)
    exchange(consumer, wire.pack(Type.ACK, first_id(4)), (Type.ACK_OK, first_id(4)))


def test_what_came_back_goes_before_what_nobody_had(world: World) -> None:
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b", b"c")
    (first, _), (second, _) = peer.consume("q", 2)
    peer.nack(first)
    peer.send(turn(second, 2))
    assert [body for _, body in deliveries(peer.take())] == [b"a"]
    assert world.engine.counts.redelivered == 1


def test_what_is_delayed_is_not_delivered_before_its_time(world: World) -> None:
    peer = world.connect()
    peer.create("q", b'{"delay_ms":5000}')
    peer.produce("q", b"a")
    world.advance(6)
    ((held, _),) = peer.consume("q")
    peer.produce("q", b"b")
    peer.send(turn(held, 2))
    assert [frame[0] for frame in peer.take()] == [Type.ACK_OK]
    world.advance(6)
    assert [body for _, body in deliveries(peer.take())] == [b"b"]


def test_a_delivery_on_the_fast_path_counts_over_a_restart() -> None:
    world = World()
    peer = world.connect()
    peer.create("q", b'{"max_deliveries":1}')
    peer.produce("q", b"a", b"b")
    ((held, _),) = peer.consume("q")
    peer.send(turn(held, 2))
    assert [body for _, body in deliveries(peer.take())] == [b"b"]
    world.advance(1)  # the note of the delivery is written
    world.kill()
    assert world.depths() == {"q": 0}


def test_an_ack_of_another_queues_message_is_that_queues(world: World) -> None:
    peer = world.connect()
    for name in "qr":
        peer.create(name)
        peer.produce(name, b"a", b"b")
    ((other, _),) = peer.consume("r")
    peer.consume("q")
    peer.send(turn(other, 2))
    assert statuses(peer.take()) == [Status.OK, Status.OK]
    assert world.depths() == {"q": 2, "r": 1}


def test_a_turn_with_a_queue_that_is_gone_is_refused(world: World) -> None:
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b")
    ((held, _),) = peer.consume("q")
    world.connect().ask(Type.DELETE_QUEUE, NAME)
    peer.send(turn(held, 2))
    assert statuses(peer.take()) == [Status.QUEUE_NOT_FOUND] * 2


def test_an_ack_before_a_produce_that_is_refused_counts_once(world: World) -> None:
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b")
    ((held, _),) = peer.consume("q")
    peer.send(turn(held, 2, made=produce(7, b"\0\1s")))
    frames = peer.take()
    assert sorted(statuses(frames)) == [Status.OK, Status.OK, Status.QUEUE_NOT_FOUND]
    assert [body for _, body in deliveries(frames)] == [b"b"]
    assert world.depths() == {"q": 1}


def test_of_a_damaged_queue_the_fast_path_gives_nothing_either() -> None:
    world = World()
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b")
    ((held, _),) = peer.consume("q")
    cold = world.engine.queues[b"q"].cold
    assert cold is not None
    cold.damage = StoreError("a bit has turned over")
    peer.send(turn(held, 2))
    assert statuses(peer.take()) == [Status.OK, Status.INTERNAL]


def exchange(peer: Peer, data: bytes, *replies: tuple[Type, int]) -> None:
    if data:
        peer.send(data)
    assert [(frame[0], frame[3]) for frame in peer.take()] == [*replies]


def test_a_delivery_goes_with_the_answers_to_the_commit_that_brought_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a")
    ((held, _),) = peer.consume("q")
    writes: list[bytes] = []
    monkeypatch.setattr(MemoryConnection, "write", lambda _, data: writes.append(data))
    peer.send(turn(held, 2, made=produce(4)))
    assert [[frame[0] for frame in wire.decode(data)[0]] for data in writes] == [
        [Type.ACK_OK, Type.PRODUCE_OK, Type.DELIVER]
    ]


def test_a_delivery_does_not_wait_for_a_commit_behind_its_own() -> None:
    world = World()
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"a")
    ((held, _),) = peer.consume("q")
    peer.send(wire.pack(Type.CONSUME, 2, NAME))
    peer.session.receive(wire.pack(Type.ACK, held))  # with the next commit
    queue = world.engine.queues[b"q"]
    queue.arrived([(0, 0, queue.end, (b"b",), 1, Ticket())])  # of an earlier one
    assert [body for _, body in deliveries(peer.take())] == [b"b"]
