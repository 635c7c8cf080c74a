"""For each reason to stop a session reads nothing more, keeps what it has, and goes on in time."""

import attrs
import pytest

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Type
from shared.storage.format import record
from tests.dms.world import MEMORY, NAME, Peer, World, deliveries, with_queue
from tests.support.stores import ALWAYS, SMALL
from tests.support.turns import short_turns

LATER = 77_777_777
"""The id of a request that nobody else has."""
TIGHT = attrs.evolve(SMALL, pending_bytes_max=1)


def produces(*bodies: bytes) -> bytes:
    return b"".join(wire.pack(Type.PRODUCE, number, NAME + body) for number, body in enumerate(bodies, 1))


def consumes(count: int) -> bytes:
    return b"".join(wire.pack(Type.CONSUME, number, NAME) for number in range(1, count + 1))


def is_stopped(peer: Peer) -> None:
    """Nothing more is read, and what has been read already is kept: nothing is done about it."""
    assert not peer.connection.reading
    depths, before = peer.world.depths(), peer.connection.outbox.size
    peer.session.receive(wire.pack(Type.PRODUCE, LATER, NAME + b"later"))
    assert peer.world.depths() == depths
    assert peer.connection.outbox.size == before
    assert not peer.connection.reading


def goes_on(peer: Peer) -> list[wire.Frame]:
    """It reads again, and the message that came meanwhile is taken. Returns what else was said."""
    frames = peer.take()
    peer.world.settle()
    while more := peer.take():
        frames += more
        peer.world.settle()
    assert peer.connection.reading
    assert [frame[0] for frame in frames if frame[3] == LATER] == [Type.PRODUCE_OK]
    return [frame for frame in frames if frame[3] != LATER]


CONGESTED_BY = {
    "one": produces(b"one"),
    "several": produces(b"one", b"two", b"three"),
    "mixed": produces(b"one") + wire.pack(Type.LIST_QUEUES, 7) + produces(b"two"),
    "refused": wire.pack(Type.NACK, 1 << 31),
}


@pytest.mark.parametrize("request_", CONGESTED_BY.values(), ids=CONGESTED_BY.keys())
def test_a_store_that_does_not_keep_up(request_: bytes) -> None:
    world = World(storage=TIGHT)
    peer = with_queue(world)
    ballast, _ = world.store.namespace("ballast", ALWAYS).create("ballast")
    while not world.store.congested:
        ballast.append(record(bytes(1 << 20)), 1)
    peer.session.receive(request_)
    is_stopped(peer)
    world.settle()
    goes_on(peer)


def test_an_acknowledgement_while_the_store_does_not_keep_up() -> None:
    world = World(storage=TIGHT)
    peer = with_queue(world)
    peer.produce("orders", b"one", b"two")
    ((held, _),) = peer.consume("orders")
    ballast, _ = world.store.namespace("ballast", ALWAYS).create("ballast")
    while not world.store.congested:
        ballast.append(record(bytes(1 << 20)), 1)
    peer.session.receive(wire.pack(Type.ACK, held) + consumes(1))
    is_stopped(peer)
    world.settle()
    assert [body for _, body in deliveries(goes_on(peer))] == [b"two"]


@pytest.mark.parametrize("settings", [MEMORY, DmsSettings()], ids=["memory", "disk"])
def test_a_peer_that_does_not_read(settings: DmsSettings) -> None:
    """`MemoryConnection` stops reading by itself then; the session must, too."""
    world = World(settings)
    peer, bodies = with_queue(world), [b"%04d" % number * 1000 for number in range(20)]
    peer.produce("orders", *bodies)
    slow = world.connect(bound=10_000)
    slow.session.receive(consumes(5))
    slow.session.receive(wire.pack(Type.LIST_QUEUES, 50) + consumes(5))
    is_stopped(slow)
    assert [body for _, body in deliveries(goes_on(slow))] == bodies[:10]


LONG_WORK = {
    "requests": [wire.pack(Type.CREATE_QUEUE, n, wire.pack_name(f"q{n}")) for n in range(300)],
    "deletions": [wire.pack(Type.DELETE_QUEUE, n, wire.pack_name(f"q{n}")) for n in range(300)],
    "frames": [produces(b"x") + wire.pack(Type.ACK, 1 << 31 | n) for n in range(3000)],
    "acknowledgements": [wire.pack(Type.ACK, 1 << 31 | n * 3) for n in range(3000)],
    "messages": [produces(b"x" * (n % 3)) for n in range(20_000)],
}


@pytest.mark.parametrize("requests", LONG_WORK.values(), ids=LONG_WORK.keys())
def test_others_are_served_first_after_a_stretch(
    requests: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    short_turns(monkeypatch)
    world = World(DmsSettings(persist=False, depth=1_000_000, queues_max=1000))
    peer = with_queue(world)
    expected = len(wire.decode(b"".join(requests))[0])
    peer.session.receive(b"".join(requests))
    is_stopped(peer)
    answered = len(wire.decode(peer.connection.taken())[0])
    assert 0 < answered < expected, "the first turn is over, and there is more to do"
    assert len(goes_on(peer)) == expected - answered
