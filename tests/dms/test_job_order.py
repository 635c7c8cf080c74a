"""Who goes first: priorities, so many of a key at a time, keys by turns, and at what rate."""

import random
from collections import Counter

import pytest

from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import Peer, World, deliveries, deliveries_with, statuses, with_queue
from tests.support.turns import short_turns

OK = [Status.OK]


def bodies(peer: Peer, count: int) -> list[bytes]:
    return [body for _, body in peer.consume("orders", count)]


def test_the_highest_priority_goes_first_and_each_in_its_order(world: World) -> None:
    peer = with_queue(world, options=b'{"priorities":6}')
    peer.produce("orders", b"0a", b"0b")
    for body, priority in ((b"1a", 1), (b"5a", 5), (b"0c", 0), (b"5b", 9), (b"1b", 1)):
        peer.produce_with("orders", body, priority=priority)
    peer.produce("orders", b"0d")
    assert bodies(peer, 8) == [b"5a", b"5b", b"1a", b"1b", b"0a", b"0b", b"0c", b"0d"]


def test_without_the_option_priorities_are_said_and_nobody_is_passed_over(world: World) -> None:
    peer = with_queue(world)
    peer.produce_with("orders", b"first", priority=1)
    peer.produce_with("orders", b"second", priority=9)
    assert [about["priority"] for _, about, _ in peer.consume_with("orders", 2)] == [1, 9]


def test_a_key_has_one_message_out_and_the_next_comes_when_that_is_settled(world: World) -> None:
    one, two = with_queue(world, options=b'{"per_key":1}'), world.connect()
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"a3", "a")):
        one.produce_with("orders", body, key=key)
    one.produce_with("orders", b"free")
    ((held, first),) = one.consume("orders")
    assert first == b"a1"
    assert bodies(two, 4) == [b"b1", b"free"]
    one.nack(held)
    ((held, again),) = deliveries(two.take())
    assert again == b"a1"
    ((held, following),) = deliveries(two.ack(held))
    assert following == b"a2"
    two.lose()
    assert bodies(one, 4) == [b"a2", b"b1", b"free"]


def test_a_key_that_is_freed_by_an_ack_in_a_turn_with_a_consume_goes_on(world: World) -> None:
    peer = with_queue(world, options=b'{"per_key":1}')
    for number in range(20):
        peer.produce_with("orders", b"%d" % number, key="k")
    ((held, body),) = peer.consume("orders")
    for number in range(20):
        assert body == b"%d" % number
        frames = [*peer.ack(held), *peer.ask(Type.CONSUME, b"\0\6orders")]
        if number < 19:
            ((held, body),) = deliveries(frames)


def test_keys_take_turns_and_so_does_what_has_none(world: World) -> None:
    peer = with_queue(world, options=b'{"fair":true}')
    for number in range(9):
        peer.produce_with("orders", b"large %d" % number, key="large")
    peer.produce("orders", *[b"plain %d" % number for number in range(9)])
    for key in ("x", "y"):
        peer.produce_with("orders", key.encode(), key=key)
    first = bodies(peer, 8)
    assert {b"x", b"y"} <= set(first)
    assert Counter(body.split()[0] for body in first) == {b"large": 3, b"plain": 3, b"x": 1, b"y": 1}


@pytest.mark.parametrize(("change", "value"), [("per_key", 1), ("fair", True), ("priorities", 2)])
def test_options_may_change_while_jobs_wait_and_are_held(world: World, change: str, value: int) -> None:
    peer = with_queue(world)
    for number in range(6):
        peer.produce_with("orders", b"%d" % number, key="ab"[number % 2], priority=number % 3)
    ((held, _),) = peer.consume("orders")
    queue = world.engine.queues[b"orders"]
    world.call("change", queue="orders", **{change: value})
    world.settle()
    assert len(queue.jobs.ready) == 5 if queue.jobs is not None else False
    found = peer.consume("orders", 5)
    if change == "per_key":
        assert [body for _, body in found] == [b"1"]
        assert [body for _, body in deliveries(peer.ack(held))] == [b"2"]
    elif change == "priorities":
        assert [body for _, body in found] == [b"1", b"2", b"4", b"5", b"3"]
    else:
        assert len(found) == 5


