"""What leaves by a purge comes back where the disk refuses the record of that: all of it, and in order."""

import errno
from collections.abc import Callable

import pytest

from dms.engine import Queue
from dms.records import Reason
from dms.settings import DmsSettings
from dms.wire import Type, pack, pack_name
from tests.dms.world import Peer, World, with_queue
from tests.support.commits import fail, journal_write
from tests.support.fake_disk import Operation

HOT = DmsSettings()
COLD = DmsSettings(hot_bytes=1)
"""Of each queue 16 KiB are in memory."""


def queue_of(world: World) -> Queue:
    return world.engine.queues[b"orders"]


def refuse(world: World) -> None:
    """The disk refuses what is appended and not yet written."""
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    world.settle()


def purge_during_a_commit(world: World) -> None:
    """A purge is appended while the messages before it are being written. The disk takes these, and refuses
    the purge."""
    writes = 0

    def before(operation: Operation) -> None:
        nonlocal writes
        if journal_write(operation):
            writes += 1
            if writes == 1:
                queue_of(world).purge()
            elif writes == 2:
                raise OSError(errno.ENOSPC, "injected")

    world.disk.before = before
    world.store.commit_pending()
    world.settle()
    assert writes >= 2


def produced(peer: Peer, count: int) -> list[bytes]:
    bodies = [b"%d-" % number + bytes(500) for number in range(count)]
    peer.produce("orders", *bodies)
    return bodies


def drained(peer: Peer, count: int) -> list[bytes]:
    taken: list[bytes] = []
    while len(taken) < count and (some := peer.consume("orders", min(count - len(taken), 50))):
        taken += [body for _, body in some]
        peer.ack(*(held for held, _ in some))
    return taken


@pytest.mark.parametrize("settings", [HOT, COLD], ids=["hot", "cold"])
def test_a_purge_that_the_disk_refuses_leaves_the_row_as_it_was(settings: DmsSettings) -> None:
    world = World(settings)
    peer = with_queue(world)
    bodies = produced(peer, 200)
    (first, *_, last) = peer.consume("orders", 20)
    peer.nack(last[0])
    peer.ack(first[0])
    assert queue_of(world).purge()[0] == 181
    assert queue_of(world).depth == 18
    refuse(world)
    assert queue_of(world).depth == 199
    assert queue_of(world).returned == 1
    assert drained(peer, 200) == bodies[19:]
    assert queue_of(world).depth == 18
    peer.lose()
    world.kill()
    assert drained(world.connect(), 200) == bodies[1:19]


@pytest.mark.parametrize("settings", [HOT, COLD], ids=["hot", "cold"])
def test_what_was_written_beside_a_refused_purge_comes_behind_what_is_back(settings: DmsSettings) -> None:
    world = World(settings)
    peer = with_queue(world)
    bodies = produced(peer, 100)
    peer.session.receive(b"".join(pack(Type.PRODUCE, 1, pack_name("orders") + b"new") for _ in range(3)))
    purge_during_a_commit(world)
    peer.take()
    assert queue_of(world).depth == 103
    assert drained(peer, 110) == [*bodies, *[b"new"] * 3]
    world.kill()
    assert world.depths() == {"orders": 0}


def test_what_comes_while_a_purge_is_written_is_delivered_behind_it() -> None:
    world = World(HOT)
    peer = with_queue(world)
    produced(peer, 3)
    peer.session.receive(pack(Type.PRODUCE, 1, pack_name("orders") + b"new"))

    def before(operation: Operation) -> None:
        if journal_write(operation):
            world.disk.before = lambda _: None
            queue_of(world).purge()

    world.disk.before = before
    world.settle()
    assert [body for _, body in peer.consume("orders", 5)] == [b"new"]
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 5)] == [b"new"]


def jobs_leave(queue: Queue) -> None:
    assert queue.jobs is not None
    queue.discard(queue.jobs.take_some(5), Reason.PURGED)


def messages_leave(queue: Queue) -> None:
    queue.discard(queue.take_row(2), Reason.PURGED)


@pytest.mark.parametrize("leave", [jobs_leave, messages_leave])
def test_what_was_taken_out_and_deleted_is_back_where_the_disk_refuses_it(
    leave: Callable[[Queue], None],
) -> None:
    world = World(HOT)
    peer = with_queue(world)
    peer.produce("orders", b"a", b"b", b"c")
    peer.produce_with("orders", b"waits", delay_ms=1000, dedup="one")
    peer.produce_with("orders", b"ready", key="k")
    leave(queue_of(world))
    assert queue_of(world).depth == 3
    refuse(world)
    assert queue_of(world).depth == 5
    peer.produce_with("orders", b"again", dedup="one")
    world.advance(2)
    assert drained(peer, 9) == [b"a", b"b", b"c", b"waits", b"ready"]
