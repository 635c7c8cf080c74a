"""Lifetimes, delays, retries, dead letters: in memory and on disk, over restarts."""

import errno
import json

import pytest

from dms import wire
from dms.settings import DmsSettings, QueueSettings
from dms.wire import Status, Type
from shared.access import ASKER, Access, parse_users
from tests.dms.world import Peer, World, deliveries, statuses
from tests.support.commits import fail, journal_write
from tests.support.turns import short_turns

MODES = {"memory": DmsSettings(persist=False), "always": DmsSettings(), "cold": DmsSettings(hot_bytes=0)}


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("shared.queues.core.HOT_LEAST_BYTES", 0)
    return World(request.param)


def made(world: World, **options: object) -> Peer:
    """A connection, and the queues `orders`, with these options, and `dead`."""
    peer = world.connect()
    peer.create("dead")
    assert statuses(peer.create("orders", json.dumps(options).encode())) == [Status.OK]
    return peer


def bodies(peer: Peer, name: str, count: int = 9) -> list[bytes]:
    """What can be had just now; it is acknowledged."""
    found = peer.consume(name, count)
    if found:
        peer.ack(*(held for held, _ in found))
    peer.world.advance(30)
    assert set(statuses(peer.take())) <= {Status.TIMEOUT}
    return [body for _, body in found]


def test_a_message_past_its_time_is_dropped_and_counted(world: World) -> None:
    peer = made(world, ttl_ms=60_000)
    peer.produce("orders", b"a", b"b")
    world.advance(40)
    peer.produce("orders", b"c")
    world.advance(21)
    assert world.depths()["orders"] == 1
    assert bodies(peer, "orders", 1) == [b"c"]
    assert world.engine.counts.dropped == 2


def test_the_dead_go_to_their_queue_and_know_why(world: World) -> None:
    peer = made(world, max_deliveries=2, dead_letter="dead")
    peer.produce("orders", b"poison", b"good")
    for _ in range(2):
        ((held, body),) = peer.consume("orders")
        assert body == b"poison"
        peer.nack(held)
    assert bodies(peer, "orders", 1) == [b"good"]
    (row,) = world.call("peek", queue="dead")
    about = {"origin": "orders", "reason": "max_deliveries", "deliveries": 2, "time": world.unix_ms}
    assert row["properties"]["dead_letter"] == about
    if world.engine.persistent:
        world.kill()
        peer = world.connect()
    assert world.call("redrive", queue="dead") == {"moved": 1, "left": 0}
    world.settle()
    assert bodies(peer, "orders", 1) == [b"poison"]


def test_a_redrive_puts_messages_only_where_who_asks_may_write(world: World) -> None:
    users = '[users.ann]\nallow = ["dms:write:orders"]\n[users.manager]\nallow = ["admin:manage"]'
    world.access = Access(parse_users(users)).guard("dms")
    peer = made(world, max_deliveries=1, dead_letter="dead")
    peer.produce("orders", b"poison")
    ((held, _),) = peer.consume("orders")
    peer.nack(held)
    for user, moved in (("manager", 0), ("ann", 1)):
        before = ASKER.set(user)
        found = world.call("redrive", queue="dead")
        ASKER.reset(before)
        assert found == {"moved": moved, "left": 1 - moved}


def test_what_a_redrive_leaves_keeps_its_delay(world: World) -> None:
    peer = made(world, delay_ms=60_000)
    peer.produce("orders", b"a")
    world.advance(30)
    peer.produce("orders", b"b")
    assert world.call("redrive", queue="orders") == {"moved": 0, "left": 2}
    world.settle()
    assert (peer.consume("orders"), world.call("queues", queue="orders")[0]["delayed"]) == ([], 2)
    world.advance(31)
    assert bodies(peer, "orders", 1) == [b"a"]
    world.advance(31)
    assert bodies(peer, "orders", 1) == [b"b"]


