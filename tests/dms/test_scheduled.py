"""Messages of a schedule: each time once, over restarts too, and what was missed once."""

import json
import random
import tomllib

import pytest

from brokers.settings.structure import Problem, build, flatten_table
from dms.settings import DmsSettings
from dms.wire import Status
from tests.dms.world import Peer, World, statuses, with_queue

START_MS = 1_700_000_000_000
MINUTE = 60.0


def scheduled(world: World, *said: dict[str, str], **more: object) -> Peer:
    return with_queue(world, options=json.dumps({"schedule": said, **more}).encode())


def came(peer: Peer, count: int = 50) -> list[tuple[bytes, float]]:
    """What is there: the body, and its time in minutes since the start."""
    found = peer.consume_with("orders", count)
    for held, _, _ in found:
        peer.ack(held)
    peer.world.advance(31)
    for frame in peer.take():
        assert frame[2] == Status.TIMEOUT
    return [(body, (about["headers"]["scheduled"] - START_MS) / 60_000) for _, about, body in found]


def test_a_message_comes_at_each_time(world: World) -> None:
    peer = scheduled(world, {"every": "10m", "body": "ten"}, {"cron": "30 * * * *", "body": "half past"})
    world.advance(61 * MINUTE)
    found = came(peer)
    first = (-START_MS / 60_000) % 10
    assert [time for body, time in found if body == b"ten"] == pytest.approx(
        [first + 10 * number for number in range(6)]
    )
    assert [body for body, _ in found].count(b"half past") == 1
    assert world.engine.counts.scheduled == 7


def test_what_was_missed_comes_once_and_each_time_is_done_once_over_restarts() -> None:
    world = World()
    peer = scheduled(world, {"every": "10m", "body": "ten"})
    done: list[float] = []
    pick = random.Random(7)
    for _ in range(40):
        world.advance(pick.randrange(1, 1500))
        if pick.random() < 0.5:
            done += [time for _, time in came(peer)]
        if pick.random() < 0.3:
            log = world.engine.queues[b"orders"].log
            assert log is not None
            log.snapshot()
            world.settle()
        away = pick.choice((0, 0, 100, 5000))
        world.unix_ms += int(1000 * (world.now + away))
        world.kill()
        peer = world.connect()
        world.advance(1)
    done += [time for _, time in came(peer)]
    assert len(set(done)) == len(done), "a time was done twice"
    assert sorted(done) == done
    first = (-START_MS / 60_000) % 10
    assert all(round(60_000 * (time - first)) % 600_000 == 0 for time in done)
    passed = (world.unix_ms - START_MS) / 60_000
    assert passed / 10 * 0.3 < len(done) <= passed / 10


def test_a_full_queue_gets_its_message_when_there_is_room(world: World) -> None:
    peer = scheduled(world, {"every": "10m", "body": "ten"}, depth=1)
    peer.produce("orders", b"first")
    world.advance(25 * MINUTE)
    assert world.engine.counts.scheduled_late > 0
    ((held, _),) = peer.consume("orders")
    peer.ack(held)
    world.advance(2)
    ((body, _),) = came(peer, 1)
    assert body == b"ten"


def test_a_schedule_that_is_changed_begins_anew_and_another_goes_on(world: World) -> None:
    peer = scheduled(world, {"every": "10m", "body": "a"}, {"every": "10m", "body": "b"})
    world.advance(11 * MINUTE)
    assert len(came(peer)) == 2
    kept = {"every": "10m", "body": "b"}
    world.call("change", queue="orders", schedule=[kept, {"every": "1h", "body": "c"}])
    world.settle()
    world.advance(10 * MINUTE)
    assert [body for body, _ in came(peer)] == [b"b"]
    assert world.call("queues", queue="orders")[0]["settings"]["schedule"][0]["body"] == "b"
    world.call("change", queue="orders", schedule=None)
    world.settle()
    world.advance(120 * MINUTE)
    assert came(peer) == []


def test_settings_have_a_schedule_for_each_queue_that_has_none_of_its_own() -> None:
    given = tomllib.loads("""
[queues."or*"]
schedule = [{every = "10m", body = "of settings"}, {cron = "30 * * * *", body = "half"}]
""")
    problems: list[Problem] = []
    values = dict(flatten_table(given, DmsSettings, (), {}, "here"))
    settings = build(DmsSettings, (), values, problems)
    assert not problems
    world = World(settings)
    peer = with_queue(world)
    peer.create("ordinary", b'{"schedule":[]}')
    world.advance(10 * MINUTE)
    assert [body for body, _ in came(peer)] == [b"of settings"]
    assert world.depths() == {"orders": 0, "ordinary": 0}
    shown = world.call("queues", queue="orders")[0]["settings"]["schedule"]
    assert [each["body"] for each in shown] == ["of settings", "half"]
    assert str(settings.queues["or*"].schedule) == json.dumps(shown)


@pytest.mark.parametrize(
    "schedule",
    [
        *("x", {}, ["x"], 1),
        *([{"every": "1ms"}], [{"cron": "x"}], [{"every": "1h"}] * 33),
        [{"every": "1h", "body": "\ud800"}],
    ],
)
def test_what_is_no_schedule_is_refused_by_name(schedule: object) -> None:
    peer = World().connect()
    (frame,) = peer.create("orders", json.dumps({"schedule": schedule}).encode())
    assert statuses([frame]) == [Status.PROTOCOL_ERROR]
    assert b"schedule" in frame[4]
