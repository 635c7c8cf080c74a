"""Messages that wait for their time, and come again after a failed try later, and not for ever."""

from typing import Any

import pytest
from pamqp import commands

from dmp.data_types import field_table
from dmp.properties import NO_PROPERTIES
from dmp.queues import Queue
from dmp.settings import DmpSettings
from dmp.shown_properties import read
from dmp.timing import EtaHeaders, eta_in
from tests.dmp.amqp_peer import Peer
from tests.dmp.peers import bodies as feed_bodies
from tests.dmp.peers import opened, packed
from tests.dmp.test_admin import call, row
from tests.dmp.world import WALL_MS, Taker, World, ready

YEAR_MS = 366 * 86_400_000


def properties(persistent: bool = True, **headers: Any) -> bytes:
    return read({"properties": {"headers": headers}}, persistent=persistent)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_delayed_message_waits_for_its_time_and_others_pass_it(world: World, durable: bool) -> None:
    queue = world.queue(durable=durable)
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    world.publish(b"", b"q", b"later", properties=properties(**{"x-delay": 5000}))
    world.publish(b"", b"q", b"now", properties=properties())
    world.settle()
    assert taker.bodies == [b"now"]
    assert (queue.depth, row(world, queue)["delayed"]) == (0, 1)
    world.advance(4.9)
    assert taker.bodies == [b"now"]
    world.advance(0.2)
    assert taker.bodies == [b"now", b"later"]
    world.settle()
    assert world.broker.memory.total_bytes == 0


async def test_a_delay_goes_on_over_a_restart_and_is_over_when_it_was_to_be(world: World) -> None:
    world.queue(durable=True)
    for delay, body in ((60_000, b"a"), (600_000, b"b"), (1, b"c")):
        world.publish(b"", b"q", body, properties=properties(**{"x-delay": delay}))
    world.settle()
    world = await world.again(later_seconds=100)
    queue = world.broker.queues[b"q"]
    assert (ready(queue), queue.later.count) == ([b"a", b"c"], 1)
    world.advance(499)
    assert queue.later.count == 1
    world.advance(2)
    assert (sorted(ready(queue)), queue.later.count) == ([b"a", b"b", b"c"], 0)


@pytest.mark.parametrize("delay", ["5000", -1, True, 11 * YEAR_MS, 1.5, None])
async def test_a_delay_that_is_none_is_passed_over(world: World, delay: Any) -> None:
    queue = world.queue()
    world.publish(b"", b"q", b"x", properties=properties(**{"x-delay": delay}))
    assert ready(queue) == [b"x"]


async def test_a_dead_letter_and_a_moved_message_do_not_wait_again(world: World) -> None:
    world.queue(dead_letter_exchange=b"", dead_letter_key=b"dead", messages_max=0)
    dead, other = world.queue(b"dead"), world.queue(b"other")
    world.publish(b"", b"q", b"x", properties=properties(**{"x-delay": 1000}))
    world.advance(1.1)
    assert ready(dead) == [b"x"]
    assert (await call(world, dead, "move", to="other"))["moved"] == 1
    assert ready(other) == [b"x"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2023-11-14T22:13:30+00:00", 10),
        ("2023-11-14T22:13:30", 10),
        (1_700_000_010, 10),
        (1_700_000_010.5, 10.5),
        ("1700000010", 10),
        ("2023-11-14T22:13:00", 0),
        ("soon", 0),
        (None, 0),
        (float("inf"), 0),
        (1_900_000_000_000, 0),
        ([1], 0),
    ],
)
def test_a_header_says_when_a_message_is_due(value: Any, seconds: float) -> None:
    due = eta_in(field_table({"eta": value}), b"eta", 1_700_000_000_000)
    assert due == (1_700_000_000_000 + seconds * 1000 if seconds else 0)


@pytest.mark.parametrize("by", ["argument", "setting"])
async def test_a_queue_keeps_back_what_a_worker_could_not_begin_yet(by: str) -> None:
    world = await World.open(
        DmpSettings(eta_header=EtaHeaders.parse("cel*=eta" if by == "setting" else "other=eta"))
    )
    queue = world.queue(b"celery", **({"eta_header": b"eta"} if by == "argument" else {}))
    due = world.broker.wall_seconds() + 30
    world.publish(b"", b"celery", b"x", properties=properties(eta=due))
    world.publish(b"", b"celery", b"y", properties=properties(eta=None))
    assert ready(queue) == [b"y"]
    world.advance(31)
    assert ready(queue) == [b"x", b"y"]


