"""Handshakes and frames that are not in order: which are refused, which close, which are waited for."""

import pytest

from dms import wire
from dms.states import State
from dms.wire import Status, Type
from tests.dms.world import MEMORY, NAME, World, statuses, with_queue


def test_before_the_handshake_everything_else_closes() -> None:
    world = World(MEMORY)
    for type_ in set(range(256)) - {Type.HANDSHAKE}:
        peer = world.connect(handshake=False)
        peer.send(wire.pack(type_, 9, NAME))
        assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.PROTOCOL_ERROR, 9)], type_
        assert peer.connection.finished


def test_a_type_that_is_no_request_is_refused_and_the_connection_goes_on() -> None:
    peer = World(MEMORY).connect()
    for type_ in set(range(256)) - set(wire.REPLIES) - {Type.DISCONNECT_OK}:
        frames = peer.ask(type_, b"x", 9)  # type: ignore[arg-type]
        assert [(f[0], f[2], f[3]) for f in frames] == [(Type.ERROR, Status.INVALID_TYPE, 9)], type_
    assert peer.ask(Type.DISCONNECT_OK) == []
    assert statuses(peer.ask(Type.LIST_QUEUES)) == [Status.OK]


@pytest.mark.parametrize("handshake", [False, True])
def test_another_version_is_refused_in_the_handshakes_own_words(handshake: bool) -> None:
    peer = World(MEMORY).connect(handshake=handshake)
    peer.send(wire.pack(Type.HANDSHAKE, 3, b"", version=2))
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.HANDSHAKE_NACK, Status.VERSION_MISMATCH, 3)]
    assert peer.connection.finished
    peer = World(MEMORY).connect(handshake=handshake)
    peer.send(wire.pack(Type.ACK, 3, b"", version=0))
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.VERSION_MISMATCH, 3)]
    assert peer.connection.finished


def test_a_second_handshake_is_refused_and_the_connection_goes_on() -> None:
    peer = World(MEMORY).connect()
    assert statuses(peer.ask(Type.HANDSHAKE)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.LIST_QUEUES)) == [Status.OK]


@pytest.mark.parametrize("handshake", [False, True])
def test_bad_magic_closes(handshake: bool) -> None:
    peer = World(MEMORY).connect(handshake=handshake)
    peer.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    (frame,) = peer.take()
    assert (frame[0], frame[2]) == (Type.ERROR, Status.BAD_MAGIC)
    assert peer.connection.finished


@pytest.mark.parametrize("size", [4097, 70_000, 1 << 20])
@pytest.mark.parametrize("handshake", [False, True])
def test_a_payload_that_is_too_large_is_thrown_away_and_told(size: int, handshake: bool) -> None:
    peer = World(MEMORY).connect(handshake=handshake)
    never = wire.pack(Type.PRODUCE, 1, NAME + b"never")
    payload = (never * (size // len(never) + 1))[:size]
    frame = wire.HEADER.pack(wire.MAGIC, size, Type.PRODUCE, 1, 0, 5) + payload
    for at in range(0, len(frame), 50_000):
        assert peer.take() == []
        peer.send(frame[at : at + 50_000])
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.PAYLOAD_TOO_LARGE, 5)]
    assert peer.session.state is (State.OPEN if handshake else State.NEW)
    assert not peer.connection.finished


def test_a_length_above_a_mebibyte_closes() -> None:
    peer = World(MEMORY).connect()
    peer.send(wire.HEADER.pack(wire.MAGIC, (1 << 20) + 1, Type.PRODUCE, 1, 0, 5))
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.PAYLOAD_TOO_LARGE, 5)]
    assert peer.connection.finished


