"""Where answers wait for a bucket: what is delivered meanwhile, and in which order."""

from dms import wire
from dms.wire import Type
from shared.storage.shipping import Ships
from tests.dms.world import World, deliveries

NAME = wire.pack_name("orders")


def test_messages_are_in_order_while_acks_wait_for_the_bucket() -> None:
    world = World(ships=Ships(lambda disk: None, lambda namespace, name: True))
    peer = world.connect()
    peer.send(wire.pack(Type.CREATE_QUEUE, 2, NAME))
    peer.send(wire.pack(Type.PRODUCE, 3, NAME + b"first"))
    ((held, body),) = peer.consume("orders")
    assert body == b"first"
    # The ACK and the next message are of one commit, and the message behind them is of another.
    consume = wire.pack(Type.CONSUME, 7, NAME)
    peer.send(consume * 2 + wire.pack(Type.ACK, held) + wire.pack(Type.PRODUCE, 4, NAME + b"second"))
    peer.send(wire.pack(Type.PRODUCE, 5, NAME + b"third"))
    assert [body for _, body in deliveries(peer.take())] == [b"second", b"third"]
    shipping = world.store.shipping
    assert shipping is not None
    shipping.advance(shipping.synced_lsn, restorable=True)
    world.settle()
    types = [frame[0] for frame in peer.take()]
    assert types == [Type.CREATE_QUEUE + 1, Type.PRODUCE + 1, Type.ACK + 1, *[Type.PRODUCE + 1] * 2]
