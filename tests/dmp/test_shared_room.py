"""Whose turn it is when room that several share is free again, and what takes of it. No sockets."""

from collections.abc import Callable

import pytest
from pamqp import commands

from dmp.amqp.wire import encode
from shared.queues.runs import Run
from tests.dmp.amqp_peer import Peer, bodies
from tests.dmp.world import Taker, World

C = commands
Settle = Callable[[int], bytes]


def consumers(peer: Peer, *names: str) -> None:
    """A queue for each name, with ten messages of it, and a consumer of that."""
    for name in names:
        peer.ask(C.Queue.Declare(0, name))
        peer.publish("", name, *[name.encode()] * 10)
    for name in names:
        peer.method(C.Basic.Consume(0, name, name))


def settled(peer: Peer, settle: Settle, count: int) -> bytes:
    """Who had so many messages, each settled before the next comes."""
    found = b""
    for tag in range(1, count + 1):
        (body,) = bodies(peer.frames())
        found += body
        peer.send(settle(tag))
    return found


class Pooled(Taker):
    """Has what room another taker has."""

    def __init__(self, pool: Taker) -> None:
        super().__init__(no_ack=False)
        self.pool: Taker = pool

    def room(self) -> tuple[int, int]:
        return self.pool.room()

    def deliver(self, runs: list[Run]) -> None:
        self.pool.deliver(runs)
        super().deliver(runs)


SETTLED: dict[str, Settle] = {
    "acknowledged": lambda tag: encode(C.Basic.Ack(tag), 1),
    "all before it, too": lambda tag: encode(C.Basic.Ack(tag, True), 1),
    "rejected": lambda tag: encode(C.Basic.Reject(tag, False), 1),
    "requeued": lambda tag: encode(C.Basic.Nack(tag, False, True), 1),
    "recovered": lambda tag: encode(C.Basic.Recover(True), 1),
}


@pytest.mark.parametrize("settle", SETTLED.values(), ids=SETTLED)
async def test_queues_take_turns_with_a_channels_prefetch(peer: Peer, settle: Settle) -> None:
    peer.ask(C.Basic.Qos(0, 1, True))
    consumers(peer, "a", "b", "c")
    assert settled(peer, settle, 10) == b"aabcabcabc", "the others came later than its first"


async def test_queues_take_turns_with_the_prefetch_of_a_transaction(peer: Peer) -> None:
    peer.ask(C.Tx.Select())
    peer.ask(C.Basic.Qos(0, 1, True))
    consumers(peer, "a", "b")
    peer.send(encode(C.Tx.Commit(), 1))
    settle: Settle = lambda tag: encode(C.Basic.Ack(tag), 1) + encode(C.Tx.Commit(), 1)  # noqa: E731
    assert settled(peer, settle, 6) == b"ababab"


async def test_consumers_of_one_queue_share_the_channels_prefetch(world: World, peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Qos(0, 5, True))
    for tag in ("one", "two", "three"):
        peer.ask(C.Basic.Consume(0, "q", tag))
    world.broker.queues[b"q"].pause()
    peer.publish("", "q", *[b"%d" % number for number in range(20)])
    world.broker.queues[b"q"].resume()
    got = [value.consumer_tag for _, value in peer.frames() if value.name == "Basic.Deliver"]
    assert sorted(got) == ["one", "one", "three", "two", "two"]
    got = [value.consumer_tag for _, value in peer.say(C.Basic.Ack(0, True)) if value.name == "Basic.Deliver"]
    assert sorted(got) == ["one", "one", "three", "three", "two"], "who had fewest is first"


async def test_who_waits_for_room_in_a_pool_comes_before_who_had_it(world: World) -> None:
    queue = world.queue()
    pool = Taker(no_ack=False, room=0)
    one, two, other = Pooled(pool), Pooled(pool), Taker(no_ack=False, room=0)
    for taker in (one, two, other):
        queue.add_consumer(taker)
    world.publish(b"", b"q", *[b"%d" % number for number in range(40)])
    for _ in range(10):
        for with_room in (pool, other):
            with_room.count = 1
            queue.dispatch()
    assert (len(one.bodies), len(two.bodies), len(other.bodies)) == (5, 5, 10)


async def test_what_basic_get_holds_leaves_consumers_their_prefetch(peer: Peer) -> None:
    peer.ask(C.Basic.Qos(0, 1, True))
    consumers(peer, "a")
    peer.send(encode(C.Basic.Get(0, "a"), 1) * 3)
    assert len(bodies(peer.frames())) == 4
    assert bodies(peer.say(C.Basic.Ack(2))) == [], "that was one of the others"
    assert bodies(peer.say(C.Basic.Ack(1))) == [b"a"]
