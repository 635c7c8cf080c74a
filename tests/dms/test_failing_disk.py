"""When the disk takes nothing: what `strict` refuses, and what `best-effort` goes on with."""

import errno

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import World, statuses
from tests.support.commits import ENOUGH_SPACE, NO_SPACE, fail, journal_write


def test_strict_answers_internal_and_leaves_the_queue_as_it_was() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a", b"b")
    ((held, _),) = peer.consume("orders")
    world.disk.before = _fail_syncs
    assert statuses(peer.produce("orders", b"c", b"d")) == [Status.INTERNAL] * 2
    assert world.depths() == {"orders": 2}
    assert [(f[2], f[3]) for f in peer.ack(held)] == [(Status.INTERNAL, held)]
    assert statuses(peer.create("other")) == [Status.INTERNAL]
    assert statuses(peer.ask(Type.DELETE_QUEUE, wire.pack_name("orders"))) == [Status.INTERNAL]
    assert [body for _, body in peer.consume("orders")] == [b"b"]
    assert statuses(peer.nack(held)) == [Status.OK]
    assert world.depths() == {"orders": 2}
    assert world.engine.counts.produced == 2


def test_an_ack_that_the_disk_does_not_take_gives_its_message_back_where_nobody_is_left_to_hold_it() -> None:
    world = World()
    peer, other = world.connect(), world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    peer.session.receive(wire.pack(Type.ACK, held))
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    peer.lose()
    assert world.depths() == {"orders": 1}
    assert [body for _, body in other.consume("orders")] == [b"a"]


def test_messages_that_the_disk_does_not_take_leave_their_places_to_the_next() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    queue = world.engine.queues[b"orders"]
    for body in (b"a", b"b"):
        peer.session.receive(wire.pack(Type.PRODUCE, 1, wire.pack_name("orders") + body))
        assert queue.log is not None
        queue.log.write_pending()  # a record for each
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    world.settle()
    peer.take()
    assert (queue.tail, queue.depth) == (1, 0)
    assert statuses(peer.produce("orders", b"c")) == [Status.OK]
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"c"]


def test_best_effort_refuses_for_want_of_space_and_keeps_to_the_disk() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    peer.create("orders")
    world.leave_free(NO_SPACE)
    assert statuses(peer.produce("orders", b"a")) != [Status.OK]
    world.leave_free(ENOUGH_SPACE)
    assert statuses(peer.produce("orders", b"b")) == [Status.OK]
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"b"]


def test_an_ack_that_the_disk_does_not_take_holds_its_message_again() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    world.disk.before = _fail_syncs
    assert [(f[2], f[3]) for f in peer.ack(held)] == [(Status.INTERNAL, held)]
    assert world.depths() == {"orders": 1}
    assert world.engine.counts.acked == 0
    peer.lose()
    assert [body for _, body in world.connect().consume("orders")] == [b"a"]


def test_best_effort_goes_on_in_memory_and_counts() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    world.disk.before = _fail_syncs
    assert statuses(peer.produce("orders", b"b", b"c")) == [Status.OK] * 2
    assert statuses(peer.produce("orders", b"d")) == [Status.OK]
    taken = peer.consume("orders", 4)
    assert [body for _, body in taken] == [b"a", b"b", b"c", b"d"]
    assert statuses(peer.ack(*(held for held, _ in taken))) == [Status.OK] * 4
    assert world.depths() == {"orders": 0}
    assert statuses(peer.create("made-in-memory")) == [Status.OK]
    assert statuses(peer.produce("made-in-memory", b"x")) == [Status.OK]
    assert world.engine.counts.unkept == 2 + 1 + 4 + 1 + 1, "each answer, and the queue"


def test_best_effort_deletes_what_the_disk_still_has() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    for name in ("orders", "untouched"):
        peer.create(name)
    world.disk.before = _fail_syncs
    peer.produce("orders", b"a")
    assert statuses(peer.ask(Type.DELETE_QUEUE, wire.pack_name("untouched"))) == [Status.OK]
    assert world.depths() == {"orders": 1}
    assert world.engine.counts.unkept == 2


def _fail_syncs(operation: object) -> None:
    if getattr(operation, "kind", "").startswith("sync"):
        raise OSError(5, "the disk has failed")
