"""The memory of messages has a bound by user, too: who publishes more than his share waits, others go on."""

from collections.abc import Awaitable, Callable

import pytest
from pamqp import commands

from dmp.amqp.wire import encode
from dmp.pacing import STOP_MEMORY
from dmp.settings import DmpSettings
from shared.access import User
from tests.dmp.amqp_peer import Peer, bodies
from tests.dmp.peers import Application, packed
from tests.dmp.test_access import EVERYTHING, Place, user
from tests.dmp.world import PERSISTENT, World

C = commands
LIMIT = 1 << 20
BODY = bytes(20_000)
MANY = 60
"""Of these bodies are more than the limit."""
BLOCKED = {"connection.blocked": True}


async def of_two_users(*those: User) -> Place:
    place = await Place.open(
        *(those or (EVERYTHING, user("mal", "dmp:*:*"))), settings=DmpSettings(memory_bytes_max=LIMIT)
    )
    place.world.budget.percent_of = place.access.share_of
    return place


def login(place: Place, name: str) -> Peer:
    return place.login(f"\0{name}\0secret", capabilities=BLOCKED)


def share_of(place: Place, name: str) -> int:
    """Bytes that a user's messages count for."""
    return place.world.budget.account("messages").shares.of(name)


def greedy(place: Place, queue: str = "q", **options: bytes) -> Peer:
    """A connection of mal's that has published until it waits."""
    peer = login(place, "mal")
    for _ in range(MANY):
        peer.publish("", queue, BODY, **options)
        place.world.settle()
    return peer


async def test_who_publishes_more_than_his_share_waits_and_another_is_served() -> None:
    place = await of_two_users()
    place.world.queue(b"q")
    place.world.queue(b"also")
    peer = greedy(place)
    blocked = [value for _, value in peer.frames() if value.name == "Connection.Blocked"]
    assert [method.reason for method in blocked] == ["messages of mal take his share of memory"]
    assert peer.session.stopped & STOP_MEMORY
    second = greedy(place, "also")
    assert second.session.stopped & STOP_MEMORY, "on whichever connection"
    held = place.world.broker.memory.total_bytes
    assert LIMIT * 0.4 < held < LIMIT * 0.6
    other = login(place, "ann")
    other.ask(C.Confirm.Select())
    for _ in range(5):
        other.publish("", "q", BODY)
        assert other.names() == ["Basic.Ack"]
    for _ in range(20):
        assert other.ask_get("q") == BODY
    assert "Connection.Unblocked" in peer.names()


async def test_who_holds_messages_himself_is_refused() -> None:
    place = await of_two_users()
    place.world.queue(b"q")
    peer = login(place, "mal")
    peer.ask(C.Confirm.Select())
    peer.method(C.Basic.Consume(0, "q", "tag"))
    for _ in range(MANY):
        peer.publish("", "q", BODY)
    names = peer.names()
    assert names.count("Basic.Nack") > 20
    assert share_of(place, "mal") < LIMIT * 0.6
    peer.method(C.Basic.Ack(0, True))
    peer.publish("", "q", BODY)
    assert "Basic.Ack" in peer.names()


async def test_a_transaction_counts_for_its_user() -> None:
    place = await of_two_users()
    place.world.queue(b"q")
    peer = login(place, "mal")
    peer.ask(C.Tx.Select())
    for _ in range(20):
        peer.publish("", "q", BODY)
    before = share_of(place, "mal")
    assert before >= 20 * len(BODY) - (64 << 10)
    assert peer.ask(C.Tx.Rollback()).name == "Tx.RollbackOk"
    assert share_of(place, "mal") == 0
    for _ in range(20):
        peer.publish("", "q", BODY)
    assert peer.ask(C.Tx.Commit()).name == "Tx.CommitOk"
    assert share_of(place, "mal") == pytest.approx(before, abs=64 << 10), "once, and not twice"


async def test_a_sink_s_messages_count_for_the_user_of_its_lease() -> None:
    place = await of_two_users()
    world = place.world
    world.queue(b"q")
    owner = world.broker.new_application("mal")
    owner.account = "mal"
    sink = Application(world, owner).sink(b"")
    for _ in range(MANY):
        if not sink.session.stopped:
            sink.say(packed(BODY, key=b"q"))
    assert sink.session.stopped & STOP_MEMORY
    assert LIMIT * 0.4 < share_of(place, "mal") < LIMIT * 0.6
    place.login().publish("", "q", BODY)
    assert world.broker.counts.published_bytes == (sink.session.traffic["messages_in"] + 1) * len(BODY)


async def test_what_a_durable_queue_has_on_disk_alone_counts_for_nobody() -> None:
    place = await of_two_users()
    place.world.queue(b"q", durable=True)
    peer = greedy(place, properties=PERSISTENT)
    assert not peer.session.stopped & STOP_MEMORY
    assert place.world.broker.queues[b"q"].depth == MANY
    assert 0 < share_of(place, "mal") < LIMIT * 0.5
    place.world.broker.queues[b"q"].purge()
    place.world.finish_work()
    assert share_of(place, "mal") == 0


async def test_a_start_counts_what_it_finds_for_nobody() -> None:
    place = await of_two_users()
    place.world.queue(b"q", durable=True)
    login(place, "mal").publish("", "q", BODY, properties=PERSISTENT)
    place.world.settle()
    world = await place.world.again()
    assert world.broker.queues[b"q"].depth == 1
    assert world.budget.account("messages").shares.of("mal") == 0
    queue = world.broker.queues[b"q"]
    assert queue.get(no_ack=True)
    assert world.broker.memory.total_bytes == 0


