"""Memory that clients make grow ends in a refusal; neighbours are served on, and all is given back."""

import pytest

from dms.engine import CREDIT_BYTES, CREDITS_FREE, CREDITS_STEP
from dms.settings import DmsSettings
from dms.wire import Status, Type, pack, pack_name
from shared.budget import Account
from shared.queues.core import SLACK_BYTES
from tests.dms.world import MEMORY, World, deliveries, statuses, with_queue

MANY = 400
BODY = b"x" * 1000


def used(world: World) -> int:
    """Of DMS's account, beside its queues."""
    world.engine.sync_budget()
    account = world.budget.account("dms")
    return account.used_bytes - account.account("names").used_bytes


def test_messages_in_memory_end_in_a_refusal_and_who_consumes_makes_room() -> None:
    world = World(MEMORY, budget=Account("process", 300_000))
    peer = with_queue(world)
    found = [status for _ in range(MANY) for status in statuses(peer.produce("orders", BODY))]
    taken = found.count(Status.OK)
    assert 0 < taken < 350
    assert found == [Status.OK] * taken + [Status.QUEUE_FULL] * (MANY - taken)
    assert used(world) < 300_000 + SLACK_BYTES + 2000
    other = world.connect()
    assert len(other.consume("orders")) == 1, "what makes room is served"
    for _ in range(taken // 2):
        for held, _ in other.consume("orders"):
            assert statuses(other.ack(held)) == [Status.OK]
    assert statuses(peer.produce("orders", BODY)) == [Status.OK]


def test_what_is_held_ends_in_a_refusal_until_some_of_it_is_acknowledged() -> None:
    world = World(DmsSettings(hot_bytes=0), budget=Account("process", 400_000))
    peer = with_queue(world)
    for _ in range(MANY):
        assert statuses(peer.produce("orders", BODY)) == [Status.OK], "the disk takes it, memory or not"
    held: list[int] = []
    while True:
        frames = peer.consume("orders")
        if not frames:
            break
        held.append(frames[0][0])
    assert 0 < len(held) < MANY
    assert world.engine.memory.held_bytes < 200_000 + SLACK_BYTES + 2000
    neighbour = with_queue(world, "other")
    assert statuses(neighbour.produce("other", b"x")) == [Status.OK]
    assert statuses(peer.ack(*held)) == [Status.OK] * len(held)
    assert [body for _, body in neighbour.consume("other")] == [b"x"]
    assert len(peer.consume("orders")) == 1


def of_two_users(*, persist: bool = False) -> World:
    process = Account("process", 400_000)
    process.percent_of = lambda user: 50
    return World(DmsSettings(persist=persist), budget=process)


def test_a_user_s_queues_have_their_share_of_memory_and_who_consumes_makes_room() -> None:
    world = of_two_users()
    greedy, other = with_queue(world, "mine", user="mal"), with_queue(world, "also", user="mal")
    neighbour = with_queue(world, "theirs", user="ann")
    found = [
        status
        for number in range(MANY)
        for status in statuses((greedy, other)[number % 2].produce(("mine", "also")[number % 2], BODY))
    ]
    assert set(found) == {Status.OK, Status.QUEUE_FULL}
    assert 180 < found.count(Status.OK) < (200_000 + SLACK_BYTES) / len(BODY)
    assert statuses(neighbour.produce("theirs", BODY)) == [Status.OK]
    for _ in range(80):
        for held, _ in other.consume("also"):
            assert statuses(other.ack(held)) == [Status.OK]
    assert statuses(greedy.produce("mine", BODY)) == [Status.OK]


@pytest.mark.parametrize("persist", [False, True])
def test_a_user_s_jobs_have_their_share_on_disk_or_not(persist: bool) -> None:
    world = of_two_users(persist=persist)
    greedy, neighbour = with_queue(world, "mine", user="mal"), with_queue(world, "theirs", user="ann")
    many = 5 * MANY if persist else MANY  # on disk bodies take no memory, and the jobs do
    found = [statuses(greedy.produce_with("mine", BODY, delay_ms=1000))[0] for _ in range(many)]
    assert (found.count(Status.OK) > (200_000 + SLACK_BYTES) / len(BODY)) is persist
    assert set(found) == {Status.OK, Status.QUEUE_FULL}
    assert statuses(neighbour.produce_with("theirs", BODY)) == [Status.OK]
    world.advance(2)
    for _ in range(found.count(Status.OK)):
        for held, _ in greedy.consume("mine"):
            greedy.ack(held)
    assert statuses(greedy.produce_with("mine", BODY)) == [Status.OK]


@pytest.mark.parametrize("ends", ["ack", "nack", "lose"])
def test_what_a_user_s_consumers_hold_has_its_share(ends: str) -> None:
    world = of_two_users()
    one, two = with_queue(world, user="mal"), world.connect(user="mal")
    neighbour = world.connect(user="ann")
    held: list[int] = []
    refused = False
    shares = world.engine.unacked.shares
    for number in range(130):
        assert statuses(neighbour.produce("orders", BODY)) == [Status.OK]
        consumer = (one, two)[number % 2]
        frames = consumer.consume("orders")
        if refused := not frames:
            break
        held += [frames[0][0]] if consumer is one else []
    assert refused
    assert 100_000 < shares.of("mal") < 102_000
    assert len(neighbour.consume("orders")) == 1
    if ends == "lose":
        one.lose()
    elif ends == "ack":
        assert set(statuses(one.ack(*held))) == {Status.OK}
    else:
        for each in held:
            one.nack(each)
    assert shares.of("mal") < 60_000
    assert statuses(neighbour.produce("orders", BODY)) == [Status.OK]
    assert len(two.consume("orders")) == 1
    one.lose()
    two.lose()
    assert shares.of("mal") == 0


def test_queues_end_in_a_refusal_and_are_all_there_after_a_restart_whatever_the_budget_says() -> None:
    world = World(budget=Account("process", 50_000))
    peer = world.connect()
    found = [statuses(peer.create(f"queue-{number}"))[0] for number in range(10)]
    made = found.count(Status.OK)
    assert 0 < made < 10
    assert found == [Status.OK] * made + [Status.INTERNAL] * (10 - made)
    assert statuses(peer.produce("queue-0", b"x")) == [Status.OK]
    assert statuses(peer.delete("queue-1")) == [Status.OK]
    assert statuses(peer.create("queue-again")) == [Status.OK]
    world.budget.limit_bytes = 1
    world.kill()
    assert len(world.depths()) == made
    assert [body for _, body in world.connect().consume("queue-0")] == [b"x"]


def test_all_that_was_taken_is_given_back() -> None:
    for settings in (MEMORY, DmsSettings()):
        world = World(settings, budget=Account("process", 100_000_000))
        peer, other = with_queue(world), world.connect()
        peer.create("gone")
        for name in ("orders", "gone"):
            peer.produce(name, *[BODY, b"short", b"another"] * 20)
        assert used(world) > 40_000
        held = peer.consume("orders", 20) + peer.consume("orders")
        peer.consume("gone", 20)
        also = other.consume("gone", 20)
        peer.nack(held[3][0], held[7][0])
        assert statuses(peer.ack(held[0][0])) == [Status.OK]
        assert statuses(peer.delete("gone")) == [Status.OK]
        assert world.engine.memory.held_bytes > 20_000, "what is held of it is still there"
        other.nack(also[0][0])
        other.ack(also[1][0])
        other.lose()
        peer.lose()
        assert world.engine.memory.held_bytes == 0
        last = world.connect()
        while frames := last.consume("orders", 7):
            last.ack(*(each for each, _ in frames))
        last.lose()
        last = world.connect()
        last.produce("orders", b"one", b"two")
        world.call("purge", queue="orders")
        assert used(world) == 0
        assert statuses(last.delete("orders")) == [Status.OK]
        assert world.budget.used_bytes == 0


def test_a_start_serves_all_that_is_durable_under_smaller_limits() -> None:
    world = World()
    peer = world.connect()
    for name in ("a", "b", "c"):
        assert statuses(peer.create(name, b'{"depth": 100}')) == [Status.OK]
        assert statuses(peer.produce(name, b"one", b"two", b"three")) == [Status.OK] * 3
    assert len(peer.consume("a", 2)) == 2
    world.settings = DmsSettings(
        queues_max=1, depth=2, depth_max=2, clients_max=1, credits_max=1, hot_bytes=0
    )
    world.kill()
    assert world.depths() == {"a": 3, "b": 3, "c": 3}
    peer = world.connect()
    assert statuses(peer.create("d")) == [Status.INTERNAL]
    for name in ("a", "b", "c"):
        found = [peer.consume(name)[0] for _ in range(3)]
        assert [body for _, body in found] == [b"one", b"two", b"three"]
        peer.ack(*(held for held, _ in found))
        assert statuses(peer.delete(name)) == [Status.OK]
    assert statuses(peer.create("d")) == [Status.OK]


def test_consumes_that_wait_end_in_a_refusal_and_who_goes_makes_room() -> None:
    world = World(MEMORY, budget=Account("process", 4 * 3 * CREDITS_STEP * CREDIT_BYTES))
    peer, neighbour, third = with_queue(world), with_queue(world, "other"), world.connect()
    account = world.engine.credits
    refused = [
        status for _ in range(1000) for status in statuses(peer.ask(Type.CONSUME, pack_name("orders")))
    ]
    waiting = CREDITS_FREE + 3 * CREDITS_STEP
    assert refused == [Status.INTERNAL] * (1000 - waiting)
    assert account.refused + world.budget.refused == len(refused)
    assert account.used_bytes == 3 * CREDITS_STEP * CREDIT_BYTES
    assert neighbour.consume("other", CREDITS_FREE) == []
    third.send(pack(Type.PRODUCE, 1, pack_name("other") + b"x"))
    assert [body for _, body in deliveries(neighbour.take())] == [b"x"]
    peer.lose()
    assert account.used_bytes == 0
    assert neighbour.consume("other", CREDITS_STEP) == []
    assert account.used_bytes == CREDITS_STEP * CREDIT_BYTES
    neighbour.lose()
    assert account.used_bytes == 0