@pytest.mark.parametrize("seed", range(20))
def test_while_very_many_jobs_get_another_order_all_goes_on_but_deliveries(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    peer, other = with_queue(world, options=b'{"retry_ms":1}'), world.connect()
    queue = world.engine.queues[b"orders"]
    for number in range(60):
        peer.produce_with("orders", b"%d" % number, key="abc"[number % 3], dedup=f"{number}")
    held = dict(peer.consume("orders", 12))
    peer.nack(*[delivery_id for delivery_id, body in held.items() if int(body) % 4 == 1])  # b1, c5, a9
    held = {delivery_id: body for delivery_id, body in held.items() if int(body) % 4 != 1}
    left, new = set(range(60)), 60
    short_turns(monkeypatch, 1, 2)
    for change in ({"fair": True}, {"per_key": 1}, {"per_key": 1, "priorities": 3})[chance.randrange(2) :]:
        world.call("change", queue="orders", **change)
    assert queue.stops
    while queue.stops:
        what = chance.randrange(12)
        if what == 0 and held:
            delivery_id, body = held.popitem()
            peer.ack(delivery_id)
            left.discard(int(body))
        elif what == 1 and held:
            peer.nack(held.popitem()[0])
        elif what == 2 and (number := chance.choice(sorted(left))) not in {*map(int, held.values())}:
            assert statuses(peer.job(Type.CANCEL, "orders", dedup=f"{number}")) == OK
            left.discard(number)
        elif what == 3:
            peer.produce_with("orders", b"%d" % new, key="abc"[new % 3], dedup=f"{new}")
            left.add(new)
            new += 1
        elif what == 4:
            assert not bodies(other, 1)
        turn_of(world)
    seen: list[int] = []
    out = {**held}
    came = deliveries(other.take())
    for _ in range(200):
        world.advance(0.01)
        came += other.consume("orders", 2)
        out |= came
        of_key = Counter(int(body) % 3 for body in out.values())
        before = Counter(int(body) % 3 for body in held.values())
        assert all(count <= max(before[key], 1) for key, count in of_key.items()), "one of a key at a time"
        if out:
            delivery_id = chance.choice(sorted(out))
            seen.append(int(out.pop(delivery_id)))
            owner = other if held.pop(delivery_id, None) is None else peer
            came = deliveries(owner.ack(delivery_id)) + deliveries(other.take())
    assert left <= set(seen)
    for key in range(3):  # but for what was nacked
        fresh = [number for number in seen if number % 3 == key and number >= 12]
        assert fresh == sorted(fresh), "a key has its order"
    assert not queue.depth


def turn_of(world: World) -> None:
    """The broker has one turn."""
    world.now += 0.001
    world.times.timers.run_due()
    world.settle()


def test_a_queue_delivers_at_its_rate_and_a_second_of_it_at_once(world: World) -> None:
    peer = with_queue(world, options=b'{"rate":"10/s"}')
    peer.produce("orders", *[b"%d" % number for number in range(60)])
    came = len(bodies(peer, 60))
    assert came == 10
    for _ in range(20):
        world.advance(0.1)
        more = len(deliveries(peer.take()))
        assert more <= 2
        came += more
    assert 28 <= came <= 30
    world.call("change", queue="orders", rate="")
    world.settle()
    assert came + len(deliveries(peer.take())) == 60


def test_a_rate_counts_for_whoever_waits_for_each_answer(world: World) -> None:
    peer = with_queue(world, options=b'{"rate":"2/s"}')
    peer.produce("orders", b"1", b"2", b"3")
    assert bodies(peer, 1) == [b"1"]
    assert bodies(peer, 1) == [b"2"]
    assert bodies(peer, 1) == []
    world.advance(0.6)
    assert [body for _, body in deliveries(peer.take())] == [b"3"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (b'{"priorities":11}', "priorities"),
        (b'{"per_key":-1}', "per_key"),
        (b'{"fair":1}', "fair"),
        (b'{"rate":"fast"}', "rate"),
        (b'{"rate":5}', "rate"),
        (b'{"loss_counts":"some"}', "loss_counts"),
        (b'{"loss_counts":1}', "loss_counts"),
        (b'{"dedup_ms":-1}', "dedup_ms"),
    ],
)
def test_an_option_that_no_queue_has_is_refused_by_name(options: bytes, named: str) -> None:
    peer = World().connect()
    (frame,) = peer.create("orders", options)
    assert frame[2] == Status.PROTOCOL_ERROR
    assert named in frame[4].decode()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("few_are_many")
