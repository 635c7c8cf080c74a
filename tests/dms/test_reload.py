"""Settings that a reload brings: queues that are there do what they say, unless CREATE_QUEUE said it."""

import json

import attrs
import pytest
import trio

from dms.listener import DmsService
from dms.settings import DmsSettings, QueueSettings
from dms.wire import Status
from tests.dms.test_expiry import MODES, bodies
from tests.dms.world import Peer, World, statuses


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("shared.queues.core.HOT_LEAST_BYTES", 0)
    return World(request.param)


def reload(world: World, **more: object) -> None:
    queues = {"orders": QueueSettings(**more)} if more else {}
    settings: DmsSettings = attrs.evolve(world.settings, queues=queues)
    trio.run(DmsService(world.engine).take_settings, settings)
    world.settle()


def made(world: World, **options: object) -> Peer:
    peer = world.connect()
    for name in ("dead", "other", "orders"):
        asked = json.dumps(options).encode() if name == "orders" else b""
        assert statuses(peer.create(name, asked)) == [Status.OK]
    return peer


def test_a_depth_holds_at_once_and_gives_room(world: World) -> None:
    reload(world, depth=1)
    peer = made(world)
    assert statuses(peer.produce("orders", b"a", b"b")) == [Status.OK, Status.QUEUE_FULL]
    reload(world, depth=2)
    assert statuses(peer.produce("orders", b"b", b"c")) == [Status.OK, Status.QUEUE_FULL]
    reload(world, depth=1)  # what is there stays
    assert bodies(peer, "orders") == [b"a", b"b"]


def test_what_create_queue_said_stays(world: World) -> None:
    peer = made(world, depth=2)
    reload(world, depth=1)
    assert statuses(peer.produce("orders", b"a", b"b")) == [Status.OK, Status.OK]


def test_a_lifetime_that_is_new_begins_now_and_one_that_goes_ends_nothing(world: World) -> None:
    peer = made(world)
    peer.produce("orders", b"old")
    world.advance(100)
    reload(world, ttl_ms=60_000)
    world.advance(50)
    assert world.depths()["orders"] == 1
    world.advance(11)
    assert world.depths()["orders"] == 0
    peer.produce("orders", b"kept")
    reload(world)
    world.advance(100)
    assert bodies(peer, "orders") == [b"kept"]


def test_a_shorter_lifetime_is_that_of_what_comes_once_the_older_have_left(world: World) -> None:
    reload(world, ttl_ms=3_600_000)
    peer = made(world)
    peer.produce("orders", b"old")
    reload(world, ttl_ms=10_000)
    peer.produce("orders", b"behind it")
    world.advance(60)
    assert bodies(peer, "orders") == [b"old", b"behind it"]
    peer.produce("orders", b"new")
    world.advance(11)
    assert world.depths()["orders"] == 0


def test_a_delay_that_is_new_holds_what_comes_and_one_that_goes_lets_all_out(world: World) -> None:
    peer = made(world)
    peer.produce("orders", b"old")
    reload(world, delay_ms=3_600_000)
    peer.produce("orders", b"new")
    assert bodies(peer, "orders") == [b"old"]
    reload(world)
    assert bodies(peer, "orders") == [b"new"]


def test_dead_messages_that_wait_go_to_the_queue_that_is_named_now(world: World) -> None:
    reload(world, max_deliveries=1, dead_letter="missing")
    peer = made(world)
    peer.produce("orders", b"poison")
    ((held, _),) = peer.consume("orders")
    peer.nack(held)
    world.advance(1)
    assert world.depths() == {"orders": 1, "dead": 0, "other": 0}
    reload(world, max_deliveries=1, dead_letter="dead")
    world.advance(1)
    assert world.depths() == {"orders": 0, "dead": 1, "other": 0}
