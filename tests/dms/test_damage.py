"""A damaged log costs a queue what stood there: it says so once, and goes on with the rest."""

import pytest
import trio

from dms.wire import Status, Type, pack, pack_name
from shared.storage.store import Log
from tests.dms.world import Peer, World, deliveries, statuses

COUNT = 400


def body(number: int) -> bytes:
    return b"%06d" % number + bytes(1000)


def filled(count: int = COUNT, options: bytes = b"") -> World:
    world = World()
    peer = world.connect()
    peer.create("orders", options)
    for number in range(0, count, 10):
        peer.produce("orders", *map(body, range(number, number + 10)))
        peer.take()
    assert trio.run(world.store.flush)
    return world


def damaged(world: World, place: float) -> World:
    """The log has a flipped bit there, and the process is another."""
    world.disk.flip("dms/orders.log", int(log_of(world).end * place) * 8)
    restart(world)
    return world


def restart(world: World) -> None:
    """In order."""
    trio.run(world.store.close)
    world.disk = world.disk.kill()
    world.peers.clear()
    world.open()


def log_of(world: World) -> Log:
    log = world.engine.queues[b"orders"].log
    assert log is not None
    return log.log


def drained(peer: Peer) -> tuple[list[int], int]:
    """The numbers of all messages, and how many CONSUMEs were refused before there was nothing more."""
    found: list[int] = []
    refused = 0
    while True:
        peer.send(pack(Type.CONSUME, 7, pack_name("orders")))
        frames = peer.take()
        if not frames:
            return found, refused
        if statuses(frames) == [Status.INTERNAL]:
            refused += 1
        for number, data in deliveries(frames):
            found.append(int(data[:6]))
            peer.ack(number)


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_queue_says_once_that_messages_are_lost_and_gives_out_the_others_in_order(place: float) -> None:
    world = damaged(filled(), place)
    found, refused = drained(world.connect())
    assert refused == 1
    assert found == sorted(found)
    assert COUNT - 100 <= len(found) < COUNT
    assert world.engine.queues[b"orders"].depth == 0
    assert world.engine.counts.damaged_ranges == 1
    world.connect().produce("orders", body(COUNT))
    world.kill()
    found, refused = drained(world.connect())
    assert found == [COUNT]


def test_a_queue_whose_log_file_is_gone_is_not_taken_for_empty() -> None:
    world = filled(20)
    log = log_of(world)
    trio.run(world.store.close)
    world.disk = world.disk.kill()
    world.disk.unlink(log.file.path)
    world.peers.clear()
    world.open()
    peer = world.connect()
    assert drained(peer) == ([], 1)
    assert [data for _, data in deliveries(peer.produce("orders", body(7)))] == [body(7)], "to who waits now"


def test_what_a_snapshot_held_is_lost_with_it_and_the_rest_is_found_without() -> None:
    world = filled()
    queue = world.engine.queues[b"orders"]
    peer = world.connect()
    peer.ack(*[number for number, _ in peer.consume("orders", 50)[:40]])
    assert queue.log is not None
    queue.log.snapshot()
    world.settle()
    end = log_of(world).end
    peer.produce("orders", body(COUNT))
    assert trio.run(world.store.flush)
    world.disk.flip("dms/orders.log", (end - 10) * 8)
    restart(world)
    found, refused = drained(world.connect())
    assert refused == 1
    assert found == sorted(found)
    assert set(range(50, COUNT - 100)) <= set(found)


def test_options_whose_queue_is_not_there_are_not_deleted() -> None:
    world = filled(10, b'{"depth": 77}')
    table = world.engine.table
    table.put(b"lost", b'{"log": 99, "options": {"depth": 5}, "snapshot": 0}')
    world.settle()
    for _ in range(2):
        world.kill()
        assert b"lost" in world.engine.table
    world.connect().create("lost")
    world.kill()
    assert world.engine.queues[b"lost"].options.depth != 5
    world.connect().ask(Type.DELETE_QUEUE, pack_name("lost"))
    world.kill()
    assert b"lost" not in world.engine.table


def test_a_queue_and_its_options_end_in_one_batch_of_the_journal() -> None:
    world = filled(10, b'{"depth": 77}')
    batches = world.store.statistics().journal_batches
    world.connect().ask(Type.DELETE_QUEUE, pack_name("orders"))
    assert world.store.statistics().journal_batches == batches + 1
    assert b"orders" not in world.engine.table
    world.kill()
    assert not world.engine.queues
