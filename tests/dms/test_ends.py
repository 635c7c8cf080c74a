"""How connections end: by DISCONNECT, half closed, in a drain, as one too many; and one that is not read."""

import pytest

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from shared.net.stops import Stop
from tests.dms.world import NAME, World, statuses, with_queue


def test_disconnect_is_answered_and_closes(world: World) -> None:
    peer = with_queue(world)
    peer.ask(Type.CONSUME, NAME, 5)
    frames = peer.ask(Type.DISCONNECT, message_id=6)
    assert [(f[0], f[2], f[3]) for f in frames] == [
        (Type.ERROR, Status.TIMEOUT, 5),
        (Type.DISCONNECT_OK, 0, 6),
    ]
    assert peer.connection.finished


def test_the_consumes_of_a_half_closed_client_end_at_once_and_it_is_given_nothing(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.consume("orders", 2)
    peer.send(wire.pack(Type.LIST_QUEUES, 1)[:9])
    peer.close_input()
    other.produce("orders", b"late")
    assert statuses(peer.take()) == [Status.TIMEOUT] * 2
    assert peer.connection.finished
    assert [body for _, body in other.consume("orders")] == [b"late"]


def test_who_has_ended_while_its_input_is_held_back_is_given_nothing_and_what_it_acknowledged_counts(
    world: World,
) -> None:
    peer, other = with_queue(world), world.connect()
    peer.produce("orders", b"held")
    ((delivery, _),) = peer.consume("orders", 2)
    peer.session.pause_input(Stop.STORE)
    peer.session.receive(wire.pack(Type.ACK, delivery) + wire.pack(Type.CONSUME, 7, NAME))
    peer.session.hang_up()
    assert statuses(peer.take()) == [Status.TIMEOUT]
    other.produce("orders", b"late")
    assert peer.take() == []
    peer.session.resume_input(Stop.STORE)
    peer.close_input()
    world.settle()
    assert [(f[0], f[3]) for f in peer.take()] == [(Type.ACK_OK, delivery), (Type.ERROR, 7)]
    assert world.depths() == {"orders": 1}
    assert [body for _, body in other.consume("orders")] == [b"late"]


def test_a_half_closed_client_gives_back_what_it_holds_at_once(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.produce("orders", b"held")
    assert peer.consume("orders")
    peer.close_input()
    assert [body for _, body in other.consume("orders")] == [b"held"]


def test_a_half_closed_client_is_answered_what_waits_for_the_disk() -> None:
    world = World(DmsSettings())
    peer = with_queue(world)
    peer.session.receive(wire.pack(Type.PRODUCE, 8, NAME + b"a message"))
    peer.session.receive_eof()
    world.settle()
    assert [(frame[0], frame[3]) for frame in peer.take()] == [(Type.PRODUCE_OK, 8)]
    assert peer.connection.finished
    assert world.depths() == {"orders": 1}


def test_in_a_drain_waits_end_and_a_goodbye_is_said(world: World) -> None:
    peer, silent = with_queue(world), world.connect()
    peer.ask(Type.CONSUME, NAME, 5)
    world.drain()
    world.settle()
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [
        (Type.ERROR, Status.TIMEOUT, 5),
        (Type.DISCONNECT, 0, 0),
    ]
    assert [(f[0], f[3]) for f in silent.take()] == [(Type.DISCONNECT, 0)]
    assert peer.connection.finished
    assert silent.connection.finished


def test_in_a_drain_what_comes_back_is_given_to_nobody_else(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.produce("orders", b"held")
    peer.consume("orders")
    other.ask(Type.CONSUME, NAME, 5)
    world.engine.drain()
    peer.lose()
    assert other.take() == []
    other.session.drain()
    assert [frame[0] for frame in other.take()] == [Type.ERROR, Type.DISCONNECT]
    assert world.depths() == {"orders": 1}


def test_who_is_closed_by_an_administrator_gets_a_goodbye_and_gives_back_what_it_held(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    other.produce("orders", b"held")
    peer.ask(Type.CONSUME, NAME, 5)
    peer.session.kick("the test says so")
    assert [(f[0], f[3]) for f in peer.take()] == [(Type.DISCONNECT, 0)]
    assert peer.connection.finished
    assert [body for _, body in other.consume("orders")] == [b"held"]


@pytest.mark.parametrize(
    "late",
    [wire.pack(Type.DISCONNECT, 9), b"not DMS at all, and long enough", wire.pack(Type.LIST_QUEUES, 9)[:9]],
)
def test_what_comes_while_a_drain_waits_for_the_disk_is_not_executed(late: bytes) -> None:
    world = World(DmsSettings())
    peer = world.connect()
    peer.create("orders")
    peer.take()
    peer.session.receive(wire.pack(Type.PRODUCE, 8, NAME + b"a message"))
    world.drain()
    peer.session.receive(late)
    peer.session.receive(wire.pack(Type.PRODUCE, 10, NAME + b"too late"))
    world.advance(31)
    world.settle()
    assert [(frame[0], frame[3]) for frame in peer.take()] == [(Type.PRODUCE_OK, 8), (Type.DISCONNECT, 0)]
    assert peer.connection.finished
    assert world.depths() == {"orders": 1}


def test_the_257th_client_is_told(world: World) -> None:
    clients = [world.connect() for _ in range(256)]
    late = world.connect(handshake=False)
    late.send(wire.pack(Type.HANDSHAKE, 7) + wire.pack(Type.CREATE_QUEUE, 8, NAME))
    assert [frame[2:4] for frame in late.take()] == [(Status.INTERNAL, 7)]
    assert world.depths() == {}
    assert late.connection.finished
    late.lose()
    clients.pop().lose()
    world.connect()


def test_who_has_not_made_the_handshake_takes_nobodys_place(world: World) -> None:
    silent = [world.connect(handshake=False) for _ in range(256)]
    silent[0].send(wire.pack(Type.HANDSHAKE, 1)[:-1])
    assert (silent[0].connection.awaits_first or b"").startswith(wire.pack(Type.ERROR, 0)[:4])
    clients = [world.connect() for _ in range(256)]
    assert all(client.connection.awaits_first is None for client in clients)
    silent[0].send(wire.pack(Type.HANDSHAKE, 1)[-1:])
    assert statuses(silent[0].take()) == [Status.INTERNAL]
