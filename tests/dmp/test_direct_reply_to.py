"""Direct reply-to: replies come to the channel that asked, without a queue of the client's making."""

import pytest
from pamqp import base, commands, header

from dmp.amqp.wire import encode
from dmp.settings import DmpSettings
from dmp.topology import REPLIES_WAITING_MAX
from tests.dmp.amqp_peer import Frames, Peer, bodies, closed, opened, publish
from tests.dmp.world import World

C = commands
REPLY_TO = "amq.rabbitmq.reply-to"


def properties(**named: object) -> bytes:
    return C.Basic.Properties(**named).marshal()


def asking(correlation: str = "1") -> bytes:
    return properties(correlation_id=correlation, reply_to=REPLY_TO)


def reply_to(frames: Frames) -> str:
    (found,) = [value for _, value in frames if isinstance(value, header.ContentHeader)]
    return str(found.properties.reply_to)


async def pair(settings: DmpSettings | None = None) -> tuple[World, Peer, Peer, str]:
    """A requester, a server whose queue is `work`, and where a first request says the reply is to go."""
    world, requester = await opened(settings)
    server = Peer(world).login()
    server.ask(C.Queue.Declare(0, "work"))
    requester.ask(C.Basic.Consume(0, REPLY_TO, "replies", no_ack=True))
    requester.publish("", "work", b"question", properties=asking())
    return world, requester, server, reply_to(server.say(C.Basic.Get(0, "work", True)))


async def test_a_reply_reaches_the_channel_that_asked_and_no_other() -> None:
    world, requester, server, to = await pair()
    other = Peer(world).login()
    other.ask(C.Basic.Consume(0, REPLY_TO, no_ack=True))
    assert to.startswith(REPLY_TO + ".")
    server.publish("", to, b"answer", properties=properties(correlation_id="1"))
    (_, deliver), (_, head), (_, body) = requester.frames()
    assert (deliver.name, deliver.consumer_tag, deliver.routing_key) == ("Basic.Deliver", "replies", to)
    assert (head.properties.correlation_id, body.value) == ("1", b"answer")
    assert other.frames() == []


async def test_the_settings_limits_of_queues_are_for_those_that_clients_declare() -> None:
    world, _, _, to = await pair(DmpSettings(queue_drop_messages=1))
    assert world.broker.queues[b"work"].capacity.capped
    assert not world.broker.reply_queues[to.encode()].capacity.capped


async def test_requests_at_speed_name_the_same_place_as_the_first() -> None:
    _, requester, server, to = await pair()
    requester.publish("", "work", b"a", b"b", b"c", properties=asking())
    for _ in range(3):
        assert reply_to(server.say(C.Basic.Get(0, "work", True))) == to


async def test_the_name_is_told_to_live_while_the_consumer_does_and_what_is_sent_there_later_comes_back() -> (
    None
):
    world, requester, server, to = await pair()
    for name in (REPLY_TO, to):
        for passive in (True, False):
            declared = server.ask(C.Queue.Declare(0, name, passive))
            assert (declared.queue, declared.message_count, declared.consumer_count) == (name, 0, 1)
    server.publish("", to, b"in time", mandatory=True)
    assert server.frames() == []
    assert bodies(requester.frames()) == [b"in time"]
    requester.ask(C.Basic.Cancel("replies"))
    server.publish("", to, b"late", mandatory=True)
    assert server.names() == ["Basic.Return", "ContentHeader", "ContentBody"]
    server.method(C.Queue.Declare(0, to, True))
    assert closed(server) == ("Channel.Close", 404)
    assert (world.broker.reply_queues, world.broker.counts.consumers) == ({}, 0)


@pytest.mark.parametrize("end", ["channel", "connection", "lost"])
async def test_nothing_is_left_of_a_requester_that_has_gone(end: str) -> None:
    world, requester, server, to = await pair()
    if end == "lost":
        requester.lose()
    else:
        close = C.Channel if end == "channel" else C.Connection
        requester.method(close.Close(200, "", 0, 0), 1 if end == "channel" else 0)
    server.publish("", to, b"late", mandatory=True)
    assert server.names()[0] == "Basic.Return"
    assert (world.broker.reply_queues, world.broker.memory.total_bytes) == ({}, 0)


@pytest.mark.parametrize(
    "data",
    [
        publish("", "work", b"x", properties=asking()),  # nobody consumes the replies
        encode(C.Basic.Consume(0, REPLY_TO), 1),  # they cannot be acknowledged
        encode(C.Basic.Consume(0, REPLY_TO, no_ack=True), 1) * 2,
    ],
)
async def test_what_rabbitmq_refuses_is_refused_as_it_does(peer: Peer, data: bytes) -> None:
    peer.send(data)
    assert closed(peer) == ("Channel.Close", 406)


@pytest.mark.parametrize(
    "method",
    [
        C.Queue.Purge,
        C.Basic.Get,
        C.Basic.Consume,
        lambda number, name: C.Queue.Bind(number, name, "amq.topic", "k"),
    ],
)
async def test_whoever_has_the_name_may_publish_there_and_do_no_more(method: type[base.Frame]) -> None:
    _, _, server, to = await pair()
    server.method(method(0, to))
    assert closed(server) == ("Channel.Close", 404)


async def test_after_the_consumer_is_cancelled_a_request_is_refused() -> None:
    _, requester, _, _ = await pair()
    requester.ask(C.Basic.Cancel("replies"))
    requester.publish("", "work", b"question", properties=asking())
    assert closed(requester) == ("Channel.Close", 406)


async def test_replies_that_a_requester_does_not_read_have_a_bound_and_the_oldest_go() -> None:
    world, requester, server, to = await pair(DmpSettings(message_bytes_max=1 << 20))
    requester.connection.outbox.bound = -1
    server.publish("", to, *[bytes(1000)] * 1100)
    (queue,) = world.broker.reply_queues.values()
    assert queue.row.all_body_bytes == 1048 * 1000
    server.publish("", to, *[b""] * (REPLIES_WAITING_MAX + 7))
    assert queue.depth == REPLIES_WAITING_MAX
    assert world.broker.counts.overflowed == 1100 + 7
