"""Memory is full: nothing comes in, by whatever way, from connections that hold nothing; all others go on."""

from collections.abc import Callable
from itertools import product

import pytest
from pamqp import commands

from dmp.amqp.wire import encode
from dmp.pacing import STOP_MEMORY
from dmp.settings import DmpSettings
from tests.dmp.amqp_peer import Peer, closed, login, publish
from tests.dmp.world import PERSISTENT, World

C = commands
LIMIT = 1 << 20
BODY = 100_000
"""Of each message here; a tenth of the limit is more than one, and less than two."""
PUBLISHERS = 5


async def world_with() -> World:
    return await World.open(DmpSettings(memory_bytes_max=LIMIT))


def fill(world: World, queue: str = "full") -> None:
    """By those who know nothing of the limit, as bridges in the middle of a batch."""
    world.queue(queue.encode())
    while not world.broker.memory.full:
        world.publish(b"", queue.encode(), bytes(BODY))


def drain_one(world: World, queue: bytes = b"full") -> None:
    found = world.broker.queues[queue].get(True)
    assert found is not None


def plainly(world: World, peer: Peer) -> bytes:
    return publish("", "q", bytes(BODY))


def in_pieces(world: World, peer: Peer) -> bytes:
    return publish("", "q", bytes(BODY), part=1000)


def persistently(world: World, peer: Peer) -> bytes:
    return publish("", "q", bytes(BODY), properties=PERSISTENT)


def by_what_is_known(world: World, peer: Peer) -> bytes:
    """The next one of the same kind is in a run."""
    for _ in range(2):
        peer.send(plainly(world, peer))
    world.settle()
    assert peer.names()
    world.broker.queues[b"q"].purge()
    return plainly(world, peer)


WAYS: tuple[Callable[[World, Peer], bytes], ...] = (
    plainly,
    in_pieces,
    persistently,
)


def publishers(
    world: World, way: Callable[[World, Peer], bytes], mode: C.Confirm.Select | C.Tx.Select
) -> list[tuple[Peer, bytes]]:
    found = []
    for _ in range(PUBLISHERS):
        peer = Peer(world).login(capabilities={"connection.blocked": True})
        peer.ask(mode)
        found.append((peer, way(world, peer)))
    return found


def all_are_answered(world: World, peers: list[Peer], answer: str) -> None:
    """Once somebody takes what fills memory, and it never holds more than the limit and one body."""
    said: dict[Peer, list[str]] = {peer: [] for peer in peers}
    for _ in range(30):
        if world.broker.queues[b"full"].depth:
            drain_one(world)
        elif world.broker.queues[b"q"].depth:
            drain_one(world, b"q")
        for _ in range(3):
            for peer in peers:
                said[peer] += peer.names()
            world.advance(0)
            world.settle()
            assert world.broker.memory.total_bytes < LIMIT + BODY + 20_000
        if all(answer in names for names in said.values()):
            break
    for names in said.values():
        assert names.count(answer) == 1
        rest = [name for name in names if name != answer]
        assert rest == ["Connection.Unblocked", "Connection.Blocked"] * (len(rest) // 2) + rest[-1:] * (
            len(rest) % 2
        )


@pytest.mark.parametrize(
    ("way", "transaction"), [*product((*WAYS, by_what_is_known), (False,)), *product(WAYS, (True,))]
)
async def test_a_publish_of_a_connection_that_holds_nothing_waits(
    way: Callable[[World, Peer], bytes], transaction: bool
) -> None:
    world = await world_with()
    world.queue(b"q", durable=True)
    mode, answer = (C.Tx.Select(), "Tx.CommitOk") if transaction else (C.Confirm.Select(), "Basic.Ack")
    peers = publishers(world, way, mode)
    fill(world)
    held = world.broker.memory.total_bytes
    published = world.broker.counts.published
    for peer, data in peers:
        peer.send(data + encode(C.Tx.Commit(), 1) * transaction)
        world.settle()
        assert peer.names() == ["Connection.Blocked"]
        assert peer.session.stopped & STOP_MEMORY
    assert world.broker.memory.total_bytes == held
    assert world.broker.counts.published == published
    all_are_answered(world, [peer for peer, _ in peers], answer)
    assert world.broker.counts.published == published + PUBLISHERS


@pytest.mark.parametrize("at", [30, 50, 80, 20_000, BODY])
async def test_what_has_begun_before_waits_too(at: int) -> None:
    """`at`: so many bytes of the publish were there."""
    world = await world_with()
    world.queue(b"q")
    peers = publishers(world, in_pieces, C.Confirm.Select())
    for peer, data in peers:
        peer.send(data[:at])
        assert peer.names() == []
    fill(world)
    held = world.broker.memory.total_bytes
    for peer, data in peers:
        peer.send(data[at:])
        assert peer.names() == ["Connection.Blocked"]
    assert world.broker.memory.total_bytes == held
    all_are_answered(world, [peer for peer, _ in peers], "Basic.Ack")