def test_messages_of_a_key_come_in_order_to_any_number_of_workers(seed: int) -> None:
    """Workers that are lost, refuse, put off, take long; jobs that expire and are cancelled; restarts and
    snapshots. With one of a key at a time its messages succeed in the order in which they came: all of them
    but those that were cancelled or had a life."""
    pick = random.Random(seed)
    world = World(DmsSettings(hot_bytes=0))
    maker = with_queue(world, options=b'{"per_key":1,"fair":%b}' % (b"true" if seed % 2 else b"false"))
    made: dict[str, list[bytes]] = {key: [] for key in "abcd"}
    done: dict[str, list[bytes]] = {key: [] for key in "abcd"}
    workers = [world.connect() for _ in range(3)]
    held: dict[int, tuple[int, str, bytes]] = {}
    mortal: set[bytes] = set()

    def took(number: int, frames: list[tuple[int, dict[str, str], bytes]]) -> None:
        for delivery, about, body in frames:
            assert about["key"] not in [key for _, key, _ in held.values()], "two of a key are out"
            held[delivery] = number, about["key"], body

    def look() -> None:
        for number, worker in enumerate(workers):
            took(number, deliveries_with(worker.take()))

    for step in range(200):
        what = pick.choices(range(8), (40, 40, 60, 15, 3, 2, 5, 10))[0] if step < 150 else pick.choice((1, 2))
        number = pick.randrange(3)
        if what == 0:
            key, ttl_ms = pick.choice("aaabcd"), pick.choice((0, 0, 0, 700))
            if ttl_ms:
                mortal.add(b"%d" % step)
            made[key].append(b"%d" % step)
            said = {"key": key, "dedup": f"{step}", "ttl_ms": ttl_ms}
            assert statuses(maker.produce_with("orders", b"%d" % step, **said)) == OK
        elif what == 1:
            took(number, workers[number].consume_with("orders"))
        elif held and what in (2, 3):
            delivery = pick.choice(sorted(held))
            who, key, body = held.pop(delivery)
            if what == 2:
                done[key].append(body)
            if what == 2:
                frames = workers[who].ack(delivery)
            else:
                later = pick.choice((b"", b"", bytes(2) + (800).to_bytes(4)))
                frames = workers[who].ask(Type.NACK, later, delivery)
            assert statuses(frames[:1]) == OK
            took(who, deliveries_with(frames))
        elif what == 4:
            held = {delivery: of for delivery, of in held.items() if of[0] != number}
            workers[number].lose()
            workers[number] = world.connect()
        elif what == 5:
            log = world.engine.queues[b"orders"].log
            assert log is not None
            log.snapshot()
            world.settle()
            world.kill()
            maker, workers = world.connect(), [world.connect() for _ in range(3)]
            held.clear()
        elif what == 6:
            key = pick.choice("abcd")
            for body in made[key][-3:]:
                if Status.OK in statuses(maker.job(Type.CANCEL, "orders", dedup=body.decode())):
                    mortal.add(body)
                    break
        elif what == 7:
            world.advance(0.3)
        look()
    world.advance(1)
    while held or world.depths()["orders"]:
        for delivery, (who, key, body) in sorted(held.items()):
            done[key].append(body)
            del held[delivery]
            took(who, deliveries_with(workers[who].ack(delivery)))
        took(0, workers[0].consume_with("orders"))
        look()
        world.advance(0.1)
    for key in "abcd":
        assert done[key] == sorted(done[key], key=int)
        assert set(made[key]) - mortal <= set(done[key])
