"""Where RabbitMQ is lenient, and clients rely on that: declaring `amq.*` again, and tearing down twice."""

import importlib.metadata
from typing import Any

import pytest
from pamqp import base, commands
from pamqp.encode import field_table

from dmp.amqp.wire import encode
from dmp.exchanges import PREDECLARED
from dmp.wire import AMQP_HEADER
from tests.dmp.amqp_peer import Peer, bodies, closed, publish, start_ok
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


async def test_a_durable_quorum_queue_is_taken_also_after_a_restart(world: World, peer: Peer) -> None:
    """What says how a queue is kept is the server's to decide."""
    arguments = {
        "x-queue-type": "quorum",
        "x-queue-leader-locator": "balanced",
        "x-quorum-initial-group-size": 3,
    }
    declare = C.Queue.Declare(0, "q", durable=True, arguments=arguments)
    assert peer.ask(declare).queue == "q"
    peer.publish("", "q", b"x", properties=b"\x10\0\x02")
    world.settle()
    after = Peer(await world.again()).login()
    assert after.ask(declare).message_count == 1


@pytest.mark.parametrize("milliseconds", [1 << 32, (1 << 63) - 1])
async def test_times_of_any_length_are_taken(peer: Peer, milliseconds: int) -> None:
    peer.ask(C.Queue.Declare(0, "q", arguments={"x-message-ttl": milliseconds, "x-expires": milliseconds}))
    expiration = str(milliseconds).encode()
    peer.publish("", "q", b"x", properties=b"\x01\0" + bytes((len(expiration),)) + expiration)
    peer.now_is(peer.connection.now + (1 << 31) / 1000)
    assert peer.ask_get("q") == b"x"


async def test_line_ends_are_no_part_of_a_name(peer: Peer) -> None:
    def answer(method: base.Frame) -> Any:
        """The one answer to it, with line ends in place of `.` and `-`: pamqp writes none."""
        peer.send(encode(method, 1).translate(bytes.maketrans(b".-", b"\n\r")))
        ((_, found),) = peer.frames()
        return found

    answer(C.Exchange.Declare(0, ".e-.", "fanout"))
    assert answer(C.Queue.Declare(0, "case.new-.line")).queue == "casenewline"
    assert answer(C.Queue.Declare(0, "casenewline.", passive=True)).queue == "casenewline"
    answer(C.Queue.Bind(0, "casenewline.", "e."))
    peer.send(publish("e.", "", b"one").replace(b".", b"\n"))
    assert peer.ask_get("casenewline") == b"one"
    assert answer(C.Basic.Get(0, "casenewline.")).name == "Basic.GetEmpty"
    assert answer(C.Exchange.Declare(0, "e-", passive=True)).name == "Exchange.DeclareOk"
    answer(C.Queue.Unbind(0, "casenewline.", "e."))
    assert peer.world.broker.bindings == 0
    answer(C.Exchange.Delete(0, "e."))
    answer(C.Queue.Delete(0, "casenewline."))
    assert not peer.world.broker.queues
    assert b"e" not in peer.world.broker.exchanges


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        ({"LOGIN": "guest", "PASSWORD": "guest"}, True),
        ({"PASSWORD": "guest", "LOGIN": "guest", "more": 1}, True),
        ({"LOGIN": "guest", "PASSWORD": "other"}, False),
        ({"LOGIN": "guest"}, False),
        ({"LOGIN": "guest", "PASSWORD": 5}, False),
        (None, False),
    ],
)
async def test_amqplain_logs_in_by_a_table(table: dict[str, Any] | None, fits: bool) -> None:
    peer = Peer(await World.open())
    response = "garbage" if table is None else field_table(table)[4:].decode()
    peer.send(AMQP_HEADER + encode(start_ok(response=response, mechanism="AMQPLAIN"), 0))
    assert peer.names() == ["Connection.Start", *["Connection.Tune"] * fits]


async def test_py_amqp_sets_the_prefetch_of_consumers_that_are_there(world: World) -> None:
    """kombu raises it by each task that must wait for its time."""
    peer = Peer(world)
    properties = {"product": "py-amqp", "capabilities": {}}
    hello = C.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US")
    opening = (hello, C.Connection.TuneOk(0, 0, 0), C.Connection.Open("/"))
    peer.send(AMQP_HEADER + b"".join(encode(method, 0) for method in opening) + encode(C.Channel.Open(), 1))
    peer.frames()
    peer.ask(C.Basic.Qos(0, 1, False))
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q"))
    peer.publish("", "q", b"1", b"2", b"3")
    assert bodies(peer.frames()) == [b"1"]
    assert bodies(peer.say(C.Basic.Qos(0, 2, False))) == [b"2"]


async def test_the_server_tells_its_version_and_that_it_has_direct_reply_to() -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER)
    ((_, start),) = peer.frames()
    assert start.server_properties["version"] == importlib.metadata.version("brokers")
    assert start.server_properties["capabilities"]["direct_reply_to"] is True