@pytest.mark.parametrize("header", ["eta", "x-delay"])
async def test_none_is_early_by_part_of_a_millisecond(world: World, header: str) -> None:
    world.clock.now = 0.9996
    queue = world.queue(eta_header=b"eta")
    value = 1000 if header == "x-delay" else WALL_MS // 1000 + 1
    world.publish(b"", b"q", b"x", properties=properties(**{header: value}))
    world.advance(0.9994)
    queue.expire(world.clock.now)
    assert ready(queue) == []
    world.advance(0.002)
    assert ready(queue) == [b"x"]


def test_the_setting_is_read_and_shown() -> None:
    text = "celery*=eta, jobs=run_at"
    assert str(EtaHeaders.parse(text)) == text
    assert EtaHeaders.parse(text).of("jobs") == b"run_at"
    with pytest.raises(ValueError, match="PATTERN=HEADER"):
        EtaHeaders.parse("eta")


async def test_a_purge_takes_what_waits_for_its_time_and_if_empty_does_not(world: World) -> None:
    peer = Peer(world).login()
    peer.ask(commands.Queue.Declare(queue="q", durable=True))
    peer.publish("", "q", b"x", properties=properties(**{"x-delay": 1000}))
    world.settle()
    assert peer.ask(commands.Queue.Delete(queue="q", if_empty=True)).name == "Channel.Close"
    other = Peer(world).login()
    assert other.ask(commands.Queue.Purge(queue="q")).message_count == 1
    world.advance(2)
    world = await world.again()
    assert ready(world.broker.queues[b"q"]) == []
    assert world.broker.queues[b"q"].later.count == 0


def declared(world: World, **arguments: Any) -> Queue:
    """The durable queue `q`, by AMQP: so its arguments outlive the process."""
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    peer = Peer(world).login()
    assert (
        peer.ask(commands.Queue.Declare(queue="q", durable=True, arguments=table)).name == "Queue.DeclareOk"
    )
    return world.broker.queues[b"q"]


def deliver_and(peer: Peer, method: Any) -> None:
    """Take the next message by `basic.get`, and answer it."""
    frames = peer.say(commands.Basic.Get(0, "q", False))
    (tag,) = [value.delivery_tag for _, value in frames if value.name == "Basic.GetOk"]
    peer.method(method(tag))
    peer.frames()
    peer.world.settle()


def nack(tag: int) -> Any:
    return commands.Basic.Nack(tag, False, True)


def count_of(peer: Peer) -> Any:
    """The next message's delivery count, by a get that gives it back without a try."""
    head = peer.world.broker.queues[b"q"].ready.first().head
    return head.headers.get("x-delivery-count")


