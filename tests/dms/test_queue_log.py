"""What a round changes in a queue is a few records, and nothing of it counts before they are safe."""

from collections import Counter

import pytest
import trio

from dms import records, wire
from dms.records import Reason, RecordKind
from dms.wire import Status, Type
from shared.storage.log import read_records
from tests.dms.world import Peer, World, statuses, waiting

NAME = wire.pack_name("q")


def produce(body: bytes) -> bytes:
    return wire.pack(Type.PRODUCE, 1, NAME + body)


def together(world: World, *reads: tuple[Peer, bytes]) -> None:
    """One round: the driver serves them all, then comes the commit."""
    for peer, data in reads:
        peer.session.receive(data)
    world.settle()


def kinds(world: World) -> Counter[str]:
    queue = world.engine.queues[b"q"]
    assert queue.log is not None
    log = queue.log.log

    async def look() -> bytes:
        return await read_records(log, log.first, 1 << 20) if log.visible > log.first else b""

    return Counter(RecordKind(record.kind).name for record in records.unpack(trio.run(look)))


@pytest.mark.parametrize("record", ["of its own", "of what has expired"])
def test_a_delivery_is_counted_once_though_an_ack_behind_it_waits_when_its_note_is_written(
    record: str,
) -> None:
    world = World()
    peer = world.connect()
    peer.create("q")
    peer.produce("q", b"0", b"1", b"2", b"3")
    held = peer.consume("q", 3)
    peer.session.receive(wire.pack(Type.ACK, held[-1][0]))
    queue = world.engine.queues[b"q"]
    assert queue.log is not None
    if record == "of its own":
        queue.log.flush_notes()
    else:
        queue.log_gone([(queue.head, 1)], Reason.TTL)
        queue.drop_front(1)
    world.settle()
    world.kill()
    assert waiting(world.engine.queues[b"q"]) == [(b"0", 1), (b"1", 1)]


def test_nothing_is_answered_where_the_records_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    peer, other = world.connect(), world.connect()
    peer.create("q")
    peer.produce("q", b"a")
    ((held, _),) = peer.consume("q")

    def broken(*those: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(records, "pack_run_record", broken)
    together(world, (other, produce(b"b")), (peer, wire.pack(Type.ACK, held)))
    assert statuses(other.take()) == statuses(peer.take()) == [Status.INTERNAL]
    assert world.store.read_only is not None
    monkeypatch.undo()
    world.kill()
    assert [body for _, body in world.connect().consume("q", 2)] == [b"a"]


def test_what_rests_on_what_is_gathered_is_written_behind_it() -> None:
    world = World()
    peer, other = world.connect(), world.connect()
    peer.create("q")
    peer.produce("q", b"a", b"b", b"c")
    (first, _), (second, _) = peer.consume("q", 2)
    log = world.engine.queues[b"q"].log
    assert log is not None
    other.session.receive(produce(b"d"))
    peer.session.receive(wire.pack(Type.ACK, second))
    log.snapshot()
    other.session.receive(produce(b"e"))
    peer.session.receive(wire.pack(Type.ACK, first))
    world.settle()
    for _ in range(2):
        assert world.depths() == {"q": 3}
        world.kill()
    assert [body for _, body in world.connect().consume("q", 4)] == [b"c", b"d", b"e"]
