"""A queue without a wire: order, turns, acknowledgements, time, limits, and what a restart brings back."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from pamqp import commands, encode

from dmp.data_types import field_table
from dmp.declarations import ExchangeKind, QueueArguments, QueueKind
from dmp.properties import NO_PROPERTIES
from dmp.queues import Queue
from dmp.refusals import Refusal
from dmp.settings import DmpSettings
from shared.queues.runs import Run
from shared.storage.log import Ticket
from tests.dmp.amqp_peer import Peer
from tests.dmp.world import PERSISTENT, Taker, World, head, ready


def properties(**of: Any) -> bytes:
    return commands.Basic.Properties(**of).marshal()


async def test_messages_wait_in_order_and_go_to_the_first_that_takes_them(world: World) -> None:
    queue = world.queue()
    world.publish(b"", b"q", b"a", b"b", b"c")
    taker = Taker(room=2)
    queue.add_consumer(taker)
    queue.dispatch()
    assert taker.bodies == [b"a", b"b"]
    assert ready(queue) == [b"c"]
    taker.count = 5
    queue.dispatch()
    assert taker.bodies == [b"a", b"b", b"c"]
    assert world.broker.memory.total_bytes == 0


async def test_messages_too_old_are_dead_letters(world: World) -> None:
    world.queue(ttl_ms=1000, dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    world.publish(b"", b"q", b"old")
    world.advance(0.5)
    world.publish(b"", b"q", b"young")
    world.advance(0.6)
    assert ready(dead) == [b"old"]
    (death,) = dead.row.ready.first().head.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("expired", "q", 1)
    world.advance(1)
    assert ready(dead) == [b"old", b"young"]


async def test_the_oldest_go_where_a_queue_is_full(world: World) -> None:
    queue = world.queue(messages_max=2)
    world.publish(b"", b"q", b"1", b"2", b"3")
    assert ready(queue) == [b"2", b"3"]
    assert world.broker.counts.overflowed == 1


async def test_the_newest_go_where_the_settings_say_drop() -> None:
    world = await World.open(DmpSettings(queue_drop_messages=2, queue_warn_messages=1))
    queue = world.queue()
    world.publish(b"", b"q", b"1", b"2", b"3")
    assert ready(queue) == [b"1", b"2"]
    assert (world.broker.counts.dropped_full, world.broker.counts.warned) == (1, 1)


async def test_a_queue_is_given_other_arguments_and_its_declarations_go_on(world: World) -> None:
    declared, other = field_table({"x-max-length": 3}), field_table({"x-max-length": 2})
    app = world.broker.new_application("")

    def declare(table: bytes) -> Queue:
        kind = QueueKind.asked_for(table, durable=True, exclusive=False, auto_delete=False)
        return world.topology.declare_queue(b"q", kind, app)[0]

    queue = declare(declared)
    world.publish(b"", b"q", b"1", b"2", b"3", properties=PERSISTENT)
    world.settle()
    with pytest.raises(Refusal, match="inequivalent arg 'x-max-length'"):
        declare(other)
    world.topology.change_queue(queue, queue.kind.changed({"x-max-length": 2, "x-dead-letter-exchange": ""}))
    assert ready(queue) == [b"2", b"3"]
    assert declare(declared) is declare(other) is queue
    world.settle()
    after = await world.again()
    found = after.broker.queues[b"q"]
    assert found.kind == queue.kind
    found.kind = found.kind.changed({"x-max-length": None})
    assert (found.kind.arguments.messages_max, found.kind.arguments.dead_letter_exchange) == (3, b"")


async def test_a_change_that_the_disk_refuses_is_undone(world: World) -> None:
    queue = world.queue(durable=True)
    before = queue.kind
    world.settle()
    world.refuse_a_write()
    ticket = world.topology.change_queue(
        queue, before.changed({"x-rate": "1/s", "x-overflow": "reject-publish"})
    )
    assert queue.capacity.capped
    world.settle()
    assert ticket is not None
    assert ticket.error is not None
    assert (queue.kind, queue.throttle, queue.capacity.capped) == (before, None, False)


@pytest.mark.parametrize("name", ["x-max-priority", "x-fair", "x-queue-type", "x-message-deduplication"])
def test_what_says_how_messages_are_kept_is_not_changed(name: str) -> None:
    with pytest.raises(Refusal, match=name):
        QueueKind().changed({name: 1})


async def test_an_unused_queue_goes(world: World) -> None:
    queue = world.queue(expires_ms=1000)
    taker = Taker()
    queue.add_consumer(taker)
    world.advance(5)
    assert not queue.deleted
    queue.remove_consumers(taker)
    world.advance(0.9)
    assert not queue.deleted
    world.advance(0.2)
    assert queue.deleted
    assert b"q" not in world.broker.queues


async def test_persistent_messages_are_seen_after_the_sync_and_again_after_a_restart(world: World) -> None:
    queue = world.queue(durable=True)
    ticket = world.publish(b"", b"q", b"kept", b"taken", properties=PERSISTENT)
    world.publish(b"", b"q", b"light")
    assert ready(queue) == []
    world.settle()
    assert ticket.done
    assert ready(queue) == [b"kept", b"taken", b"light"]
    taker = Taker(no_ack=False, room=2)
    queue.add_consumer(taker)
    queue.dispatch()
    queue.settle([taker.messages[1]])
    world.settle()
    after = await world.again()
    found = after.broker.queues[b"q"]
    assert ready(found) == [b"kept"]
    assert found.row.ready.first().tries


async def test_durable_exchanges_queues_and_bindings_come_back(world: World) -> None:
    queue = world.queue(durable=True)
    world.topology.declare_exchange(b"e", ExchangeKind("topic", durable=True))
    world.topology.declare_exchange(b"gone", ExchangeKind("topic"))
    world.topology.bind(b"e", queue, b"a.#")
    world.settle()
    after = await world.again()
    assert b"gone" not in after.broker.exchanges
    assert after.broker.exchanges[b"e"].kind.type == "topic"
    after.publish(b"e", b"a.b.c", b"x")
    assert ready(after.broker.queues[b"q"]) == [b"x"]


async def test_a_dead_letter_moves_from_log_to_log_as_one(world: World) -> None:
    dead = world.queue(b"dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = world.holder(queue, b"x", properties=PERSISTENT)
    queue.reject(taker.messages)
    world.settle()
    assert ready(dead) == [b"x"]
    after = await world.again()
    assert ready(after.broker.queues[b"dead"]) == [b"x"]
    assert ready(after.broker.queues[b"q"]) == []


@pytest.mark.parametrize("exchange", [b"", b"amq.fanout"])
@pytest.mark.parametrize("source", [b"a", b"z"])
async def test_what_a_start_finds_too_much_of_goes_to_where_dead_letters_go(
    world: World, exchange: bytes, source: bytes
) -> None:
    """A consumer held it: it counts again. The exchange's bindings, and other queues, may come back later."""
    dead = world.queue(b"dead", durable=True)
    world.topology.bind(b"amq.fanout", dead)
    arguments = {
        "x-max-length": 1,
        "x-dead-letter-exchange": exchange.decode(),
        "x-dead-letter-routing-key": "dead",
    }
    Peer(world).login().ask(commands.Queue.Declare(0, source.decode(), durable=True, arguments=arguments))
    world.holder(world.broker.queues[source], b"1", b"2", properties=PERSISTENT)
    after = await world.again()
    after.settle()
    assert ready(after.broker.queues[source]) == [b"2"]
    assert ready(after.broker.queues[b"dead"]) == [b"1"]
    assert after.broker.counts.dead_letters_lost == 0


