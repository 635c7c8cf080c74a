"""Dead messages whose queue is missing or full: what they cost while they wait, and when they go on."""

import pytest

from dms.settings import DmsSettings
from dms.wire import Status, Type, pack_name
from shared.budget import Account
from shared.queues.core import SLACK_BYTES
from tests.dms.world import Peer, World, statuses, with_queue
from tests.support.turns import short_turns

MODES = {"memory": DmsSettings(persist=False), "always": DmsSettings()}


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def dead_in(peer: Peer, name: str, count: int) -> None:
    """Make a queue of so many dead messages, which are to go to `dead`."""
    assert statuses(peer.create(name, b'{"max_deliveries":1,"dead_letter":"dead"}')) == [Status.OK]
    peer.produce(name, *(b"%s-%d" % (name.encode(), number) for number in range(count)))
    peer.nack(*(held for held, _ in peer.consume(name, count)))


def tried(world: World, seconds: float) -> int:
    """So many dead messages are tried in vain in that time."""
    before = world.engine.counts.held_back
    world.advance(seconds)
    return world.engine.counts.held_back - before


def turn(world: World) -> None:
    """The broker looks once at what is due."""
    world.now += 0.001
    world.times.timers.run_due()
    world.settle()


def test_of_all_the_dead_of_a_queue_without_a_place_one_is_tried_each_second(world: World) -> None:
    peer = world.connect()
    for number in range(40):
        dead_in(peer, f"q{number}", 50)
    assert world.engine.counts.held_back <= 40
    assert tried(world, 10) <= 40 * 10
    if world.engine.persistent:
        world.kill()
        assert world.engine.counts.held_back <= 40
        assert tried(world, 10) <= 40 * 10
    assert sum(world.depths().values()) == 40 * 50


def test_the_dead_go_on_when_their_queue_is_made_some_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dms.expiry.RUN_MOST", 7)
    short_turns(monkeypatch, 1, 1)
    peer = world.connect()
    dead_in(peer, "orders", 60)
    peer.create("dead")
    world.now += 1
    came = 0
    for _ in range(9):
        turn(world)
        assert came < world.depths()["dead"] <= came + 7
        came = world.depths()["dead"]
    assert world.depths() == {"orders": 0, "dead": 60}


@pytest.mark.parametrize("how", ["purge", "redrive", "expire"])
def test_whatever_makes_room_they_go_on_in_a_second(world: World, how: str) -> None:
    peer = world.connect()
    peer.create("dead", b'{"depth":2}' if how != "expire" else b'{"depth":2,"ttl_ms":300}')
    dead_in(peer, "orders", 4)
    assert world.depths() == {"dead": 2, "orders": 2}
    if how == "expire":
        world.advance(0.35)
    else:
        world.call(how, queue="dead")
    world.advance(1)
    assert world.engine.counts.dead_lettered == 4


def test_a_queue_that_is_deleted_and_made_again_gets_what_waited_for_it(world: World) -> None:
    peer = with_queue(world, "dead", b'{"depth":1}')
    peer.produce("dead", b"in the way")
    dead_in(peer, "orders", 3)
    peer.ask(Type.DELETE_QUEUE, pack_name("dead"))
    world.advance(3)
    assert world.depths() == {"orders": 3}
    peer.create("dead")
    world.advance(1)
    assert world.depths() == {"orders": 0, "dead": 3}