@pytest.mark.parametrize("room", [1000, 30, 2])
def test_however_many_die_at_once_none_goes_out_and_all_move_as_far_as_there_is_room(
    world: World, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dms.expiry.RETURNED_MAX", 20)
    monkeypatch.setattr("dms.expiry.RUN_MOST", 7)
    short_turns(monkeypatch, 1, 1)
    peer = world.connect()
    peer.create("dead", b'{"depth":%d}' % room)
    peer.create("orders", b'{"ttl_ms":5000,"dead_letter":"dead"}')
    peer.produce("orders", *(b"%d" % n for n in range(60)))
    world.advance(6)
    assert peer.consume("orders", 3) == []
    assert world.depths() == {"orders": 60 - min(room, 60), "dead": min(room, 60)}
    assert world.engine.queues[b"orders"].returned <= 20
    came = deliveries([*peer.produce("orders", b"new"), *peer.take()])
    assert [body for _, body in came] == ([b"new"] if room > 60 else [])
    world.advance(30)
    if room <= 60:
        taken = bodies(world.connect(), "dead", room)
        world.advance(3)
        taken += bodies(world.connect(), "dead", room)
        assert len(set(taken)) == 2 * room


@pytest.mark.parametrize("missing", [False, True])
def test_where_the_dead_have_no_place_they_are_held_back_and_tried_again(world: World, missing: bool) -> None:
    peer = world.connect()
    if not missing:
        peer.create("dead", b'{"depth":1}')
    peer.create("orders", b'{"max_deliveries":1,"dead_letter":"dead"}')
    peer.produce("orders", b"a", b"b", b"c")
    held = [number for number, _ in peer.consume("orders", 2)]
    peer.nack(*held)
    assert sum(world.depths().values()) == 3
    assert [body for _, body in peer.consume("orders", 2)] == [b"c"]
    if missing:
        peer.create("dead")
        world.advance(2)
        assert world.depths() == {"orders": 1, "dead": 2}
    else:
        assert world.depths() == {"orders": 2, "dead": 1}
    assert world.engine.counts.held_back > 0


@pytest.mark.parametrize("option", ["ttl_ms", "delay_ms"])
def test_no_message_is_due_before_its_time_though_others_came_just_before(world: World, option: str) -> None:
    peer = made(world, **{option: 1_000_000})
    peer.produce("orders", b"a")
    world.advance(1.9)
    peer.produce("orders", b"b")
    world.advance(999.6)  # the first may be late by a second; the other one's time comes 0.4 s from now
    assert [body for _, body in peer.consume("orders", 2)] == [b"a" if option == "delay_ms" else b"b"]


def test_a_delayed_message_comes_when_it_is_due(world: World) -> None:
    peer = made(world, delay_ms=20_000)
    peer.produce("orders", b"a")
    world.advance(10)
    peer.produce("orders", b"b")
    assert peer.consume("orders", 2) == []
    world.advance(9.9)
    assert deliveries(peer.take()) == []
    world.advance(0.2)
    assert [body for _, body in deliveries(peer.take())] == [b"a"]
    world.advance(11)
    assert b"b" in [body for _, body in [*deliveries(peer.take()), *peer.consume("orders")]]


def test_a_retry_waits_and_doubles(world: World) -> None:
    peer = made(world, retry_ms=1000, retry_max_ms=3000)
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    for seconds in (1, 2, 3, 3):
        peer.nack(held)
        assert peer.consume("orders") == []
        world.advance(seconds - 0.1)
        assert deliveries(peer.take()) == []
        world.advance(0.2)
        ((held, _),) = deliveries(peer.take())
    peer.lose()
    assert [body for _, body in world.connect().consume("orders")] == [b"a"], "only a NACK is punished"


def test_times_go_on_after_a_restart_as_time_left() -> None:
    world = World()
    peer = made(world, ttl_ms=60_000, delay_ms=10_000)
    peer.produce("orders", b"a")
    world.advance(6)
    peer.produce("dead", b"so that the age is known")
    world.kill()
    peer = world.connect()
    assert peer.consume("orders") == []
    world.advance(3)
    assert deliveries(peer.take()) == []
    world.advance(1.5)
    assert [body for _, body in deliveries(peer.take())] == [b"a"]
    peer.lose()
    world.advance(48)
    assert world.depths()["orders"] == 1
    world.advance(2.5)
    assert world.depths()["orders"] == 0


@pytest.mark.parametrize("snapshot", [False, True])
def test_options_that_settings_have_since_hold_for_what_was_there_before(snapshot: bool) -> None:
    """And those that they have no more hold for nothing."""
    world = World()
    made(world).produce("orders", b"a", b"b")

    def again(**options: int) -> list[bytes]:
        """What can be had after a second, where the queue has these options."""
        world.advance(1)
        for queue in world.engine.queues.values() if snapshot else ():
            assert queue.log is not None
            queue.log.snapshot()
        world.settle()
        world.settings = DmsSettings(queues={"orders": QueueSettings(**options)})
        world.kill()
        world.advance(1)
        return [body for _, body in world.connect().consume("orders", 2)]

    assert again(delay_ms=500) == [b"a", b"b"]
    assert again(ttl_ms=60_000) == [b"a", b"b"]
    assert again(delay_ms=500, max_deliveries=9) == [b"a", b"b"]
    assert again(max_deliveries=9) == [b"a", b"b"]
    world.advance(120)
    assert world.depths()["orders"] == 2
    assert again(ttl_ms=60_000) == [b"a", b"b"]
    world.advance(61)
    assert world.depths()["orders"] == 2, "they are held"
    for peer in tuple(world.peers):
        peer.lose()
    assert world.depths()["orders"] == 0


def test_the_settings_patterns_are_options_too() -> None:
    settings = DmsSettings(queues={"job-*": QueueSettings(max_deliveries=1), "*": QueueSettings(depth=2)})
    world = World(settings)
    peer = world.connect()
    for name in ("job-1", "other"):
        peer.create(name)
        peer.produce(name, b"a", b"b")
    assert statuses(peer.produce("other", b"c")) == [Status.QUEUE_FULL]
    assert statuses(peer.produce("job-1", b"c")) == [Status.OK]
    ((held, _),) = peer.consume("job-1")
    peer.nack(held)
    assert world.depths() == {"job-1": 2, "other": 2}
    assert world.engine.counts.dropped == 1


def test_a_pattern_that_matches_the_queue_of_the_dead_too_does_not_let_them_die_again() -> None:
    everything = QueueSettings(ttl_ms=1000, max_deliveries=2, dead_letter="dead")
    world = World(DmsSettings(queues={"*": everything}))
    made(world).produce("orders", b"a")
    world.advance(60)
    for _ in range(3):
        peer = world.connect()
        assert [body for _, body in peer.consume("dead")] == [b"a"]
        peer.lose()
    (row,) = world.call("peek", queue="dead")
    dead = row["properties"]["dead_letter"]
    assert (dead["origin"], dead["reason"], dead["deliveries"]) == ("orders", "ttl", 0)
    assert world.call("redrive", queue="dead")["moved"] == 1


def test_deliveries_that_are_not_asked_for_cost_no_entry() -> None:
    world = World()
    peer = world.connect()
    peer.create("plain")
    peer.produce("plain", *[b"x"] * 100)
    assert world.engine.queues[b"plain"].expiry is None
    assert world.times.timers.next == float("inf")


def test_a_purge_takes_what_has_come_also_where_the_disk_has_yet_to_confirm_it() -> None:
    world = World()
    world.connect().create("orders")
    queue = world.engine.queues[b"orders"]
    queue.produce([b"a", b"b"], 2)
    assert (queue.depth, queue.end) == (2, 1)
    assert world.call("purge", queue="orders") == {"purged": 2, "held": 0}


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("option", ["ttl_ms", "delay_ms"])
def test_a_time_that_ends_before_the_disk_has_answered(option: str, taken: bool) -> None:
    world = World()
    peer = made(world, **{option: 60_000})
    peer.session.receive(wire.pack(Type.PRODUCE, 1, wire.pack_name("orders") + b"early"))
    if not taken:
        fail(world.disk, errno.ENOSPC, journal_write, times=1)
    world.advance(61)  # the commit comes behind it
    assert world.depths()["orders"] == int(taken and option == "delay_ms")
    peer.take()
    assert statuses(peer.produce("orders", b"late")) == [Status.OK]
    found = [body for _, body in peer.consume("orders", 2)]
    if option == "ttl_ms":
        assert found == [b"late"]
    else:
        assert found == [b"early"] * taken
        world.advance(61)
        peer.take()
        assert [body for _, body in peer.consume("orders")] == [b"late"]


def test_a_move_answers_once_the_other_queue_shows_it() -> None:
    world = World()
    peer = world.connect()
    for name in ("orders", "other"):
        peer.create(name)
    peer.produce("orders", b"1", b"2")
    assert world.call("move", queue="orders", to="other") == {"moved": 2, "left": 0}
    target = world.engine.find("other")
    assert target is not None
    assert (target.end, target.tail) == (3, 3)
