"""Publishers: confirms, a disk that fails, memory that is full."""

import pytest
from pamqp import commands

from dmp.amqp.content import BEGUN_BYTES
from dmp.amqp.wire import encode
from dmp.properties import NO_PROPERTIES
from tests.dmp.amqp_peer import Peer, closed, publish
from tests.dmp.world import PERSISTENT, World, ready

C = commands


async def test_confirms_come_after_the_sync_and_a_failed_one_is_a_nack(world: World, peer: Peer) -> None:
    peer.ask(C.Confirm.Select())
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.publish("", "q", b"1", b"2", properties=PERSISTENT)
    peer.publish("", "q", b"3")
    assert peer.frames() == []
    world.settle()
    ((_, ack),) = peer.frames()
    assert (ack.name, ack.delivery_tag, ack.multiple) == ("Basic.Ack", 3, True)
    peer.publish("", "q", b"4", properties=PERSISTENT)
    world.break_disk()
    world.settle()
    ((_, nack),) = peer.frames()
    assert (nack.name, nack.delivery_tag) == ("Basic.Nack", 4)
    peer.publish("", "q", b"5", properties=PERSISTENT)
    ((_, nack),) = peer.frames()
    assert (nack.name, nack.delivery_tag) == ("Basic.Nack", 5)


async def test_what_is_confirmed_is_told_before_the_channel_closes(peer: Peer) -> None:
    peer.ask(C.Confirm.Select())
    peer.send(publish("", "q", b"1", b"2") + encode(C.Queue.Declare(0, "none", True), 1))
    assert peer.names() == ["Basic.Ack", "Channel.Close"]


@pytest.mark.parametrize("immediate", [False, True])
async def test_without_confirms_a_publish_that_cannot_be_stored_ends_the_connection(
    world: World, peer: Peer, immediate: bool
) -> None:
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.ask(C.Basic.Consume(0, "q", "t"))
    world.break_disk()
    peer.publish("", "q", b"1", properties=PERSISTENT)
    world.settle()
    peer.publish("", "q", b"2", properties=PERSISTENT, immediate=immediate)
    assert closed(peer) == ("Connection.Close", 506)


async def test_a_half_closed_client_gets_its_confirms_before_the_end(world: World, peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.ask(C.Confirm.Select())
    peer.publish("", "q", b"1", properties=PERSISTENT)
    peer.session.receive_eof()
    assert not peer.connection.finished
    world.settle()
    assert peer.names() == ["Basic.Ack"]
    assert peer.connection.finished


async def test_what_has_come_of_contents_and_frames_counts_against_the_bound_of_all(
    world: World, peer: Peer
) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Channel.Open(), 2)
    held = peer.connection
    whole = publish("", "q", bytes(200_000), part=50_000)
    peer.send(whole[:80_000])
    assert 79_000 < held.held_bytes - BEGUN_BYTES < 80_000
    other = publish("", "q", bytes(100_000), channel=2, part=60_000)
    peer.send(whole[80_000:] + other[:90_000])
    assert 89_000 < held.held_bytes - BEGUN_BYTES < 90_000
    peer.send(other[90_000:])
    assert held.held_bytes == 0
    assert [len(body) for body in ready(world.broker.queues[b"q"])] == [200_000, 100_000]
    peer.send(other[:-40_008])  # all but its last frame
    assert held.held_bytes == 60_000 + BEGUN_BYTES + len(NO_PROPERTIES)
    peer.method(C.Channel.Close(200, "bye", 0, 0), 2)
    assert held.held_bytes == 0