def test_dead_letters_without_a_place_end_in_a_refusal_and_what_removes_them_makes_room() -> None:
    world = World(DmsSettings(persist=False), budget=Account("process", 300_000))
    peer = with_queue(world, options=b'{"max_deliveries":1,"dead_letter":"dead"}')
    neighbour = with_queue(world, "other")
    found: list[int] = []
    for _ in range(400):
        found += statuses(peer.produce("orders", bytes(1000)))
        if found[-1] is Status.OK:
            peer.nack(*(held for held, _ in peer.consume("orders")))
    taken = found.count(Status.OK)
    assert 0 < taken < 350
    assert found == [Status.OK] * taken + [Status.QUEUE_FULL] * (400 - taken)
    queue = world.engine.queues[b"orders"]
    assert queue.expiry is not None
    assert queue.expiry.dead == taken, "all of them wait for `dead`"
    assert statuses(neighbour.produce("other", b"x")) == [Status.QUEUE_FULL]
    assert tried(world, 10) <= 10
    world.call("purge", queue="orders")
    assert statuses(neighbour.produce("other", b"x")) == [Status.OK]
    assert statuses(peer.produce("orders", b"x")) == [Status.OK]


def test_where_dead_letters_fill_the_budget_the_queue_that_they_wait_for_may_be_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dms.expiry.RUN_MOST", 7)
    short_turns(monkeypatch, 1, 1)
    world = World(world.settings, budget=Account("process", 1_000_000))
    peer = with_queue(world, options=b'{"max_deliveries":1,"dead_letter":"dead"}')
    few = b'{"max_deliveries":1,"dead_letter":"missing"}'
    assert statuses(peer.create("few", few)) == [Status.OK]
    peer.produce("few", b"x")
    peer.nack(*(held for held, _ in peer.consume("few")))
    taken = 0
    while world.budget.fits(9000):
        assert statuses(peer.produce("orders", bytes(4000))) == [Status.OK]
        peer.nack(*(held for held, _ in peer.consume("orders")))
        world.engine.sync_budget()
        taken += 1
    world.budget.account("others").charge(20_000)
    used = world.budget.used_bytes
    assert used > 1_000_000
    assert statuses(peer.create("other")) == [Status.INTERNAL]
    assert statuses(peer.create("missing")) == [Status.INTERNAL], "what waits for it is less than it takes"
    assert statuses(peer.create("dead")) == [Status.OK]
    world.advance(5)
    assert world.depths() == {"orders": 0, "few": 1, "dead": taken}
    world.engine.sync_budget()
    assert world.budget.used_bytes < (600_000 if world.engine.persistent else used + 50_000)
    while frames := peer.consume("dead", 3):
        peer.ack(*(held for held, _ in frames))
        taken -= len(frames)
    assert taken == 0
    world.engine.sync_budget()
    assert statuses(peer.create("other")) == [Status.OK]
    world.advance(2)
    assert statuses(peer.create("missing")) == [Status.OK]
    world.advance(2)
    assert world.depths()["missing"] == 1


def test_durable_dead_letters_without_a_place_wait_on_disk_where_the_budget_is_full() -> None:
    world = World(budget=Account("process", 1_000_000))
    peer = with_queue(world, options=b'{"ttl_ms":1000,"dead_letter":"dead"}')
    others = world.budget.account("others")
    others.charge(1_000_000)
    for _ in range(40):
        assert statuses(peer.produce("orders", *[bytes(1000)] * 20)) == [Status.OK] * 20
    world.advance(60)
    assert world.engine.memory.loaded_bytes < 256_000 + SLACK_BYTES, "what is read back comes in 256 KiB"
    assert world.depths() == {"orders": 800}
    others.give(1_000_000)
    peer.create("dead")
    world.advance(1)
    assert world.depths() == {"orders": 0, "dead": 800}


def test_where_memory_is_scarce_the_dead_wait_on_disk() -> None:
    world = World(DmsSettings(hot_bytes=40_000))
    peer = with_queue(world, "orders", b'{"ttl_ms":1000,"dead_letter":"dead"}')
    for number in range(100):
        peer.produce("orders", *(b"%05d" % (number * 10 + n) * 100 for n in range(10)))
    world.advance(60)
    (queue,) = world.engine.queues.values()
    assert queue.ready.loaded + queue.returned < 700, "what is read back at once comes in 256 KiB"
    assert len(world.call("peek", queue="orders", limit=1000)) == 1000
    peer.create("dead")
    world.advance(1)
    assert world.depths() == {"orders": 0, "dead": 1000}
