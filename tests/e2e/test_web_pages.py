"""A web page may have a browser post to any port of this machine. No protocol does what the body says."""

from dmp.wire import AMQP_HEADER
from dms.wire import Type, pack, pack_name
from kqmsgq.wire import PRODUCE, message, subscribe
from pubsub.wire import Command, encode_command, encode_id
from tests.dmp.peers import Peer as DmpPeer
from tests.dmp.world import World as DmpWorld
from tests.dms.world import MEMORY
from tests.dms.world import World as DmsWorld
from tests.kqmsgq.world import World as KqmsgqWorld
from tests.pubsub.world import World as PubsubWorld
from tests.support.browsers import post


def test_dms_refuses_the_first_bytes() -> None:
    world = DmsWorld(MEMORY)
    peer = world.connect(handshake=False)
    peer.send(post(pack(Type.HANDSHAKE, 1) + pack(Type.CREATE_QUEUE, 2, pack_name("page"))))
    assert peer.connection.finished
    assert world.depths() == {}


def test_pubsub_refuses_the_first_bytes() -> None:
    body = encode_id(b"page") + encode_command(Command.KEEP, b"*")
    request = post(body)
    for reads in ([request], [request[at : at + 1] for at in range(len(request))]):
        world = PubsubWorld()
        peer = world.connect()
        peer.send(*reads)
        assert peer.closed
        assert peer.connection.taken() == b""
        assert world.sessions.clients == {}
        assert world.changes == []


def test_kqmsgq_refuses_the_first_bytes() -> None:
    world = KqmsgqWorld()
    consumer = world.consumer(subscribe())
    peer = world.connect()
    peer.send(post(PRODUCE + message(b"orders", b"from a page")))
    assert peer.closed
    assert peer.connection.taken() == b""
    assert consumer.messages() == []
    assert world.counts.messages_in == 0


async def test_dmp_refuses_the_first_bytes() -> None:
    world = await DmpWorld.open()
    peer = DmpPeer(world)
    assert peer.say(post(AMQP_HEADER)) == AMQP_HEADER
    assert peer.connection.finished