async def test_a_large_message_in_pieces_waits_before_its_body_is_gathered() -> None:
    world = await world_with()
    world.queue(b"q")
    fill(world)
    peer = Peer(world).login()
    data = publish("", "q", bytes((16 << 20) - 1), part=100_000)
    reads = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    peer.send(*reads)
    assert peer.connection.held_bytes <= 65_536
    assert world.broker.queues[b"q"].depth == 0
    world.broker.queues[b"full"].purge()
    peer.frames()
    assert world.broker.queues[b"q"].depth == 1


async def test_a_queue_that_rejects_some_of_a_run_lets_no_more_in_behind_it() -> None:
    world = await world_with()
    world.queue(b"q")
    world.queue(b"rejecting", messages_max=5, rejects=True)
    peer = Peer(world).login()
    peer.ask(C.Confirm.Select())
    small, run = publish("", "q", b"x"), publish("", "rejecting", bytes(BODY))
    peer.send(small, small, run)
    assert peer.names() == ["Basic.Ack"] * 3
    world.broker.queues[b"rejecting"].purge()
    while world.broker.memory.total_bytes < LIMIT - 2 * BODY:
        world.publish(b"", b"full", bytes(BODY)) if b"full" in world.broker.queues else world.queue(b"full")
    peer.send(run * 6 + small)
    assert peer.names() == ["Basic.Ack", "Basic.Nack"]
    assert peer.session.stopped & STOP_MEMORY
    assert world.broker.queues[b"q"].depth == 2


async def test_all_others_go_on_while_publishers_wait() -> None:
    world = await world_with()
    fill(world)
    waiting = Peer(world).login()
    waiting.publish("", "full", b"x")
    other = Peer(world).login()
    assert other.ask(C.Queue.Declare(0, "mine")).name == "Queue.DeclareOk"
    other.method(C.Basic.Get(0, "full"))
    assert "Basic.GetOk" in other.names()
    other.method(C.Basic.Nack(1, requeue=True))
    other.method(C.Basic.Consume(0, "full", no_ack=True))
    assert other.names().count("Basic.Deliver") > 10
    assert waiting.frames() == []
    assert not waiting.session.stopped
    assert other.names() == ["Basic.Deliver", "ContentHeader", "ContentBody"]


async def test_one_that_waits_is_not_late_and_lets_go_when_it_ends() -> None:
    world = await world_with()
    fill(world)

    def waits(heartbeat: int = 0) -> Peer:
        peer = Peer(world)
        peer.send(login(None, 0, heartbeat) + encode(C.Channel.Open(), 1))
        peer.send(publish("", "full", bytes(1000)))
        peer.frames()
        assert peer.session.stopped & STOP_MEMORY
        return peer

    patient, lost, kicked, stopped = waits(10), waits(), waits(), waits()
    patient.advance(200)
    assert not patient.closed
    assert "Heartbeat" in patient.names()
    lost.lose()
    kicked.session.kick("enough")
    assert closed(kicked) == ("Connection.Close", 320)
    kicked.method(C.Connection.CloseOk(), 0)
    kicked.pump()
    assert kicked.closed
    stopped.session.drain()
    assert closed(stopped) == ("Connection.Close", 320)
    patient.lose()
    stopped.lose()
    assert world.broker.counts.connections == 0
    assert world.broker.queues[b"full"].depth == 11
    world.broker.queues[b"full"].purge()
    assert world.broker.memory.total_bytes == 0


@pytest.mark.parametrize("confirms", [False, True])
async def test_one_that_waits_is_read_when_it_gets_messages_which_only_it_can_give_back(
    confirms: bool,
) -> None:
    """A worker alone, who acknowledges a task and publishes the result."""
    world = await world_with()
    fill(world)
    worker = Peer(world).login(capabilities={"connection.blocked": True})
    if confirms:
        worker.ask(C.Confirm.Select())
    worker.ask(C.Basic.Qos(0, 1))
    worker.method(C.Basic.Consume(0, "full"))
    assert "Basic.Deliver" in worker.names()
    result = publish("", "full", b"result")
    worker.send(encode(C.Basic.Ack(1), 1) + result)
    assert worker.connection.reading
    names = worker.names()
    if not confirms:
        assert names[-1] == "Connection.Close"
        assert world.broker.queues[b"full"].held == 0
        return
    assert names == ["Connection.Blocked", "Basic.Deliver", "ContentHeader", "ContentBody", "Basic.Nack"]
    worker.send(encode(C.Basic.Ack(2), 1))
    assert worker.names() == ["Connection.Unblocked", "Basic.Deliver", "ContentHeader", "ContentBody"]
    worker.send(encode(C.Basic.Ack(3), 1) + result)
    assert "Basic.Ack" in worker.names()
