"""What takes long goes in turns: others are served in between, and what is there then is as promised."""

from typing import Any

import pytest

from dms import engine, requests, wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from shared.access import ANONYMOUS, Access, Rule, User
from shared.queues import sifting
from shared.task_turns import TaskTurn
from tests.dms.world import MEMORY, Peer, World, deliveries, statuses, with_queue
from tests.support.turns import short_turns

COUNT = 40


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 2, 3)


def holding(world: World) -> tuple[Peer, list[bytes]]:
    """A connection that holds all messages of `orders`."""
    peer = world.connect()
    peer.create("orders")
    peer.create("other")
    bodies = [b"%03d" % number for number in range(COUNT)]
    peer.produce("orders", *bodies)
    assert [peer.consume("orders")[0][1] for _ in range(COUNT)] == bodies
    return peer, bodies


def returned(world: World) -> list[bytes]:
    """All messages of `orders` have come back from a connection that was lost."""
    peer, bodies = holding(world)
    peer.lose()
    world.advance(1)
    return bodies


def taken(world: World) -> list[bytes]:
    """All that `orders` delivers to a new consumer, in as many turns as that takes."""
    peer = world.connect()
    came = peer.consume("orders", COUNT + 1)
    world.advance(0.5)
    return [body for _, body in came + deliveries(peer.take())]


def is_served(world: World) -> None:
    """Somebody with another queue, at once."""
    peer = world.connect()
    assert statuses(peer.produce("other", b"x")) == [Status.OK]
    ((held, body),) = peer.consume("other")
    assert body == b"x"
    assert statuses(peer.ack(held)) == [Status.OK]