@pytest.mark.parametrize("durable", [False, True])
async def test_after_more_failed_tries_than_the_limit_a_message_is_dead(world: World, durable: bool) -> None:
    queue = world.queue(durable=durable, delivery_limit=2, dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    peer = Peer(world).login()
    world.publish(b"", b"q", b"x", properties=properties())
    world.settle()
    counts = []
    while ready(queue):
        counts.append(count_of(peer))
        deliver_and(peer, nack)
    assert counts == [None, 1, 2]
    assert ready(dead) == [b"x"]
    assert dead.ready.first().head.headers["x-death"][0]["reason"] == "delivery_limit"
    assert world.broker.counts.gave_up == 1


async def test_tries_outlive_a_kill_and_copies_of_records(world: World) -> None:
    queue = declared(world, delivery_limit=5)
    peer = Peer(world).login()
    world.publish(b"", b"q", b"x", b"y", properties=properties())
    world.settle()
    deliver_and(peer, nack)
    deliver_and(peer, nack)
    assert queue.log is not None
    queue.log.copy_oldest()
    world.settle()
    assert queue.log.is_copy(0)
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert [message.head.tries for message in queue.ready] == [2, 0]
    deliver_and(Peer(world).login(), nack)
    world = await world.again()
    assert [message.head.tries for message in world.broker.queues[b"q"].ready] == [3, 0]


async def test_each_failed_try_waits_twice_as_long_up_to_a_bound_also_over_a_restart(world: World) -> None:
    queue = declared(world, retry_ms=1000, retry_max_ms=3000)
    peer = Peer(world).login()
    world.publish(b"", b"q", b"x", properties=properties())
    world.settle()
    for seconds in (1, 2, 3, 3):
        deliver_and(peer, nack)
        world.advance(seconds - 0.1)
        assert ready(queue) == []
        world.advance(0.2)
        assert ready(queue) == [b"x"]
    deliver_and(peer, nack)
    world = await world.again(later_seconds=1)
    queue = world.broker.queues[b"q"]
    assert (ready(queue), queue.later.count) == ([], 1)
    world.advance(2.5)
    assert (ready(queue), count_of(Peer(world))) == ([b"x"], 5)


@pytest.mark.parametrize(("counts", "expected"), [(None, [1, 0, 0]), ("all", [1, 1, 1]), ("none", [0, 0, 0])])
@pytest.mark.parametrize("ends", ["lost", "closed"])
async def test_a_lost_channel_counts_for_the_delivery_that_it_held_longest(
    world: World, counts: str | None, expected: list[int], ends: str
) -> None:
    queue = world.queue(delivery_limit=5, loss_counts=counts)
    world.publish(b"", b"q", b"1", b"2", b"3", properties=properties())
    peer = Peer(world).login()
    peer.ask(commands.Basic.Qos(prefetch_count=10))
    peer.say(commands.Basic.Consume(queue="q"))
    assert queue.held == 3
    if ends == "lost":
        peer.lose()
    else:
        peer.say(commands.Channel.Close(0, "", 0, 0))
    assert [message.head.tries for run in queue.ready for message in run.singles()] == expected
    assert all(run.tries for run in queue.ready), "redelivered"
    assert (queue.held_bytes, queue.loaded_bytes) == (0, world.broker.memory.total_bytes)


async def test_a_quorum_queue_gives_up_after_20_unless_it_is_told_otherwise(world: World) -> None:
    for arguments, tries in (({}, 21), ({"delivery_limit": -1}, 30), ({"delivery_limit": 3}, 4)):
        queue = declared(world, queue_type="quorum", **arguments)
        peer = Peer(world).login()
        world.publish(b"", b"q", b"x", properties=properties())
        world.settle()
        done = 0
        while ready(queue) and done < 30:
            deliver_and(peer, nack)
            done += 1
        assert done == tries
        world.topology.delete_queue(queue)
        world.settle()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delivery-limit": -2},
        {"x-retry-ms": 0},
        {"x-retry-max-ms": 5},
        {"x-retry-ms": 5, "x-retry-max-ms": 4},
        {"x-loss-counts": "some"},
        {"x-eta-header": 5},
        {"x-queue-type": "stream"},
        {"x-nobody-has-it": 1},
        {"x-per-key": 0},
        {"x-per-key": "1"},
        {"x-fair": 1},
        {"x-key-header": 5},
        *({"x-message-deduplication": value} for value in (1, "true", [True])),
        {"x-cache-ttl": 5},
        *({"x-consumer-timeout": value} for value in (99, -1, "1000", True, 1 << 60)),
        *({"x-rate": value} for value in ("10", "0/s", 10, "99999999/s", True)),
    ],
)
async def test_an_argument_that_cannot_be_is_refused_by_its_name(world: World, arguments: Any) -> None:
    peer = Peer(world).login()
    answer = peer.ask(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert (answer.name, answer.reply_code) == ("Channel.Close", 406)
    assert f"'{[*arguments][-1]}'" in answer.reply_text


async def test_what_waits_and_what_was_tried_comes_back_from_the_disk_alone(world: World) -> None:
    queue = declared(world, delivery_limit=9)
    peer = Peer(world).login()
    world.publish(b"", b"q", b"tried", properties=properties())
    world.settle()
    deliver_and(peer, nack)
    world.broker.memory.take_bounds(1 << 30, 0)
    for number in range(200):
        delay = {"x-delay": 1000} if number % 2 else {}
        world.publish(b"", b"q", b"%03d" % number + bytes(500), properties=properties(**delay))
    world.settle()
    assert queue.row.has_cold
    world = await world.again()
    world.broker.memory.take_bounds(1 << 30, 0)
    queue = world.broker.queues[b"q"]
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    queue.dispatch()
    for _ in range(20):
        world.advance(1)
        world.settle()
    assert sorted(body[:3] for body in taker.bodies) == sorted(
        [b"tri", *(b"%03d" % number for number in range(200))]
    )
    assert taker.bodies[0] == b"tried"
    assert world.broker.memory.total_bytes == 0
    assert NO_PROPERTIES == b"\0\0"


@pytest.mark.parametrize("with_feed", [True, False])
async def test_a_delayed_message_of_a_sink_waits_too(with_feed: bool) -> None:
    world, app = await opened()
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine") if with_feed else None
    sink = app.sink(b"quotes")
    late = packed(b"later", properties=properties(**{"x-delay": 1000}))
    for _ in range(2):
        assert sink.say(packed(b"1") + late + packed(b"2")) == b""

    def told() -> list[bytes]:
        return ready(queue) if feed is None else feed_bodies(feed.read + feed.connection.taken())

    assert (told(), queue.later.count) == ([b"1", b"2"] * 2, 2)
    world.advance(2)
    assert queue.later.count == 0
    assert told().count(b"later") == 2