def test_checks_go_magic_length_version_handshake() -> None:
    for frame, status in (
        (wire.HEADER.pack(0, 1 << 30, 0x77, 9, 0, 5), Status.BAD_MAGIC),
        (wire.HEADER.pack(wire.MAGIC, 1 << 30, 0x77, 9, 0, 5), Status.PAYLOAD_TOO_LARGE),
        (wire.HEADER.pack(wire.MAGIC, 10, 0x77, 9, 0, 5), Status.VERSION_MISMATCH),
        (wire.HEADER.pack(wire.MAGIC, 10, 0x77, 1, 0, 5), Status.PROTOCOL_ERROR),
    ):
        peer = World(MEMORY).connect(handshake=False)
        peer.send(frame)
        assert statuses(peer.take()) == [status]
        assert peer.connection.finished


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        (Type.CREATE_QUEUE, b""),
        (Type.CREATE_QUEUE, b"\0\0"),
        (Type.CREATE_QUEUE, b"\0\2a"),
        (Type.CREATE_QUEUE, b"\0\1\xff"),
        (Type.CREATE_QUEUE, b"\0\1\n"),
        (Type.CREATE_QUEUE, b"\0\x41" + b"a" * 65),
        (Type.CREATE_QUEUE, b"\0\1a{"),
        (Type.CREATE_QUEUE, b"\0\1a[]"),
        (Type.CREATE_QUEUE, b"\0\1a" + b"[" * 4000),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":0}'),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":-1}'),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":"1"}'),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":1e999}'),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":true}'),
        (Type.CREATE_QUEUE, b'\0\1a{"depth":1.5}'),
        (Type.CREATE_QUEUE, b'\0\1a{"ttl_ms":-1}'),
        (Type.CREATE_QUEUE, b'\0\1a{"dead_letter":"a"}'),
        (Type.CREATE_QUEUE, b'\0\1a{"dead_letter":7}'),
        (Type.CREATE_QUEUE, b'\0\1a{"dead_letter":"\\u0000"}'),
        (Type.DELETE_QUEUE, NAME + b"x"),
        (Type.LIST_QUEUES, b"\0"),
        (Type.LIST_QUEUES, NAME + b"x"),
        (Type.PRODUCE, b""),
        (Type.PRODUCE, b"\0\7orders"),
        (Type.PRODUCE, b"\0\0body"),
        (Type.CONSUME, NAME + b"x"),
        (Type.CONSUME, b""),
        (Type.ACK, b"x"),
        (Type.NACK, b"x"),
        (Type.DISCONNECT, b"x"),
    ],
)
def test_a_malformed_payload_is_refused_and_the_connection_goes_on(type_: Type, payload: bytes) -> None:
    peer = with_queue(World(MEMORY))
    assert [(f[0], f[2], f[3]) for f in peer.ask(type_, payload, 44)] == [
        (Type.ERROR, Status.PROTOCOL_ERROR, 44)
    ]
    assert statuses(peer.ask(Type.LIST_QUEUES)) == [Status.OK]


def test_a_requests_status_means_nothing(world: World) -> None:
    peer = with_queue(world)
    for type_, payload in ((Type.PRODUCE, NAME + b"a"), (Type.PRODUCE, NAME + b"b"), (Type.CONSUME, NAME)):
        peer.send(wire.pack(type_, 5, payload, status=77))
    assert [f[0] for f in peer.take()] == [Type.PRODUCE_OK, Type.PRODUCE_OK, Type.DELIVER]


@pytest.mark.parametrize("second", ["orders", "others"])
def test_a_payload_that_is_too_large_is_refused_among_others_too(world: World, second: str) -> None:
    peer = with_queue(world)
    peer.create("others")
    sizes = (10, 5000, 10)
    names = ("orders", second, "orders")
    peer.send(
        b"".join(
            wire.pack(Type.PRODUCE, number, wire.pack_name(name) + bytes(size))
            for number, (name, size) in enumerate(zip(names, sizes, strict=True))
        )
    )
    assert statuses(peer.take()) == [Status.OK, Status.PAYLOAD_TOO_LARGE, Status.OK]
    assert sum(world.depths().values()) == 2


def test_a_frame_that_does_not_end_is_not_waited_for_for_ever() -> None:
    world = World(MEMORY)
    slow = world.connect()
    slow.send(wire.pack(Type.CREATE_QUEUE, 1, NAME)[:20])
    world.advance(29)
    assert not slow.connection.finished
    world.advance(2)
    assert statuses(slow.take()) == [Status.PROTOCOL_ERROR]
    assert slow.connection.finished
