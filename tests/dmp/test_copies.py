"""`CC` and `BCC`: a message goes where each of its keys leads, once to a queue."""

from typing import Any

import pytest
from pamqp import commands, header

from dmp.properties import KEYS_MAX
from dmp.settings import DmpSettings
from tests.dmp.amqp_peer import Peer, closed, opened
from tests.dmp.world import World

C = commands


def headers(**named: Any) -> bytes:
    return C.Basic.Properties(headers=named).marshal()


async def with_queues(*names: str, settings: DmpSettings | None = None) -> tuple[World, Peer]:
    world, peer = await opened(settings)
    for name in names:
        peer.ask(C.Queue.Declare(0, name))
    return world, peer


def waiting(world: World) -> dict[bytes, int]:
    return {name: queue.depth for name, queue in world.broker.queues.items()}


async def test_a_message_goes_where_each_of_its_keys_leads_and_to_a_queue_once() -> None:
    world, peer = await with_queues("a", "b", "c", "d")
    copies = headers(CC=["b", "a", "b", "none"], BCC=["c", "a"])
    peer.publish("", "a", b"default", properties=copies)
    assert waiting(world) == {b"a": 1, b"b": 1, b"c": 1, b"d": 0}
    for name in "abcd":
        peer.ask(C.Queue.Bind(0, name, "amq.topic", f"{name}.*"))
        peer.ask(C.Queue.Bind(0, name, "amq.topic", "#.all"))
    copies = headers(CC=["b.1"], BCC=["c.all"])
    peer.publish("amq.topic", "a.1", b"1", b"2", b"3", properties=copies)
    assert waiting(world) == {b"a": 4, b"b": 4, b"c": 4, b"d": 3}


async def test_who_gets_it_sees_cc_and_not_bcc() -> None:
    _, peer = await with_queues("a", "hidden")
    kept = {"n": 1, "deep": {"list": [1, "two"]}, "CC": ["hidden"], "z": True}
    peer.publish("", "a", b"x", b"y", properties=headers(BCC=["hidden"], **kept))
    for queue in ("a", "hidden"):
        for body in (b"x", b"y"):
            (_, got), (_, head), (_, found) = peer.say(C.Basic.Get(0, queue, True))
            assert isinstance(head, header.ContentHeader)
            assert (got.routing_key, head.properties.headers, found.value) == ("a", kept, body)


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["a", 1, {"a": "b"}, None, ["k" * 256], ["k"] * (KEYS_MAX + 1)])
async def test_a_header_that_names_no_keys_costs_the_channel(name: str, value: object) -> None:
    world, peer = await with_queues("a")
    peer.publish("", "a", b"x", properties=headers(**{name: value}))
    assert closed(peer) == ("Channel.Close", 406)
    assert waiting(world) == {b"a": 0}


async def test_what_is_no_string_among_the_keys_is_not_looked_at() -> None:
    world, peer = await with_queues("a", "b")
    peer.publish("", "a", b"x", properties=headers(CC=[1, True, "b", None]))
    assert waiting(world) == {b"a": 1, b"b": 1}


async def test_a_mandatory_message_comes_back_only_where_no_key_leads_anywhere() -> None:
    _, peer = await with_queues("a")
    peer.publish("", "none", b"x", properties=headers(BCC=["a"]), mandatory=True)
    assert peer.frames() == []
    peer.publish("", "none", b"x", properties=headers(BCC=["nobody"], n=1), mandatory=True)
    (_, returned), (_, head), _ = peer.frames()
    assert (returned.reply_code, head.properties.headers) == (312, {"n": 1})


async def test_what_no_binding_wants_goes_to_the_alternate_once_and_only_where_no_key_is_wanted() -> None:
    world, peer = await with_queues("a", "rest")
    peer.ask(C.Queue.Bind(0, "rest", "amq.fanout"))
    peer.ask(C.Exchange.Declare(0, "e", "direct", arguments={"alternate-exchange": "amq.fanout"}))
    peer.ask(C.Queue.Bind(0, "a", "e", "a"))
    peer.publish("e", "none", b"x", properties=headers(CC=["a"]))
    assert waiting(world) == {b"a": 1, b"rest": 0}
    peer.publish("e", "none", b"x", properties=headers(CC=["nobody"]))
    assert waiting(world) == {b"a": 1, b"rest": 1}


@pytest.mark.parametrize(
    ("key", "reached", "said"), [(None, {b"dead", b"copy"}, ["copy"]), ("dead", {b"dead"}, None)]
)
async def test_a_dead_letter_goes_by_its_copies_unless_its_queue_says_where(
    key: str | None, reached: set[bytes], said: list[str] | None
) -> None:
    world, peer = await with_queues("dead", "copy")
    arguments = {"x-dead-letter-exchange": "", **({} if key is None else {"x-dead-letter-routing-key": key})}
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.ask(C.Queue.Declare(0, "dying", arguments=arguments))
    peer.ask(C.Queue.Bind(0, "dying", "e"))
    peer.publish("e", "dead", b"x", properties=headers(CC=["copy"]))
    peer.say(C.Basic.Get(0, "dying"))
    peer.method(C.Basic.Reject(1, False))
    assert {name for name, count in waiting(world).items() if count} == reached
    peer.method(C.Basic.Get(0, "dead", True))
    (_, head) = next(each for each in peer.frames() if isinstance(each[1], header.ContentHeader))
    assert head.properties.headers["x-death"][0]["routing-keys"] == ["dead", "copy"]
    assert head.properties.headers.get("CC") == said


async def test_keys_whose_routes_are_too_much_work_are_refused() -> None:
    world, peer = await with_queues("a", settings=DmpSettings(wild_words_max=1_000_000))
    for number in range(1024):
        words = [f"#.{'a*'[number >> bit & 1]}" for bit in range(10)]
        world.topology.bind(
            b"amq.topic", world.broker.queues[b"a"], ".".join([*words, *["#.a"] * 25]).encode()
        )
    key, *others = [".".join(["a"] * (60 + number)) for number in range(20)]
    peer.publish("amq.topic", key, b"x", properties=headers(CC=others))
    assert closed(peer) == ("Channel.Close", 406)
    assert waiting(world) == {b"a": 0}


async def test_a_durable_message_comes_back_from_the_disk_without_bcc(world: World, peer: Peer) -> None:
    for name in ("a", "b"):
        peer.ask(C.Queue.Declare(0, name, durable=True))
    properties = C.Basic.Properties(headers={"BCC": ["b"], "n": 1}, delivery_mode=2).marshal()
    peer.publish("", "a", b"x", properties=properties)
    world.settle()
    world = await world.again()
    assert waiting(world) == {b"a": 1, b"b": 1}
    for queue in world.broker.queues.values():
        message = queue.get(no_ack=True)
        assert message is not None
        assert message.head.headers == {"n": 1}