@pytest.mark.parametrize("settings", [MEMORY, DmsSettings()], ids=["memory", "disk"])
def test_what_a_lost_connection_held_comes_back_in_turns_and_in_order(settings: DmsSettings) -> None:
    world = World(settings)
    peer, bodies = holding(world)
    waiting = world.connect()
    assert waiting.consume("orders", COUNT // 2) == []
    peer.lose()
    queue = world.engine.queues[b"orders"]
    assert 0 < queue.held < COUNT, "the first turn is over, and there is more to do"
    assert statuses(waiting.produce("orders", b"new")) == [Status.OK]
    assert world.depths()["orders"] == COUNT + 1
    is_served(world)
    assert waiting.take() == []
    world.advance(1)
    assert queue.held == COUNT // 2
    assert [body for _, body in deliveries(waiting.take())] == bodies[: COUNT // 2]
    assert taken(world) == [*bodies[COUNT // 2 :], b"new"]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_crash_between_two_turns_loses_nothing(snapshot: bool) -> None:
    world = World()
    peer, bodies = holding(world)
    peer.lose()
    queue = world.engine.queues[b"orders"]
    assert 0 < queue.held < COUNT
    if snapshot:
        assert queue.log is not None
        queue.log.snapshot()
        world.settle()
    rows = world.call("peek", queue="orders", limit=COUNT)
    assert len(rows) == COUNT - queue.held
    world.kill()
    assert world.depths() == {"orders": COUNT, "other": 0}
    assert taken(world) == bodies


def test_a_queue_that_is_deleted_between_two_turns_takes_nothing_back() -> None:
    world = World()
    peer, _ = holding(world)
    peer.lose()
    other = world.connect()
    assert statuses(other.delete("orders")) == [Status.OK]
    assert statuses(other.create("orders")) == [Status.OK]
    world.advance(1)
    assert world.depths()["orders"] == 0
    assert world.engine.returning == {}
    assert statuses(other.produce("orders", b"new")) == [Status.OK]
    assert [body for _, body in other.consume("orders")] == [b"new"]


def test_many_waits_end_in_turns_with_their_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, items=2)
    world = World(MEMORY)
    peer, _ = holding(world)
    waiting = world.connect()
    for _ in range(COUNT):
        assert waiting.consume("other") == []
    assert statuses(peer.delete("other")) == [Status.OK]
    first = waiting.take()
    assert 0 < len(first) < COUNT
    assert statuses(peer.create("other")) == [Status.OK]
    is_served(world)
    world.advance(1)
    assert statuses(first + waiting.take()) == [Status.QUEUE_NOT_FOUND] * COUNT


@pytest.mark.parametrize("settings", [MEMORY, DmsSettings()], ids=["memory", "always"])
def test_a_queue_that_is_deleted_during_its_redrive_ends_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch, settings: DmsSettings
) -> None:
    monkeypatch.setattr(sifting, "ITEMS", 4)
    short_turns(monkeypatch, 1)
    world = World(settings)
    peer = world.connect()
    peer.create("orders", b'{"max_deliveries": 1, "dead_letter": "other"}')
    peer.create("other")
    peer.produce("orders", *(b"%d" % number for number in range(10)))
    for held, _ in peer.consume("orders", 10):
        peer.nack(held)

    async def pause(*_: Any) -> None:
        peer.delete("other")

    monkeypatch.setattr(TaskTurn, "others", pause)
    assert world.call("redrive", queue="other")["moved"] == 4
    world.settle()
    assert world.depths() == {"orders": 4}


def test_a_move_looks_at_the_clock_within_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    short_turns(monkeypatch, 1)
    world = World(MEMORY)
    peer = with_queue(world)
    peer.create("other")
    peer.produce("orders", *[b"x"] * 100)
    moved: list[int] = []

    async def others(_: TaskTurn) -> None:
        moved.append(world.depths()["other"])

    monkeypatch.setattr(TaskTurn, "others", others)
    assert world.call("move", queue="orders", to="other")["moved"] == 100
    assert moved[:4] == [32, 64, 96, 100]


def test_a_connection_says_what_passed_on_it_what_it_holds_and_what_it_waits_for() -> None:
    world = World()
    peer, _ = holding(world)
    assert peer.session.traffic == {
        "messages_in": COUNT,
        "messages_out": COUNT,
        "held": COUNT,
        "client": "test",
    }
    peer.consume("orders", 3)
    assert peer.session.waits_for == ["3 messages of orders"]
    peer.produce("orders", b"x")
    assert peer.session.traffic == {
        "messages_in": COUNT + 1,
        "messages_out": COUNT + 1,
        "held": COUNT + 1,
        "client": "test",
    }
    assert peer.session.waits_for == ["2 messages of orders"]


def under_rules(peer: Peer, *rules: str) -> None:
    """The connection's user may do this, and no more."""
    access = Access({"ann": User("ann", tuple(map(Rule.parse, rules)))})
    peer.session.guard, peer.session.user = access.guard("dms"), "ann"


def test_a_short_listing_under_rules_comes_behind_the_answers_of_the_same_read() -> None:
    world = World(MEMORY)
    peer = world.connect()
    peer.create("orders")
    under_rules(peer, "dms:*:*")
    peer.send(wire.pack(Type.CREATE_QUEUE, 1, wire.pack_name("other")) + wire.pack(Type.LIST_QUEUES, 2))
    assert [frame[0] for frame in peer.take()] == [Type.CREATE_QUEUE_OK, Type.LIST_QUEUES_OK]


def many_queues(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Peer]:
    """40 queues, and a peer that may see four of them."""
    short_turns(monkeypatch, 1, 3)
    world = World(MEMORY)
    peer = world.connect()
    for number in range(COUNT):
        peer.create(f"q{number:02}")
    under_rules(peer, "dms:write:q?5", "dms:manage:q05")
    return world, peer


def test_a_listing_under_rules_goes_in_turns_and_is_answered_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, peer = many_queues(monkeypatch)
    lists = [wire.pack(Type.LIST_QUEUES, number) for number in (1, 2)]
    after = wire.pack(Type.LIST_QUEUES, 4, wire.pack_name("q15"))
    peer.session.receive(b"".join((*lists, wire.pack(Type.DELETE_QUEUE, 3, wire.pack_name("q05")), after)))
    assert peer.connection.taken() == b""
    assert not peer.connection.reading
    assert peer.session.waits_for == ["a listing"]
    assert len(world.engine.queues) == COUNT, "what comes behind a listing waits"
    other = world.connect()
    assert statuses(other.produce("q00", b"x")) == [Status.OK]
    world.advance(0.1)
    frames = peer.take()
    assert [frame[3] for frame in frames] == [1, 2, 3, 4]
    names = ["q05", "q15", "q25", "q35"]
    for frame in frames[:2]:
        assert wire.unpack_list(frame[4]) == (4, [(name, 0) for name in names])
    assert wire.unpack_list(frames[3][4]) == (3, [("q25", 0), ("q35", 0)])
    assert peer.connection.reading


def test_what_a_user_may_see_is_listed_wherever_it_sorts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LISTED_MAX", 2)
    world, peer = many_queues(monkeypatch)
    under_rules(peer, "dms:read:q3[8-9]", "dms:read:q38", "dms:read:q39")
    asked = peer.ask(Type.LIST_QUEUES)
    world.advance(0.1)
    total, entries = wire.unpack_list([*asked, *peer.take()][0][4])
    assert (total, [name for name, _ in entries]) == (2, ["q38", "q39"])


def test_consumes_that_wait_end_with_their_right_and_what_is_held_may_be_acknowledged() -> None:
    world = World()
    access = Access()
    peer, bodies = holding(world)
    peer.session.identity.admit(access.guard("dms"))
    assert peer.consume("orders", 3) == []
    access.replace({ANONYMOUS: User(ANONYMOUS, (Rule.parse("dms:*:other"),))})
    assert statuses(peer.take()) == [Status.DENIED] * 3
    queue = world.engine.queues[b"orders"]
    assert queue.held == COUNT == len(bodies)
    acked = next(iter(peer.session.consumer.unacked.runs))
    assert statuses(peer.ack(int.from_bytes(acked))) == [Status.OK]
    peer.lose()
    world.advance(1)
    assert (queue.held, queue.stops, queue.depth) == (0, 0, COUNT - 1)
    assert len(taken(world)) == COUNT - 1


def test_where_one_queue_takes_nothing_back_the_others_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(MEMORY)
    peer, bodies = holding(world)
    peer.produce("other", b"x")
    assert len(peer.consume("other")) == 1
    requeue = engine.Queue.requeue

    def fails(queue: engine.Queue, *arguments: Any, **named: Any) -> None:
        if queue.text == "other":
            raise RuntimeError("a bug")
        requeue(queue, *arguments, **named)

    monkeypatch.setattr(engine.Queue, "requeue", fails)
    peer.lose()
    world.advance(1)
    assert "long work crashed" in capsys.readouterr().out
    assert world.engine.queues[b"other"].stops == 0
    assert taken(world) == bodies


def test_many_who_wait_are_served_in_turns_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 1, 1)
    world = World(MEMORY)
    peer = world.connect()
    peer.create("orders")
    peer.create("other")
    waiting = [world.connect() for _ in range(10)]
    for each in waiting:
        assert each.consume("orders") == []
    peer.produce("orders", *(b"%d" % number for number in range(8)))
    assert world.engine.queues[b"orders"].held < 8, "the first turn is over, and there is more to do"
    is_served(world)
    late = world.connect()
    assert late.consume("orders") == []
    peer.produce("orders", b"8", b"9", b"late")
    world.advance(1)
    expected = [b"%d" % number for number in range(10)]
    assert [body for each in waiting for _, body in deliveries(each.take())] == expected
    assert [body for _, body in deliveries(late.take())] == [b"late"]