async def test_a_dead_letter_that_cannot_be_written_is_there_after_a_restart(world: World) -> None:
    world.queue(b"dead", durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = world.holder(queue, b"x", properties=PERSISTENT)
    world.break_disk()
    world.publish(b"", b"q", b"lost", properties=PERSISTENT)
    world.settle()
    queue.reject(taker.messages)
    assert world.broker.memory.total_bytes == 0
    assert world.broker.counts.dead_letters_lost == 1
    world.disk.before = None
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"x"]


@pytest.mark.parametrize("purged", [False, True])
async def test_what_the_disk_refused_to_note_of_a_queue_is_written_with_the_next_change(
    world: World, purged: bool
) -> None:
    queue = world.queue(durable=True)
    world.publish(b"", b"q", b"x", properties=PERSISTENT)
    world.settle()

    world.refuse_a_write()
    if purged:
        assert queue.purge() == 1
    else:
        message = queue.get(no_ack=False)
        assert message is not None
        queue.settle([message])
    world.settle()
    assert world.disk.before is None
    world.publish(b"", b"q", b"y", properties=PERSISTENT)
    world.settle()
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"y"]


async def test_a_queue_that_is_drained_keeps_its_log_small(world: World) -> None:
    queue = world.queue(durable=True)
    taker = Taker(no_ack=False)
    world.publish(b"", b"q", b"stays", properties=PERSISTENT)
    world.settle()
    kept = queue.get(no_ack=False)
    assert kept is not None
    queue.add_consumer(taker)
    for _ in range(60):
        world.publish(b"", b"q", *[bytes(1000)] * 100, properties=PERSISTENT)
        world.settle()
        queue.settle(taker.messages)
        taker.messages = []
        world.settle()
    assert queue.log is not None
    log = queue.log.log
    assert log.end - log.first < 1 << 20 < log.end
    queue.requeue([kept])
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"stays"]


