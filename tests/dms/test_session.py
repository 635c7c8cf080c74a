"""What a connection may do, and what it is answered."""

import pytest

from dms import wire
from dms.settings import DmsSettings
from dms.states import State
from dms.wire import Status, Type
from tests.dms.world import Peer, World, deliveries, statuses

MEMORY = DmsSettings(persist=False)
MODES = [MEMORY, DmsSettings()]
NAME = wire.pack_name("orders")


@pytest.fixture(params=MODES, ids=["memory", "always"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def with_queue(world: World, name: str = "orders", options: bytes = b"") -> Peer:
    peer = world.connect()
    assert statuses(peer.create(name, options)) == [Status.OK]
    return peer


# -- the handshake, and frames that are not in order


@pytest.mark.parametrize("type_", [t for t in range(256) if t != Type.HANDSHAKE])
def test_before_the_handshake_everything_else_closes(type_: int) -> None:
    peer = World(MEMORY).connect(handshake=False)
    peer.send(wire.pack(type_, 9, NAME))
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.PROTOCOL_ERROR, 9)]
    assert peer.connection.finished


@pytest.mark.parametrize("type_", [t for t in range(256) if t not in wire.REPLIES])
def test_a_type_that_is_no_request_is_refused_and_the_connection_goes_on(type_: int) -> None:
    peer = World(MEMORY).connect()
    frames = peer.ask(Type.DISCONNECT_OK) if type_ == Type.DISCONNECT_OK else peer.ask(type_, b"x", 9)  # type: ignore[arg-type]
    if type_ == Type.DISCONNECT_OK:
        assert frames == []
    else:
        assert [(f[0], f[2], f[3]) for f in frames] == [(Type.ERROR, Status.INVALID_TYPE, 9)]
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
    frame = wire.HEADER.pack(wire.MAGIC, size, Type.PRODUCE, 1, 0, 5) + bytes(size)
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
        (Type.CREATE_QUEUE, b'\0\1a{"depth":0}'),
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


def test_an_unknown_option_is_named() -> None:
    peer = World(MEMORY).connect()
    (frame,) = peer.create("a", b'{"depht":5}')
    assert b"depht" in frame[4]
    assert peer.ask(Type.LIST_QUEUES)[0][4] == b"\0\0"


def test_a_requests_status_means_nothing(world: World) -> None:
    peer = with_queue(world)
    for type_, payload in ((Type.PRODUCE, NAME + b"a"), (Type.PRODUCE, NAME + b"b"), (Type.CONSUME, NAME)):
        peer.send(wire.pack(type_, 5, payload, status=77))
    assert [f[0] for f in peer.take()] == [Type.PRODUCE_OK, Type.PRODUCE_OK, Type.DELIVER]


# -- queues


def test_queues_come_and_go(world: World) -> None:
    peer = with_queue(world)
    assert statuses(peer.create("orders")) == [Status.QUEUE_EXISTS]
    assert statuses(peer.ask(Type.DELETE_QUEUE, NAME)) == [Status.OK]
    for type_, payload in (
        (Type.DELETE_QUEUE, NAME),
        (Type.PRODUCE, NAME + b"x"),
        (Type.CONSUME, NAME),
    ):
        assert statuses(peer.ask(type_, payload)) == [Status.QUEUE_NOT_FOUND]
    assert statuses(peer.create("orders")) == [Status.OK]


def test_the_129th_queue_is_refused(world: World) -> None:
    peer = world.connect()
    for number in range(128):
        assert statuses(peer.create(f"q{number}")) == [Status.OK]
    assert statuses(peer.create("one-more")) == [Status.INTERNAL]
    total, entries = wire.unpack_list(peer.ask(Type.LIST_QUEUES)[0][4])
    assert (total, len(entries)) == (128, 128)


def test_a_long_list_is_read_page_by_page() -> None:
    world = World(DmsSettings(persist=False, queues_max=2000))
    peer = world.connect()
    names = sorted(f"queue-{number:04}-{'x' * 40}" for number in range(300))
    for name in names:
        peer.create(name)
    found: list[str] = []
    payload = b""
    while True:
        total, entries = wire.unpack_list(peer.ask(Type.LIST_QUEUES, payload)[0][4])
        assert total == 300
        if not entries:
            break
        found += [name for name, _ in entries]
        payload = wire.pack_name(found[-1])
    assert found == names


