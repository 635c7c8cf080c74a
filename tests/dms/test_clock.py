"""The wall clock is set while a server runs, and while none does: what asked for a time of it gets that."""

import json

import pytest

from dms.settings import DmsSettings
from dms.wire import Status, Type, pack_name
from shared.schedules import Due, Schedule
from tests.dms.world import MEMORY, World, deliveries, statuses, with_queue

UNIX_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
OK = [Status.OK]


def step(world: World, by_ms: int, restart: bool) -> None:
    """The wall clock is set, and the server has looked; or it was killed before."""
    world.unix_ms += by_ms
    if restart:
        world.advance(1.1)
        world.unix_ms += int(1000 * world.now)  # the world's clock begins at the start
        world.kill()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_job_for_an_hour_comes_at_it_and_one_with_a_delay_after_that(by_ms: int, restart: bool) -> None:
    world = World()
    peer = with_queue(world)
    peer.produce_with("orders", b"at", at=UNIX_MS + 2 * HOUR_MS)
    peer.produce_with("orders", b"soon", at=UNIX_MS + 30_000)
    peer.produce_with("orders", b"delay", delay_ms=2 * HOUR_MS)
    peer.produce("orders", b"plain")
    step(world, by_ms, restart)
    began, wall = world.now, world.times.wall_ms()
    worker = world.connect()
    found: dict[bytes, float] = {}
    while world.now - began < 3.2 * HOUR_MS / 1000:
        for held, body in worker.consume("orders", 4):
            found[body] = world.times.wall_ms()
            worker.ack(held)
        world.advance(31)
        for held, body in deliveries(worker.take()):
            found[body] = world.times.wall_ms()
            worker.ack(held)
    late = 62_000  # it is looked at once a minute, and seen here each half
    assert found.keys() == {b"at", b"soon", b"delay", b"plain"}
    assert found[b"plain"] - wall < late
    for body, due in ((b"at", UNIX_MS + 2 * HOUR_MS), (b"soon", UNIX_MS + 30_000)):
        assert 0 <= found[body] - max(due, wall) < 2 * late, body
    assert 2 * HOUR_MS - 2000 <= found[b"delay"] - wall <= 2 * HOUR_MS + late


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_a_job_that_came_back_and_is_moved_to_an_hour_comes_at_it(by_ms: int, restart: bool) -> None:
    """One that a NACK puts off instead waits so long, whatever hour it was for at first."""
    world = World()
    peer = with_queue(world)
    peer.produce_with("orders", b"moved", dedup="a")
    peer.produce_with("orders", b"put off", at=UNIX_MS - 1)
    for (held, body), delay_ms in zip(peer.consume("orders", 2), (0, 2 * HOUR_MS), strict=True):
        peer.ask(Type.NACK, pack_name("orders") + delay_ms.to_bytes(4), held)
        if body == b"moved":
            at_ms = UNIX_MS + 2 * HOUR_MS
            assert statuses(peer.job(Type.RESCHEDULE, "orders", dedup="a", at=at_ms)) == OK
    step(world, by_ms, restart)
    began, wall = world.now, world.times.wall_ms()
    worker, found = world.connect(), dict[bytes, int]()
    assert worker.consume("orders", 2) == []
    while world.now - began < 3.2 * HOUR_MS / 1000:
        world.advance(29)
        came = [*deliveries(worker.take()), *worker.consume("orders", 2)]
        found |= {body: world.times.wall_ms() for _, body in came}
    assert 0 <= found[b"moved"] - UNIX_MS - 2 * HOUR_MS < 124_000
    assert 2 * HOUR_MS - 2000 <= found[b"put off"] - wall < 2 * HOUR_MS + 62_000


@pytest.mark.parametrize("settings", [MEMORY, DmsSettings()])
def test_a_job_is_not_early_by_a_clock_that_was_set_back_just_now(settings: DmsSettings) -> None:
    world = World(settings)
    peer, worker = with_queue(world), world.connect()
    peer.produce_with("orders", b"at", at=UNIX_MS + 5000)
    assert worker.consume("orders") == []
    world.unix_ms -= 10_000
    world.advance(5.1)
    assert deliveries(worker.take()) == []
    world.advance(10)
    assert [body for _, body in deliveries(worker.take())] == [b"at"]


def test_a_time_is_asked_for_by_the_clock_as_it_is_now() -> None:
    world = World()
    peer, worker = with_queue(world), world.connect()
    world.unix_ms += HOUR_MS
    peer.produce_with("orders", b"at", at=UNIX_MS + HOUR_MS + 1000)
    world.advance(1.1)
    assert [body for _, body in worker.consume("orders")] == [b"at"]


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_names_and_buckets_know_no_wall_clock(by_ms: int) -> None:
    world = World()
    peer = with_queue(world, options=b'{"dedup_ms": 60000, "rate": "2/s"}')
    for _ in range(2):
        assert statuses(peer.produce_with("orders", b"once", dedup="a")) == OK
    ((held, _),) = peer.consume("orders", 1)
    peer.ack(held)
    world.unix_ms += by_ms
    world.advance(50)
    assert statuses(peer.produce_with("orders", b"again", dedup="a")) == OK
    assert world.depths() == {"orders": 0}
    world.advance(11)
    for number in range(4):
        assert statuses(peer.produce_with("orders", b"%d" % number, dedup="ab"[number % 2])) == OK
    assert world.depths() == {"orders": 2}
    peer.produce("orders", b"one", b"two")
    assert len(peer.consume("orders", 4)) == 2
    world.advance(1.1)
    assert len(deliveries(peer.take())) == 2


def test_schedules_go_on_where_the_clock_was_set_back() -> None:
    every, daily = Schedule("b", every_ms=600_000), Schedule("b", cron="0 3 * * *")
    now = 1_700_000_000_000
    for schedule in (every, daily):
        assert Due.going_on(schedule, now, now + HOUR_MS).done_ms == now
        assert Due.going_on(schedule, now, now - 500).done_ms == now
    assert Due.going_on(every, now, now - HOUR_MS).done_ms == now - HOUR_MS
    assert Due.going_on(daily, now, now - HOUR_MS).done_ms == now
    assert Due.going_on(daily, now, now - 4 * HOUR_MS).done_ms == now - 4 * HOUR_MS


@pytest.mark.parametrize("restart", [False, True])
def test_a_schedule_does_not_stall_where_the_clock_was_set_back(restart: bool) -> None:
    world = World()
    options = {"schedule": [{"every": "10m", "body": "tick"}]}
    with_queue(world, options=json.dumps(options).encode())
    world.advance(1200)
    before = world.depths()["orders"]
    assert before == 2
    step(world, -HOUR_MS, restart)
    world.advance(1260)
    assert world.depths()["orders"] == before + 2