def held_by(place: Place, queue: str = "q") -> Peer:
    """A consumer of ann's that has all that is ready, and acknowledges nothing."""
    consumer = login(place, "ann")
    consumer.method(C.Basic.Consume(0, queue, "tag"))
    assert bodies(consumer.frames())
    return consumer


async def acknowledged(place: Place) -> None:
    held_by(place).method(C.Basic.Ack(0, True))


async def acknowledged_in_a_transaction(place: Place) -> None:
    consumer = login(place, "ann")
    consumer.ask(C.Tx.Select())
    consumer.method(C.Basic.Consume(0, "q", "tag"))
    assert bodies(consumer.frames())
    consumer.send(encode(C.Basic.Ack(0, True), 1) + encode(C.Tx.Commit(), 1))
    place.world.settle()


async def rejected(place: Place) -> None:
    held_by(place).method(C.Basic.Nack(0, True, requeue=False))


async def requeued_and_taken(place: Place) -> None:
    held_by(place).lose()
    consumer = login(place, "ann")
    consumer.method(C.Basic.Consume(0, "q", "tag", no_ack=True))
    assert bodies(consumer.frames())


async def expired(place: Place) -> None:
    place.world.advance(61)


async def purged(place: Place) -> None:
    login(place, "ann").method(C.Queue.Purge(0, "q"))


async def deleted(place: Place) -> None:
    login(place, "ann").method(C.Queue.Delete(0, "q"))


async def deleted_while_held(place: Place) -> None:
    consumer = held_by(place)
    place.world.topology.delete_queue(place.world.broker.queues[b"q"])
    consumer.lose()


async def dead_lettered_and_purged(place: Place) -> None:
    held_by(place, "letters").method(C.Basic.Nack(0, True, requeue=False))
    place.world.finish_work()
    place.world.settle()
    assert place.world.broker.queues[b"q"].depth > 0
    login(place, "ann").method(C.Queue.Purge(0, "q"))


WAYS: list[Callable[[Place], Awaitable[None]]] = [
    acknowledged,
    acknowledged_in_a_transaction,
    rejected,
    requeued_and_taken,
    expired,
    purged,
    deleted,
    deleted_while_held,
    dead_lettered_and_purged,
]


@pytest.mark.parametrize("durable", [False, True], ids=["in memory", "durable"])
@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_what_leaves_is_given_back_to_whom_it_counted_for(
    leave: Callable[[Place], Awaitable[None]], durable: bool
) -> None:
    place = await of_two_users()
    world = place.world
    world.queue(b"q", durable=durable, ttl_ms=60_000)
    world.queue(b"letters", durable=durable, dead_letter_exchange=b"", dead_letter_key=b"q")
    name = "letters" if leave is dead_lettered_and_purged else "q"
    peer = greedy(place, name, properties=PERSISTENT)
    assert share_of(place, "mal") > 0
    await leave(place)
    peer.lose()
    world.finish_work()
    world.settle()
    while world.broker.queues[name.encode()].depth if name.encode() in world.broker.queues else False:
        await leave(place)
        world.finish_work()
        world.settle()
    assert world.broker.memory.total_bytes == 0
    assert share_of(place, "mal") == share_of(place, "ann") == 0


async def test_what_a_queue_drops_for_its_length_is_given_back() -> None:
    place = await of_two_users()
    place.world.queue(b"q", messages_max=2)
    peer = greedy(place)
    assert not peer.session.stopped & STOP_MEMORY
    assert place.world.broker.memory.total_bytes < 3 * len(BODY)
    assert share_of(place, "mal") < 64 << 10


@pytest.mark.parametrize("change", ["the share", "the bound"])
async def test_who_waits_goes_on_where_the_share_grows(change: str) -> None:
    place = await of_two_users()
    place.world.queue(b"q")
    peer = greedy(place)
    assert peer.session.stopped & STOP_MEMORY
    if change == "the share":
        place.access.user_share = 90
    else:
        place.world.broker.take_settings(DmpSettings(memory_bytes_max=2 * LIMIT))
    place.world.advance(1)
    peer.pump()
    assert place.world.broker.queues[b"q"].depth > 30


async def test_a_user_alone_has_all() -> None:
    place = await of_two_users(EVERYTHING)
    place.world.queue(b"q")
    peer = place.login()
    for _ in range(MANY):
        peer.publish("", "q", BODY)
    assert place.world.broker.memory.total_bytes > LIMIT
    assert share_of(place, "ann") == 0


async def test_who_waits_for_the_memory_of_all_goes_on_with_it() -> None:
    """And whoever is above his share then does not."""
    place = await of_two_users()
    world: World = place.world
    world.queue(b"q")
    peer = greedy(place)
    world.queue(b"full")
    while not world.broker.memory.full:
        world.publish(b"", b"full", BODY)
    other = login(place, "ann")
    other.publish("", "q", BODY)
    assert other.session.stopped & STOP_MEMORY
    world.broker.queues[b"full"].purge()
    world.finish_work()
    other.pump()
    assert not other.session.stopped & STOP_MEMORY
    assert peer.session.stopped & STOP_MEMORY
