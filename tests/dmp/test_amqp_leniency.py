"""Where RabbitMQ is lenient, and clients rely on that: declaring `amq.*` again, and tearing down twice."""

import importlib.metadata

import pytest
from pamqp import base, commands

from dmp.exchanges import PREDECLARED
from dmp.wire import AMQP_HEADER
from tests.dmp.amqp_peer import Peer, closed
from tests.dmp.world import World

C = commands


@pytest.mark.parametrize("name", [name.decode() for name in PREDECLARED])
async def test_a_predeclared_exchange_may_be_declared_again_with_any_flags(
    world: World, peer: Peer, name: str
) -> None:
    kind = PREDECLARED[name.encode()]
    wire_api = C.Exchange.Declare(0, name, kind, auto_delete=True)
    for declare in (
        wire_api,
        C.Exchange.Declare(0, name, kind, durable=True, internal=True),
        C.Exchange.Declare(0, name, kind, arguments={"alternate-exchange": "amq.fanout"}),
    ):
        assert peer.ask(declare).name == "Exchange.DeclareOk"
    now = world.broker.exchanges[name.encode()].kind
    assert (now.durable, now.auto_delete, now.internal, now.alternate) == (True, False, False, None)


async def test_a_predeclared_exchange_of_another_type_costs_the_channel(peer: Peer) -> None:
    peer.method(C.Exchange.Declare(0, "amq.direct", "topic", durable=True))
    assert closed(peer) == ("Channel.Close", 406)


@pytest.mark.parametrize(
    "kind",
    [
        {"exchange_type": "topic"},
        {"durable": True},
        {"auto_delete": True},
        {"internal": True},
        {"arguments": {"alternate-exchange": "amq.fanout"}},
    ],
)
async def test_an_exchange_declared_otherwise_than_before_costs_the_channel(
    peer: Peer, kind: dict[str, object]
) -> None:
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.method(C.Exchange.Declare(0, "e", **{"exchange_type": "fanout", **kind}))
    assert closed(peer) == ("Channel.Close", 406)


@pytest.mark.parametrize(
    "method",
    [
        C.Queue.Delete(0, "none", if_unused=True, if_empty=True),
        C.Exchange.Delete(0, "none", if_unused=True),
        C.Queue.Unbind(0, "none", "amq.direct", "k"),
        C.Queue.Unbind(0, "q", "none", "k"),
        C.Queue.Unbind(0, "q", "amq.direct", "never bound"),
        C.Exchange.Unbind(0, "none", "amq.direct", "k"),
        C.Exchange.Unbind(0, "amq.topic", "none", "k"),
    ],
)
async def test_what_is_not_there_is_deleted_and_unbound_already(
    world: World, peer: Peer, method: base.Frame
) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    answer = peer.ask(method)
    assert answer.name == f"{method.name}Ok"
    assert getattr(answer, "message_count", 0) == 0
    assert world.broker.counts.refusals == {}


async def test_a_method_without_a_queue_on_a_channel_that_has_declared_none_costs_the_channel(
    peer: Peer,
) -> None:
    peer.method(C.Queue.Purge(0, ""))
    assert closed(peer) == ("Channel.Close", 404)


async def test_the_server_tells_its_version_and_that_it_has_direct_reply_to() -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER)
    ((_, start),) = peer.frames()
    assert start.server_properties["version"] == importlib.metadata.version("brokers")
    assert start.server_properties["capabilities"]["direct_reply_to"] is True
