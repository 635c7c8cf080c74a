"""Queues: made, listed, deleted, and what their options may say."""

import pytest

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import MEMORY, NAME, World, statuses, with_queue


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


def test_an_unknown_option_is_named() -> None:
    peer = World(MEMORY).connect()
    (frame,) = peer.create("a", b'{"depht":5}')
    assert b"depht" in frame[4]
    assert peer.ask(Type.LIST_QUEUES)[0][4] == b"\0\0"


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


def test_the_depth_that_a_client_asks_for_has_a_limit_and_a_queue_that_is_there_keeps_its_own() -> None:
    world = World()
    peer = world.connect()
    (refusal,) = peer.create("deep", b'{"depth":10000001}')
    assert (refusal[2], refusal[4]) == (
        Status.PROTOCOL_ERROR,
        b"option depth is at most depth_max = 10000000",
    )
    assert statuses(peer.create("deep", b'{"depth":20}')) == [Status.OK]
    world.settings = DmsSettings(depth_max=10)
    world.kill()
    peer = world.connect()
    assert statuses(peer.produce("deep", *[b"x"] * 21)) == [Status.OK] * 20 + [Status.QUEUE_FULL]
    assert statuses(peer.create("other", b'{"depth":11}')) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.create("other", b'{"depth":10}')) == [Status.OK]
    assert statuses(peer.create("plain")) == [Status.OK], "what the settings say is theirs"
