"""What the broker believes of a dead letter: what it wrote itself. Circles end, and redrive goes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pamqp import commands, encode

from dmp import queue_records
from dmp.data_types import FIELDS_MAX
from dmp.declarations import QueueArguments, QueueKind
from dmp.queues import Queue
from dmp.topology_table import SavedQueue
from shared.access import ASKER, Access, parse_users
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import DEAD, call, row
from tests.dmp.world import PERSISTENT, Taker, World, head, ready


def dying(world: World, name: bytes = b"q") -> Queue:
    """A durable queue whose dead letters go to `dead`, also after a restart."""
    said = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    kind = QueueKind(durable=True, table=encode.field_table(said), arguments=QueueArguments.read(said))
    return world.topology.declare_queue(name, kind, world.owner)[0]


def marked_up(queue: str, reason: str = "expired", **more: Any) -> bytes:
    """Properties of a publisher who knows what `x-death` looks like."""
    death = {"queue": queue, "reason": reason, "count": 1}
    return commands.Basic.Properties(delivery_mode=2, headers={"x-death": [death], **more}).marshal()


def reject(world: World, queue: Queue) -> None:
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    queue.dispatch()
    queue.remove_consumers(taker)
    queue.reject(taker.messages)
    world.settle()


async def test_a_redrive_goes_by_no_death_that_a_publisher_made_up(world: World) -> None:
    theirs = dying(world, b"theirs")
    dead = world.queue(b"dead", durable=True)
    world.publish(b"", b"dead", b"pay", properties=marked_up("theirs"))
    world.settle()
    for _ in range(2):
        assert await call(world, dead, "redrive", dry_run=True) == {"moved": 0, "left": 1}
        assert await call(world, dead, "redrive") == {"moved": 0, "left": 1}
        assert (ready(theirs), ready(dead)) == ([], [b"pay"])
        world = await world.again()
        theirs, dead = world.broker.queues[b"theirs"], world.broker.queues[b"dead"]


async def test_what_a_publisher_made_up_goes_when_the_message_dies(world: World) -> None:
    queue, dead = dying(world), world.queue(b"dead", durable=True)
    told = {f"x-first-death-{what}": "made up" for what in ("queue", "reason", "exchange")}
    world.publish(b"", b"q", b"x", properties=marked_up("theirs", "rejected", **told))
    world.settle()
    reject(world, queue)
    headers = dead.row.ready.first().head.headers
    assert [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]] == [
        ("q", "rejected", 1)
    ]
    assert [headers[f"x-first-death-{what}"] for what in ("queue", "reason", "exchange")] == [
        *("q", "rejected", "")
    ]


async def test_a_dead_letter_knows_where_it_died_over_restarts_and_deaths(world: World) -> None:
    dying(world)
    world.queue(b"dead", durable=True)
    world.publish(b"", b"q", b"x", properties=marked_up("theirs"))
    world.settle()
    for count in (1, 2, 3):
        reject(world, world.broker.queues[b"q"])
        world = await world.again()
        dead = world.broker.queues[b"dead"]
        assert [death["count"] for death in dead.row.ready.first().head.headers["x-death"]] == [count]
        assert await call(world, dead, "redrive") == {"moved": 1, "left": 0}


def test_the_mark_of_a_death_is_in_the_record_and_not_on_the_wire() -> None:
    for died in (False, True):
        of = head(b"q", 1, marked_up("q"))
        of.died = died
        reader = queue_records.MessageReader("")
        record = queue_records.put(of, [b"x"], 7)
        assert len(record) == queue_records.put_bytes(of)
        found = reader.read(record, 4, len(record), 0)
        assert (found.head.died, found.head.properties) == (died, of.properties)
        assert queue_records.put(found.head, found.bodies, found.first) == record


async def test_rows_of_a_version_that_numbered_marks_are_read(world: World) -> None:
    queue = world.queue(b"dead", durable=True)
    world.broker.topology_table.table.put(b"qdead", b"\x60" + bytes(7) + b"\x02" + queue.kind.table)
    world.settle()
    (saved,) = (await world.again()).broker.topology_table.load().queues
    assert saved == SavedQueue(b"dead", queue.kind, paused=True)


ODD = {
    "plain": b"\x10\x00\x02",
    "made up": marked_up("x", "rejected"),
    "full": b"\x30\0%s\x02" % encode.field_table({f"h{number:04}": True for number in range(FIELDS_MAX)}),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("count", [1, 2, 100])
async def test_a_circle_without_a_client_ends(world: World, count: int, odd: bytes) -> None:
    for number in range(count):
        following = b"%d" % ((number + 1) % count)
        world.queue(
            b"%d" % number, durable=True, ttl_ms=0, dead_letter_exchange=b"", dead_letter_key=following
        )
    world.publish(b"", b"0", b"x", properties=odd)
    for _ in range(3 * count):
        world.settle()
        world.advance(1)
    assert sum(queue.depth for queue in world.broker.queues.values()) == 0
    assert world.broker.counts.dead_letters_lost == 1
    assert world.broker.memory.total_bytes == 0


async def test_a_circle_ends_though_a_client_rejected_the_message_before(world: World) -> None:
    first = world.queue(b"first", dead_letter_exchange=b"", dead_letter_key=b"0")
    for name, following in ((b"0", b"1"), (b"1", b"0")):
        world.queue(name, ttl_ms=0, dead_letter_exchange=b"", dead_letter_key=following)
    world.publish(b"", b"first", b"x")
    reject(world, first)
    for _ in range(10):
        world.advance(1)
    assert world.broker.counts.dead_letters_lost == 1


async def test_a_circle_with_a_rejection_in_it_is_the_clients_choice(world: World) -> None:
    queue = world.queue(dead_letter_exchange=b"", dead_letter_key=b"wait")
    world.queue(b"wait", ttl_ms=1000, dead_letter_exchange=b"", dead_letter_key=b"q")
    world.publish(b"", b"q", b"x")
    for _ in range(5):
        reject(world, queue)
        world.advance(1.1)
    assert ready(queue) == [b"x"]
    assert [death["count"] for death in queue.row.ready.first().head.headers["x-death"]] == [5, 5]


@contextmanager
def asked_by(user: str) -> Iterator[None]:
    before = ASKER.set(user)
    yield
    ASKER.reset(before)


async def test_a_redrive_puts_messages_only_where_who_asks_may_write() -> None:
    users = '[users.ann]\nallow = ["admin:manage", "dmp:write:q"]\n[users.manager]\nallow = ["admin:manage"]'
    world = await World.open(access=Access(parse_users(users)).guard("dmp"))
    queue, dead = world.queue(**DEAD), world.queue(b"dead")
    world.publish(b"", b"q", b"x")
    reject(world, queue)
    for user, moved in (("manager", 0), ("ann", 1)):
        with asked_by(user):
            found = await call(world, dead, "redrive", dry_run=True)
            assert found == await call(world, dead, "redrive") == {"moved": moved, "left": 1 - moved}
    assert ready(queue) == [b"x"]


@pytest.mark.parametrize("durable", [True, False])
async def test_letters_wait_in_order_for_a_full_queue_that_rejects(world: World, durable: bool) -> None:
    full = world.queue(b"full", durable=durable, messages_max=1, rejects=True)
    other = world.queue(b"other", dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead")
    source = world.queue(b"q", durable=durable, dead_letter_exchange=b"", dead_letter_key=b"full")
    for body in (b"1", b"2", b"3"):
        world.publish(b"", b"q", body, properties=PERSISTENT)
        world.settle()
        reject(world, source)
    shown = row(world, source)
    assert (ready(full), shown["dead"], shown["dead_obstacle"]) == ([b"1"], 2, "queue 'full' is full")
    world.publish(b"", b"other", b"x")
    reject(world, other)
    assert ready(dead) == [b"x"], "those of other queues go on"
    dead.get(no_ack=True)
    for body in (b"1", b"2", b"3"):
        assert ready(full) == [body]
        full.get(no_ack=True)
        world.advance(1.1)
        world.settle()
    shown = row(world, source)
    assert (shown["dead"], shown["dead_obstacle"], world.broker.memory.total_bytes) == (0, None, 0)
    assert world.broker.counts.dead_letters_lost == 0


async def test_a_letter_that_waits_for_room_is_in_its_old_queue_after_a_restart(world: World) -> None:
    world.queue(b"full", durable=True, messages_max=1, rejects=True)
    world.publish(b"", b"full", b"there", properties=PERSISTENT)
    source = world.queue(b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"full")
    world.publish(b"", b"q", b"x", properties=PERSISTENT)
    world.settle()
    reject(world, source)
    world.advance(3)
    world = await world.again()
    assert [ready(world.broker.queues[name]) for name in (b"q", b"full")] == [[b"x"], [b"there"]]


@pytest.mark.parametrize("limit", [{"messages_max": 0}, {"bytes_max": 3}])
async def test_a_letter_that_never_has_room_is_lost(world: World, limit: dict[str, int]) -> None:
    world.queue(b"full", rejects=True, **limit)
    source = world.queue(b"q", dead_letter_exchange=b"", dead_letter_key=b"full")
    world.publish(b"", b"q", b"long")
    reject(world, source)
    assert (row(world, source)["dead"], world.broker.counts.dead_letters_lost) == (0, 1)


async def test_letters_wait_for_a_queue_where_none_may_be_lost(world: World) -> None:
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "later",
        "x-dead-letter-strategy": "at-least-once",
    }
    peer = Peer(world).login()
    peer.ask(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    for body in (b"1", b"2"):
        world.publish(b"", b"q", body, properties=PERSISTENT)
        world.settle()
        reject(world, world.broker.queues[b"q"])
    world.advance(3)
    shown = row(world, world.broker.queues[b"q"])
    assert (shown["dead"], shown["dead_obstacle"]) == (2, "no queue takes 'later' from exchange ''")
    world = await world.again()
    source = world.broker.queues[b"q"]
    assert ready(source) == [b"1", b"2"]
    for _ in range(2):
        reject(world, source)
    world.queue(b"later")
    world.advance(1.1)
    world.settle()
    assert ready(world.broker.queues[b"later"]) == [b"1", b"2"]
    assert world.broker.counts.dead_letters_lost == 0


async def test_a_circle_ends_though_no_letter_may_be_lost(world: World) -> None:
    for name, following in ((b"0", b"1"), (b"1", b"0")):
        world.queue(name, ttl_ms=0, keeps_letters=True, dead_letter_exchange=b"", dead_letter_key=following)
    world.publish(b"", b"0", b"x")
    for _ in range(10):
        world.advance(1)
    assert (world.broker.counts.dead_letters_lost, world.broker.memory.total_bytes) == (1, 0)