def test_deleting_a_queue_answers_who_waits_and_voids_what_is_held(world: World) -> None:
    owner, consumer = with_queue(world), world.connect()
    owner.produce("orders", b"a")
    ((held, _),) = consumer.consume("orders", 3)
    owner.ask(Type.DELETE_QUEUE, NAME)
    assert statuses(consumer.take()) == [Status.QUEUE_NOT_FOUND] * 2
    assert statuses(consumer.ack(held)) == [Status.QUEUE_NOT_FOUND]
    assert statuses(consumer.ack(held)) == [Status.PROTOCOL_ERROR]
    owner.create("orders")
    assert world.depths() == {"orders": 0}


# -- messages


def test_a_message_leaves_its_queue_when_it_is_acknowledged(world: World) -> None:
    peer = with_queue(world)
    assert statuses(peer.produce("orders", b"a", b"", b"ccc" * 1000)) == [Status.OK] * 3
    first, second, third = peer.consume("orders", 3)
    assert [first[1], second[1], third[1]] == [b"a", b"", b"ccc" * 1000]
    assert all(number & wire.DELIVERY_ID_BIT for number, _ in (first, second, third))
    assert world.depths() == {"orders": 3}
    assert [(f[0], f[3]) for f in peer.ack(second[0])] == [(Type.ACK_OK, second[0])]
    assert world.depths() == {"orders": 2}
    assert statuses(peer.ack(second[0])) == [Status.PROTOCOL_ERROR]


def test_what_comes_back_has_its_old_place(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", *(b"%d" % n for n in range(6)))
    held = peer.consume("orders", 4)
    assert [(f[0], f[3]) for f in peer.nack(held[2][0])] == [(Type.NACK_OK, held[2][0])]
    peer.nack(held[0][0])
    assert [body for _, body in peer.consume("orders", 4)] == [b"0", b"2", b"4", b"5"]
    peer.lose()
    other = world.connect()
    assert [body for _, body in other.consume("orders", 6)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_an_ack_may_name_its_queue_and_no_other(world: World) -> None:
    peer = with_queue(world)
    peer.create("other")
    peer.produce("orders", b"a", b"b")
    (one, _), (two, _) = peer.consume("orders", 2)
    assert statuses(peer.ask(Type.ACK, wire.pack_name("other"), one)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.ACK, NAME, one)) == [Status.OK]
    assert statuses(peer.ask(Type.NACK, wire.pack_name("other"), two)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.NACK, NAME, two)) == [Status.OK]


def test_another_connections_delivery_cannot_be_acknowledged(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    assert statuses(other.ack(held)) == [Status.PROTOCOL_ERROR]
    assert statuses(other.nack(held)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ack(held)) == [Status.OK]


def test_a_full_queue_says_so_and_held_messages_count(world: World) -> None:
    peer = with_queue(world, options=b'{"depth":3}')
    assert statuses(peer.produce("orders", *[b"x"] * 5)) == [Status.OK] * 3 + [Status.QUEUE_FULL] * 2
    ((held, _),) = peer.consume("orders")
    assert statuses(peer.produce("orders", b"x")) == [Status.QUEUE_FULL]
    peer.ack(held)
    assert statuses(peer.produce("orders", b"x")) == [Status.OK]


def test_produces_to_several_queues_are_answered_in_their_order(world: World) -> None:
    peer = with_queue(world, "a")
    peer.create("small", b'{"depth":1}')
    asked = ["a", "small", "a", "none", "small", "a", "small", "a", "small"]
    names = [wire.pack_name(name) for name in asked]
    peer.send(
        b"".join(wire.pack(Type.PRODUCE, 70 + n, name + b"%d" % n) for n, name in enumerate(names, start=1))
    )
    full, none, fine = Status.QUEUE_FULL, Status.QUEUE_NOT_FOUND, Status.OK
    assert [(frame[3] - 70, frame[2]) for frame in peer.take()] == list(
        enumerate((fine, fine, fine, none, full, fine, full, fine, full), start=1)
    )
    assert [body for _, body in peer.consume("a", 4)] == [b"1", b"3", b"6", b"8"]
    assert [body for _, body in world.connect().consume("small")] == [b"2"]


def test_consumers_take_turns(world: World) -> None:
    producer = with_queue(world)
    consumers = [world.connect() for _ in range(3)]
    for _ in range(2):
        for consumer in consumers:
            assert consumer.consume("orders") == []
    producer.produce("orders", *(b"%d" % n for n in range(6)))
    taken = [[body for _, body in deliveries(consumer.take())] for consumer in consumers]
    assert taken == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_a_consume_that_waits_holds_up_nothing(world: World) -> None:
    peer = with_queue(world)
    assert peer.consume("orders", 2) == []
    assert statuses(peer.ask(Type.LIST_QUEUES)) == [Status.OK]
    assert [f[0] for f in peer.produce("orders", b"a")] in (
        [Type.DELIVER, Type.PRODUCE_OK],
        [Type.PRODUCE_OK, Type.DELIVER],
    )


def test_while_a_consume_waits_another_queue_is_refused(world: World) -> None:
    peer = with_queue(world)
    peer.create("other")
    peer.consume("orders")
    assert statuses(peer.ask(Type.CONSUME, wire.pack_name("other"))) == [Status.PROTOCOL_ERROR]
    world.advance(30)
    assert statuses(peer.take()) == [Status.TIMEOUT]
    assert peer.ask(Type.CONSUME, wire.pack_name("other")) == []


def test_a_consume_waits_thirty_seconds_and_no_message_is_lost_to_it(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.ask(Type.CONSUME, NAME, 11)
    world.advance(20)
    peer.ask(Type.CONSUME, NAME, 12)
    other.consume("orders")
    world.advance(9.9)
    assert peer.take() == []
    world.advance(0.1)
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.TIMEOUT, 11)]
    peer.produce("orders", b"a")
    peer.produce("orders", b"b")
    assert [body for _, body in deliveries(other.take())] == [b"b"]
    world.advance(100)
    assert peer.take() == []