async def test_a_log_keeps_what_is_visible_and_waits_for_a_bucket(world: World) -> None:
    queue = world.queue(durable=True)
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    world.publish(b"", b"q", *[bytes(1000)] * 600, properties=PERSISTENT)
    world.settle()
    assert queue.log is not None
    log = queue.log.log
    offset, _ = log.append(b"\0\0\0\1x", 1)
    world.settle()
    assert log.visible > offset
    queue.arrivals.add(Run(taker.messages[0].head, [b"x"], queue.numbered, 0, offset, 5), Ticket())
    queue.settle(taker.messages)
    world.settle()
    assert 0 < log.first <= offset


@pytest.mark.parametrize("count", [1, 3])
async def test_an_application_ends_with_the_last_that_holds_it(world: World, count: int) -> None:
    kind = QueueKind(exclusive=True)
    queue = world.topology.declare_queue(b"mine", kind, world.owner)[0]
    for _ in range(count - 1):
        world.owner.hold()
    for _ in range(count - 1):
        world.owner.release()
        assert not queue.deleted
    world.owner.release()
    assert queue.deleted


async def test_what_has_expired_is_never_delivered_though_one_before_it_lives_on(world: World) -> None:
    queue = world.queue(b"q")
    for expiration, body in ((b"", b"1"), (b"1000", b"2"), (b"9000", b"3"), (b"1000", b"4")):
        properties = b"\x01\x00" + bytes((len(expiration),)) + expiration if expiration else b"\0\0"
        world.publish(b"", b"q", body, properties=properties)
    world.advance(2)
    assert queue.depth == 4
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    queue.dispatch()
    assert taker.bodies == [b"1", b"3"]
    assert (queue.held, queue.depth, queue.row.body_bytes) == (2, 0, 0)
    assert world.broker.counts.expired == 2
    queue.settle(taker.messages)
    assert world.broker.memory.total_bytes == 0


def _get(queue: Queue) -> None:
    assert queue.get(no_ack=False) is not None


def _get_for_good(queue: Queue) -> None:
    assert queue.get(no_ack=True) is not None


def _redrive(queue: Queue) -> None:
    queue.leave(queue.take_front(1))


def _look_and_return(queue: Queue) -> None:
    front = queue.take_front(2)
    queue.leave(front[:1])
    queue.return_front(front[1:])


def _consume(queue: Queue) -> None:
    queue.add_consumer(Taker(no_ack=False, room=1))
    queue.dispatch()


def _push_out(queue: Queue) -> None:
    queue.kind = attrs.evolve(queue.kind, arguments=attrs.evolve(queue.kind.arguments, messages_max=1))
    queue.trim()


