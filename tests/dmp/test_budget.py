"""What clients make grow is taken from the budget. Without room they are refused or wait; others go on."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import base, commands

from dmp import bodies as dmp_bodies
from dmp.amqp.transactions import PUBLISH_BYTES
from dmp.amqp.wire import Direct, encode
from dmp.memory import LEAST_BYTES
from dmp.settings import DmpSettings
from shared.budget import CACHES_STEP_BYTES, Account
from shared.queues.core import SLACK_BYTES
from tests.dmp.amqp_peer import Peer, bodies, closed, publish
from tests.dmp.peers import Application, packed
from tests.dmp.world import PERSISTENT, World
from tests.support.connections import MemoryConnection

C = commands
ROOM = 200_000
"""Bytes of the budget: a hundred of most things."""
NAME = "n" * 100


def greedy(make: Callable[[int], list[tuple[base.Frame, int]]]) -> Callable[[Peer], None]:
    """One who sends what `make` says, again and again, until it is refused."""

    def go_on(peer: Peer) -> None:
        for number in range(1000):
            peer.send(b"".join(commands_bytes(make(number))))
            if number % 50 == 0:
                peer.world.settle()

    return go_on


def commands_bytes(methods: list[tuple[base.Frame, int]]) -> list[bytes]:
    return [encode(method, channel) for method, channel in methods]


def header_binding(number: int) -> base.Frame:
    arguments: dict[str, Any] = {f"{number}-{each}": None for each in range(100)}
    return C.Queue.Bind(0, "served", "amq.headers", "", True, arguments)


ATTACKS: dict[str, Callable[[int], list[tuple[base.Frame, int]]]] = {
    "exchanges": lambda number: [(C.Exchange.Declare(0, f"{NAME}{number}", nowait=True), 1)],
    "queues": lambda number: [(C.Queue.Declare(0, f"{NAME}{number}", nowait=True), 1)],
    "queues ": lambda number: [
        (C.Queue.Declare(0, f"{number}", nowait=True, arguments={"x-max-priority": 255}), 1)
    ],
    "bindings": lambda number: [(C.Queue.Bind(0, "served", "amq.topic", f"{NAME}{number}", nowait=True), 1)],
    "bindings ": lambda number: [(header_binding(number), 1)],
    "consumers": lambda number: [(C.Basic.Consume(0, "served", f"{NAME}{number}", nowait=True), 1)],
    "channels": lambda number: [(C.Channel.Open(), 2 + number)],
    "leases": lambda number: [(Direct.Put("amq.direct"), 1)],
}


def _account_of(attack: str) -> str:
    return "connections" if attack in ("consumers", "channels", "leases") else "names"


@pytest.fixture
async def crowded() -> World:
    """A broker with little room, and a queue that somebody uses."""
    world = await World.open(budget=Account("dmp", ROOM))
    world.queue(b"served")
    return world


@pytest.mark.parametrize("what", ATTACKS)
async def test_who_takes_all_is_refused_a_neighbour_is_served_and_the_end_gives_all_back(
    crowded: World, what: str
) -> None:
    budget = crowded.budget
    friend = Peer(crowded).login()
    before = budget.used_bytes
    peer = Peer(crowded).login()
    greedy(ATTACKS[what])(peer)
    crowded.settle()
    assert closed(peer)[1] == (506 if what == "channels" else 406)
    assert budget.used_bytes <= ROOM
    assert budget.account(_account_of(what)).refused == 1
    friend.publish("", "served", b"still")
    assert friend.ask_get("served") == b"still"
    peer.lose()
    crowded.advance(61)  # leases lapse
    for name in [name for name in crowded.broker.queues if name != b"served"]:
        crowded.topology.delete_queue(crowded.broker.queues[name])
    for name in [name for name in crowded.broker.exchanges if name[:3] in (b"nnn",)]:
        crowded.topology.delete_exchange(name)
    if what.startswith("bindings"):
        queue = crowded.broker.queues[b"served"]
        crowded.topology.delete_queue(queue)
        crowded.advance(1)
        crowded.queue(b"served")
    assert budget.used_bytes == before


@pytest.mark.parametrize("what", ["exchanges", "queues", "queues ", "bindings", "bindings "])
async def test_what_is_charged_is_about_what_it_takes_or_more(world: World, what: str) -> None:
    world.queue(b"served")
    peer = Peer(world).login()
    sent = [b"".join(commands_bytes(ATTACKS[what](number))) for number in range(160)]
    for data in sent[:10]:
        peer.send(data)
    account = world.budget.account(_account_of(what))
    gc.collect()
    tracemalloc.start()
    before, charged = tracemalloc.get_traced_memory()[0], account.used_bytes
    for data in sent[10:]:
        peer.send(data)
    gc.collect()
    peer.connection.taken()
    world.settle()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert account.used_bytes - charged > 0.8 * taken, "dicts grow in leaps, and few are made here"


async def test_a_transaction_that_holds_too_much_is_refused_and_gives_all_back(crowded: World) -> None:
    budget = crowded.budget
    before = budget.used_bytes
    peer = Peer(crowded).login()
    peer.ask(C.Tx.Select())
    for number in range(300):
        peer.publish("", "served", b"x", properties=b"\x80\0\x05%05d" % number)
    assert closed(peer) == ("Channel.Close", 406)
    assert budget.account("connections").used_bytes == 0
    peer.lose()
    assert budget.used_bytes == before


async def test_a_user_s_transactions_have_their_share_of_memory(world: World) -> None:
    world.queue(b"served")
    world.budget.percent_of = lambda user: 50
    account = world.budget.account("connections")
    greedy, other = Peer(world).login(), Peer(world).login()
    other.session.user = "ann"
    account.limit_bytes = 2 * account.used_bytes + 10 * PUBLISH_BYTES
    before = account.shares.of(greedy.session.user)
    for peer in (greedy, other):
        peer.ask(C.Tx.Select())
        for number in range(5):
            peer.publish("", "served", b"x", properties=b"\x80\0\x05%05d" % number)
        if peer is greedy:
            peer.publish("", "served", b"x", properties=b"\x80\0\x05again")
            assert closed(peer) == ("Channel.Close", 406)
    assert account.shares.of(greedy.session.user) < before
    assert account.shares.of("ann") == 5 * PUBLISH_BYTES


async def test_large_bodies_without_end_are_refused() -> None:
    budget = Account("dmp", 20_000)
    world = await World.open(DmpSettings(message_bytes_max=100), budget=budget)
    before = budget.used_bytes
    peer = Peer(world).login()
    for number in range(1, 8):
        peer.method(C.Channel.Open(), number + 1)
        peer.send(publish("", "q", bytes(150), channel=number + 1, part=50)[:-116])
    assert closed(peer) == ("Connection.Close", 506)
    peer.lose()
    assert budget.used_bytes == before
    assert world.broker.bodies.begun_bytes == 0


async def test_what_waits_is_full_where_the_budget_is_and_publishers_wait_until_there_is_room() -> None:
    budget = Account("process", 3 * LEAST_BYTES)
    world = await World.open(budget=budget)
    world.queue(b"served")
    peer = Peer(world).login(capabilities={"connection.blocked": True})
    for _ in range(40):
        peer.publish("", "served", bytes(100_000))
    blocked = [value for _, value in peer.frames() if value.name == "Connection.Blocked"]
    assert [method.reason for method in blocked] == [
        f"messages may hold {3 * LEAST_BYTES * 3 // 4} bytes, and 65536 more do not fit"
    ]
    assert not peer.connection.reading
    assert budget.used_bytes < 2.5 * LEAST_BYTES
    friend = Peer(world).login()
    friend.ask_get("served")
    gc.collect()
    there = [id(each) for each in gc.get_objects() if isinstance(each, MemoryConnection)]
    gone = Peer(world).login()
    gone.publish("", "served", bytes(100_000))
    gone.lose()
    del gone
    gc.collect()
    still = [id(each) for each in gc.get_objects() if isinstance(each, MemoryConnection)]
    assert still == there, "who waited and has gone is kept by nobody"
    while friend.world.broker.queues[b"served"].depth > 5:
        friend.ask_get("served")
        peer.pump()
    assert peer.connection.reading
    assert "Connection.Unblocked" in peer.names()


async def test_dead_letters_that_wait_for_their_slice_hold_publishers_back_until_they_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Account("process", 3 * LEAST_BYTES)
    world = await World.open(budget=budget)
    world.queue(b"served", dead_letter_exchange=b"amq.fanout")
    peer, consumer = Peer(world).login(), Peer(world).login()
    while peer.connection.reading:
        peer.publish("", "served", bytes(6000))
    count = world.broker.queues[b"served"].depth
    consumer.method(C.Basic.Consume(0, "served", "tag"))
    assert len(bodies(consumer.frames())) == count > 320
    world.clock.step = 1.0
    consumer.method(C.Basic.Nack(0, multiple=True, requeue=False))
    waiting = count - world.broker.counts.dead_letters_lost
    assert waiting >= count - 32
    assert waiting * 6000 < world.broker.memory.total_bytes
    assert budget.account("messages").used_bytes > waiting * 6000 - SLACK_BYTES
    peer.pump()
    assert not peer.connection.reading
    world.finish_work()
    peer.pump()
    assert peer.connection.reading
    assert world.broker.counts.dead_letters_lost == count
    assert world.broker.memory.total_bytes == budget.account("messages").used_bytes == 0


@pytest.mark.parametrize("waits_for", ["messages that come back", "the disk"])
async def test_who_has_gone_while_he_waited_is_kept_by_nobody(
    waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World.open(DmpSettings(message_bytes_max=100))
    world.queue(b"served").await_returns()
    monkeypatch.setattr(dmp_bodies, "UNWRITTEN_BYTES_MAX", -1)

    def connections() -> int:
        gc.collect()
        return sum(isinstance(each, MemoryConnection) for each in gc.get_objects())

    before = connections()
    for _ in range(3):
        peer = Peer(world).login()
        if waits_for == "messages that come back":
            peer.method(C.Basic.Get(0, "served"))
        else:
            peer.send(publish("", "served", bytes(150), part=50)[:-20])
        assert not peer.connection.reading
        peer.lose()
    del peer
    assert connections() == before


async def test_messages_pass_whatever_else_fills_the_budget() -> None:
    budget = Account("process", 10_000)
    world = await World.open(budget=budget)
    world.queue(b"served")
    budget.account("others").charge(20_000)
    peer = Peer(world).login()
    for number in range(50):
        peer.publish("", "served", b"%d" % number)
        assert peer.ask_get("served") == b"%d" % number


async def test_confirms_and_deliveries_count_with_messages_and_give_all_back(world: World) -> None:
    budget = world.budget
    world.queue(b"q", durable=True)
    before = budget.used_bytes
    peer = Peer(world).login()
    peer.ask(C.Confirm.Select())
    peer.method(C.Basic.Consume(0, "q", "tag"))
    for number in range(500):
        peer.publish("", "q", b"%d" % number, properties=PERSISTENT)
        peer.publish("", "nobody", b"%d" % number)
    assert world.broker.memory.total_bytes > 500 * (200 + 2 * 400)
    world.settle()
    assert len(bodies(peer.frames())) == 500
    peer.lose()
    world.settle()
    world.advance(1)
    assert world.broker.queues[b"q"].purge() == 500
    assert world.broker.memory.total_bytes == 0
    assert budget.used_bytes == before


async def test_a_start_serves_all_that_is_durable_whatever_the_budget_says() -> None:
    world = await World.open()
    peer = Peer(world).login()
    for number in range(20):
        name = f"{number}"
        peer.ask(C.Exchange.Declare(0, name, "headers", durable=True))
        peer.ask(C.Queue.Declare(0, name, durable=True))
        peer.ask(C.Queue.Bind(0, name, name, name, arguments={"a": number}))
        peer.publish("", name, b"kept", properties=PERSISTENT)
    world.settle()
    budget = Account("process", 100)
    again = await world.again(budget)
    assert budget.used_bytes > 20 * 5000
    peer = Peer(again)
    for number in range(20):
        assert again.broker.queues[b"%d" % number].depth == 1
        assert len(again.broker.exchanges[b"%d" % number].bindings) == 1
        again.topology.delete_queue(again.broker.queues[b"%d" % number])
        again.topology.delete_exchange(b"%d" % number)
    again.advance(1)
    again.settle()
    assert budget.used_bytes == 0


async def test_caches_are_cleared_where_the_budget_has_no_room_and_end_with_their_owners() -> None:
    budget = Account("dmp", 20 * ROOM)
    world = await World.open(budget=budget)
    world.queue(b"served")
    caches = budget.account("caches")
    application = Application(world)
    before = budget.used_bytes
    application.exchange(b"quotes")
    application.queue(b"feed", b"quotes")
    peer, sink = Peer(world).login(), application.sink(b"quotes")
    peer.method(C.Basic.Consume(0, "served", "tag", no_ack=True))
    most = 0
    for number in range(1000):
        properties = b"\x80\0\xc8%0200d" % number
        peer.publish("", "served", b"x", properties=properties)
        peer.publish("quotes", f"{number}", b"x")
        sink.say(packed(b"x", key=b"%d" % number, properties=properties))
        most = max(most, caches.used_bytes)
    assert len(bodies(peer.frames())) == 1000
    assert 5 * ROOM < most < 10 * ROOM + CACHES_STEP_BYTES
    budget.charge(20 * ROOM)
    for number in range(100):
        properties = b"\x80\0\xc8%0200d" % -number
        peer.publish("", "served", b"x", properties=properties)
        sink.say(packed(b"x", key=b"served", properties=properties))
    peer.publish("quotes", "another", b"x")
    assert world.broker.accounts.caches.held_bytes < 2 * ROOM
    budget.give(20 * ROOM)
    peer.lose()
    sink.close()
    assert 0 < world.broker.accounts.caches.held_bytes < 128 << 10, "the exchange's"
    world.topology.delete_exchange(b"quotes")
    world.topology.delete_queue(world.broker.queues[b"feed"])
    world.advance(1)
    assert world.broker.accounts.caches.held_bytes == caches.used_bytes == 0
    assert world.broker.memory.total_bytes == 0
    assert budget.used_bytes == before