def test_too_many_credits_are_refused() -> None:
    world = World(DmsSettings(persist=False, credits_max=5))
    peer = with_queue(world)
    peer.send(wire.pack(Type.CONSUME, 3, NAME) * 8)
    assert statuses(peer.take()) == [Status.INTERNAL] * 3


# -- ends


def test_disconnect_is_answered_and_closes(world: World) -> None:
    peer = with_queue(world)
    peer.ask(Type.CONSUME, NAME, 5)
    frames = peer.ask(Type.DISCONNECT, message_id=6)
    assert [(f[0], f[2], f[3]) for f in frames] == [
        (Type.ERROR, Status.TIMEOUT, 5),
        (Type.DISCONNECT_OK, 0, 6),
    ]
    assert peer.connection.finished


def test_a_half_closed_client_gets_what_its_consume_waits_for(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.consume("orders")
    peer.close_input()
    assert not peer.connection.finished
    other.produce("orders", b"late")
    assert [body for _, body in deliveries(peer.take())] == [b"late"]
    assert peer.connection.finished


def test_a_half_closed_client_is_told_when_nothing_comes(world: World) -> None:
    peer = with_queue(world)
    peer.consume("orders", 2)
    peer.send(wire.pack(Type.LIST_QUEUES, 1)[:9])
    peer.close_input()
    world.advance(31)
    assert statuses(peer.take()) == [Status.TIMEOUT] * 2
    assert peer.connection.finished


def test_in_a_drain_waits_end_and_a_goodbye_is_said(world: World) -> None:
    peer, silent = with_queue(world), world.connect()
    peer.ask(Type.CONSUME, NAME, 5)
    world.broker.drain()
    world.settle()
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [
        (Type.ERROR, Status.TIMEOUT, 5),
        (Type.DISCONNECT, 0, 0),
    ]
    assert [(f[0], f[3]) for f in silent.take()] == [(Type.DISCONNECT, 0)]
    assert peer.connection.finished
    assert silent.connection.finished


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
    world.broker.drain()
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
    assert statuses(late.take()) == [Status.INTERNAL]
    assert late.connection.finished
    late.lose()
    clients.pop().lose()
    world.connect()


def test_a_frame_that_does_not_end_is_not_waited_for_for_ever() -> None:
    world = World(MEMORY)
    slow = world.connect()
    slow.send(wire.pack(Type.CREATE_QUEUE, 1, NAME)[:20])
    world.advance(29)
    assert not slow.connection.finished
    world.advance(2)
    assert statuses(slow.take()) == [Status.PROTOCOL_ERROR]
    assert slow.connection.finished


def test_a_thrown_away_payload_may_not_trickle_for_ever() -> None:
    world = World(MEMORY)
    slow = world.connect()
    slow.send(wire.HEADER.pack(wire.MAGIC, 5000, Type.PRODUCE, 1, 0, 5))
    for _ in range(40):
        world.advance(1)
        slow.send(b"x")
    assert statuses(slow.take()) == [Status.PROTOCOL_ERROR]
    assert slow.connection.finished


def test_what_vanishes_mid_frame_leaves_nothing_behind(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.send(wire.pack(Type.PRODUCE, 1, NAME + b"whole") + wire.pack(Type.PRODUCE, 2, NAME + b"half")[:-1])
    peer.lose()
    assert [body for _, body in other.consume("orders", 2)] == [b"whole"]


def test_who_does_not_read_is_not_read_from() -> None:
    world = World(DmsSettings(persist=False, queues_max=200))
    peer = world.connect(bound=10_000)
    for number in range(150):
        peer.create(f"{number:060}")
    for _ in range(300):
        peer.send(wire.pack(Type.LIST_QUEUES, 1))
    assert not peer.connection.reading
    assert peer.connection.outbox.size < 300_000
    taken = 0
    while frames := peer.take():
        taken += len(frames)
    assert taken == 300


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_refusal_of_a_number_as_long_as_a_payload_fits_a_payload(sign: str) -> None:
    peer = World().connect()
    number = sign + "9" * 4070
    (frame,) = peer.create("a", f'{{"depth":{number}}}'.encode())  # `take` decodes as a client does
    assert (frame[0], frame[2]) == (Type.ERROR, Status.PROTOCOL_ERROR)
    assert b"'depth'" in frame[4]


def test_options_are_what_the_settings_say_unless_asked() -> None:
    world = World(DmsSettings(persist=False, depth=2))
    peer = with_queue(world)
    assert statuses(peer.produce("orders", b"a", b"b", b"c"))[-1] is Status.QUEUE_FULL


def test_the_payload_behind_a_header_that_came_alone_is_awaited() -> None:
    peer = World(DmsSettings(persist=False)).connect()
    frame = wire.pack(Type.CREATE_QUEUE, 2, wire.pack_name("a"))
    listing = wire.pack(Type.LIST_QUEUES, 3)
    awaited = []
    for piece in (frame[:16], frame[16:], listing, listing + frame[:3], frame[3:]):
        peer.send(piece)
        awaited.append(peer.connection.rests_awaited)
    assert awaited == [1, 1, 1, 1, 1]


def test_consumes_that_end_in_vain_leave_nothing_behind(world: World) -> None:
    peer = with_queue(world)
    for _ in range(5):
        assert peer.consume("orders") == []
        world.advance(30)
        assert statuses(peer.take()) == [Status.TIMEOUT]
    assert len(world.broker.queues[b"orders"].waiting) <= 1
    assert world.broker.counts.timeouts == 5


def test_acks_of_what_is_not_held_are_refused_in_their_places(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    assert [(f[0], f[3]) for f in peer.ack(1, held, 2)] == [
        (Type.ERROR, 1),
        (Type.ACK_OK, held),
        (Type.ERROR, 2),
    ]


def test_deliveries_are_counted_however_many_come_at_once(world: World) -> None:
    peer = with_queue(world)
    peer.consume("orders", 5)
    assert len(deliveries(peer.produce("orders", *(b"%d" % n for n in range(6))))) == 5
    assert world.broker.counts.delivered == 5


def test_what_has_left_the_row_is_not_counted_as_in_memory(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", *(bytes(100) for _ in range(10)))
    before = world.broker.hot_bytes
    peer.consume("orders", 9)
    assert world.broker.hot_bytes == before // 10
    peer.consume("orders")
    assert world.broker.hot_bytes == 0


def test_produces_go_to_the_queue_that_has_the_name_now(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"a", b"b")
    other = world.connect()
    assert statuses(other.ask(Type.DELETE_QUEUE, NAME)) == [Status.OK]
    assert statuses(peer.produce("orders", b"c", b"d")) == [Status.QUEUE_NOT_FOUND] * 2
    other.create("orders")
    assert statuses(peer.produce("orders", b"e", b"f")) == [Status.OK] * 2
    assert [body for _, body in other.consume("orders", 3)] == [b"e", b"f"]


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


def test_produces_by_turns_do_not_fill_a_queue_above_its_depth(world: World) -> None:
    peer = world.connect()
    for name in ("q", "r"):
        peer.create(name, b'{"depth":3}')
    peer.send(
        b"".join(wire.pack(Type.PRODUCE, n, wire.pack_name("qr"[n % 2]) + b"%02d" % n) for n in range(10))
    )
    assert statuses(peer.take()) == [Status.OK] * 6 + [Status.QUEUE_FULL] * 4
    assert world.depths() == {"q": 3, "r": 3}


def test_what_follows_a_frame_does_not_complete_it(world: World) -> None:
    """A payload that ends within its name, and the next header begins as the name would go on."""
    name = wire.MAGIC.to_bytes(4, "big")[:2].decode()
    peer = with_queue(world, name)
    whole = wire.pack(Type.PRODUCE, 1, wire.pack_name(name) + b"body")
    peer.send(whole + wire.pack(Type.PRODUCE, 2, wire.pack_name(name)[:2]) + whole)
    found = statuses(peer.take())
    assert (found[0], found[2]) == (Status.OK, Status.OK) != found[1:2]
    assert world.depths() == {name: 2}