@pytest.mark.parametrize(
    "take", [_get, _get_for_good, _redrive, _look_and_return, _consume, _push_out], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("first", [NO_PROPERTIES, properties(expiration="60000")], ids=["lasts", "is long"])
async def test_a_message_expires_in_its_time_however_the_one_before_it_went(
    world: World, take: Callable[[Queue], None], first: bytes
) -> None:
    queue = world.queue(dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    world.publish(b"", b"q", b"first", properties=first)
    world.publish(b"", b"q", b"second", properties=properties(expiration="400"))
    take(queue)
    world.advance(0.5)
    assert (queue.depth, ready(dead)[-1:]) == (0, [b"second"])


async def test_a_queue_whose_definition_was_lost_and_found_lets_messages_expire(world: World) -> None:
    queue = world.queue(durable=True)
    queue.adopted = True
    kind = QueueKind(durable=True, arguments=QueueArguments(ttl_ms=400))
    world.topology.declare_queue(b"q", kind, world.owner)
    world.publish(b"", b"q", b"x")
    world.advance(0.5)
    assert queue.depth == 0


async def test_priorities_hold_over_a_restart_and_for_what_comes_back(world: World) -> None:
    table = encode.field_table({"x-max-priority": 9})
    kind = QueueKind(durable=True, table=table, arguments=QueueArguments.read({"x-max-priority": 9}))
    world.topology.declare_queue(b"q", kind, world.owner)
    for priority in (1, 9, 4, 9):
        world.publish(b"", b"q", b"%d" % priority, properties=b"\x18\x00\x02" + bytes((priority,)))
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    first = queue.get(no_ack=False)
    assert first is not None
    queue.requeue([first])
    assert ready(queue) == [b"9", b"9", b"4", b"1"]
    world.publish(b"", b"q", b"5", properties=b"\x18\x00\x02\x05")
    world.settle()
    for body in (b"9", b"9", b"5"):
        message = queue.get(no_ack=True)
        assert message is not None
        assert message.bodies == [body]
    world.settle()
    world = await world.again()
    assert ready(world.broker.queues[b"q"]) == [b"4", b"1"], "what has left stays gone"


async def test_a_full_queue_that_rejects_has_room_for_what_a_consumer_takes(world: World) -> None:
    queue = world.queue(b"q", messages_max=2, rejects=True)
    taker = Taker(room=3)
    queue.add_consumer(taker)
    world.broker.publish(head(b"q", 1), [queue], [b"%d" % number for number in range(9)])
    assert taker.bodies == [b"0", b"1", b"2"]
    assert ready(queue) == [b"3", b"4"]
    assert world.broker.counts.dropped_full == 4


async def test_a_full_queue_by_bytes_rejects_too(world: World) -> None:
    queue = world.queue(b"full", bytes_max=10, rejects=True)
    world.publish(b"", b"full", b"12345", b"123456", b"1234")
    assert ready(queue) == [b"12345", b"1234"]


async def test_a_paused_queue_takes_messages_and_gives_them_out_once_it_is_resumed(world: World) -> None:
    queue = world.queue(messages_max=2, rejects=True)
    taker = world.holder(queue, b"0")
    world.topology.set_paused(queue, True)
    world.topology.set_paused(queue, True)
    world.publish(b"", b"q", b"1", b"2", b"3")
    assert (taker.bodies, ready(queue)) == ([b"0"], [b"1", b"2"]), "what is full stays full"
    queue.requeue(taker.messages)
    queue.dispatch()
    assert queue.get(no_ack=True) is None
    assert not queue.cannot_give_yet
    world.topology.set_paused(queue, False)
    assert taker.bodies == [b"0", b"0", b"1", b"2"]


async def test_a_durable_queue_stays_paused_over_crashes_and_purges_until_it_is_resumed(world: World) -> None:
    queue = world.queue(durable=True)
    world.topology.set_paused(queue, True)
    queue.lost = True
    world.topology.purge_queue(queue)
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert (queue.paused, queue.lost) == (True, False)
    world.publish(b"", b"q", b"0", properties=PERSISTENT)
    world.settle()
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    assert taker.bodies == []
    world.topology.set_paused(queue, False)
    assert taker.bodies == [b"0"]
    world.settle()
    world = await world.again()
    assert not world.broker.queues[b"q"].paused


async def test_a_dead_letter_that_the_disk_refuses_to_move_is_moved_a_second_later(world: World) -> None:
    dead = world.queue(b"dead", durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = world.holder(queue, b"x", properties=PERSISTENT)
    world.refuse_a_write()
    queue.reject(taker.messages)
    world.settle()
    assert (world.disk.before, ready(dead), queue.depth) == (None, [], 0)
    world.advance(1)
    world.settle()
    assert (ready(dead), queue.depth, world.broker.counts.dead_lettered) == ([b"x"], 0, 1)
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == []
    assert ready(after.broker.queues[b"dead"]) == [b"x"]


async def test_a_dead_letter_that_waits_for_the_disk_stands_in_its_log_whatever_else_leaves(
    world: World,
) -> None:
    world.queue(b"dead", durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = world.holder(queue, b"x", properties=PERSISTENT)
    world.refuse_a_write()
    queue.reject(taker.messages)
    world.settle()
    for _ in range(20):
        taker.messages, taker.count = [], 1 << 30
        world.publish(b"", b"q", *[bytes(1000)] * 100, properties=PERSISTENT)
        world.settle()
        queue.settle(taker.messages)
        world.settle()
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"x"]
