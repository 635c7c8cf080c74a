"""Routing without a wire: four types, exchanges behind exchanges, what goes with what."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, encode

from dmp.data_types import joined_tables
from dmp.declarations import Binding, ExchangeKind, QueueArguments, QueueKind
from dmp.exchanges import Exchange
from dmp.message import Head
from dmp.refusals import Code, Refusal
from dmp.settings import DmpSettings
from tests.dmp.world import World


def queue(world: World, name: bytes, **kind: Any) -> Any:
    return world.topology.declare_queue(name, QueueKind(**kind), world.owner)[0]


def exchange(world: World, name: bytes, type_: str, **kind: Any) -> Any:
    world.topology.declare_exchange(name, ExchangeKind(type_, **kind))
    return world.topology.exchange(name)


def bind(world: World, source: bytes, destination: Any, key: bytes = b"", **arguments: Any) -> None:
    world.topology.bind(source, destination, key, encode.field_table(arguments))


def routed(world: World, name: bytes, key: bytes = b"", headers: dict[str, Any] | None = None) -> set[bytes]:
    properties = commands.Basic.Properties(headers=headers).marshal()
    return {found.name for found in world.broker.route(name, Head(name, key, 0, properties))}


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (b"#", [b"", b"a", b"a.b"], []),
        (b"#.#", [b"", b"a"], []),
        (b"*", [b"a"], [b"", b"a.b"]),
        (b"*.#", [b"a", b"a.b", b"."], [b""]),
        (b"#.", [b"a.", b"."], [b""]),
        (b"", [b""], [b"a", b"."]),
        (b"a.*.c", [b"a.b.c", b"a..c"], [b"a.c", b"a.b.b.c"]),
        (b"a.#.c", [b"a.c", b"a.b.c", b"a.b.b.c"], [b"a.b", b"c"]),
        (b"#.error", [b"error", b"app.error", b"a.b.error"], [b"error.a"]),
        (b"a.b", [b"a.b"], [b"a", b"a.b.c", b"A.b"]),
        (b"a*.b", [b"a*.b"], [b"ax.b"]),
    ],
)
async def test_topics_match_by_words(
    world: World, pattern: bytes, matching: list[bytes], others: list[bytes]
) -> None:
    exchange(world, b"t", "topic")
    bind(world, b"t", queue(world, b"q"), pattern)
    assert all(routed(world, b"t", key) == {b"q"} for key in matching)
    assert all(routed(world, b"t", key) == set() for key in others)


async def test_direct_and_fanout_and_the_default(world: World) -> None:
    for name in (b"one", b"two"):
        bind(world, b"amq.direct", queue(world, name), b"k-" + name)
        bind(world, b"amq.fanout", queue(world, name), b"ignored")
    assert routed(world, b"amq.direct", b"k-one") == {b"one"}
    assert routed(world, b"amq.direct", b"k") == set()
    assert routed(world, b"amq.fanout", b"whatever") == {b"one", b"two"}
    assert routed(world, b"", b"two") == {b"two"}
    assert routed(world, b"", b"none") == set()
    with pytest.raises(Refusal):
        routed(world, b"none")


async def test_a_message_goes_to_each_queue_once(world: World) -> None:
    exchange(world, b"t", "topic")
    bound = queue(world, b"q")
    for pattern in (b"#", b"a.*", b"a.b"):
        bind(world, b"t", bound, pattern)
    world.publish(b"t", b"a.b", b"once")
    assert len(bound.row.ready) == 1


async def test_exchanges_in_a_circle_are_walked_once(world: World) -> None:
    one, two = exchange(world, b"1", "fanout"), exchange(world, b"2", "fanout")
    bind(world, b"1", two)
    bind(world, b"2", one)
    bind(world, b"2", queue(world, b"q"))
    assert routed(world, b"1") == {b"q"}


async def test_the_alternate_exchange_gets_what_nobody_wants(world: World) -> None:
    exchange(world, b"main", "direct", alternate=b"amq.fanout")
    bind(world, b"main", queue(world, b"q"), b"k")
    bind(world, b"amq.fanout", queue(world, b"rest"))
    assert routed(world, b"main", b"k") == {b"q"}
    assert routed(world, b"main", b"other") == {b"rest"}


@pytest.mark.parametrize(
    ("arguments", "headers", "fits"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": None}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "x"}, {"a": bytearray(b"x")}, True),
        ({"x-y": 1}, {}, True),
        ({"x-match": "all-with-x", "x-y": 1}, {}, False),
        ({"x-match": "any-with-x", "x-y": 1}, {"x-y": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({}, {}, True),
    ],
)
def test_headers_fit_a_binding_by_all_or_any_of_its_arguments(
    arguments: dict[str, Any], headers: dict[str, Any], fits: bool
) -> None:
    exchange, leads_to = (Exchange(b"e", ExchangeKind(type_)) for type_ in ("headers", "fanout"))
    exchange.add(Binding(b"e", b"to", True, b"", b""), leads_to, arguments)
    assert list(exchange.match(having(headers))) == [leads_to] * fits
    assert fit(arguments, headers) is fits


def having(headers: dict[str, Any]) -> Any:
    """A message with these headers."""
    return SimpleNamespace(headers=headers)


def fit(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """Whether a message with these headers goes where these arguments are bound: the plain definition."""
    with_x = arguments.get("x-match", "all").endswith("-with-x")
    counting = [name for name in arguments if name != "x-match" and (with_x or not name.startswith("x-"))]
    there = [
        name in headers and (arguments[name] is None or same(arguments[name], headers[name]))
        for name in counting
    ]
    return all(there) if arguments.get("x-match", "all").startswith("all") else any(there)


def same(one: object, other: object) -> bool:
    """Whether two values are one, however they are written."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    one, other = (value.encode() if isinstance(value, str) else value for value in (one, other))
    return one == other


async def test_a_binding_is_the_same_in_whatever_order_its_arguments_stand(world: World) -> None:
    """A client whose tables have no order unbinds what it has bound, also before and after a restart."""
    bound = queue(world, b"q", durable=True)
    one, other = (joined_tables(*(encode.field_table({name: 1}) for name in names)) for names in ("ab", "ba"))
    world.topology.bind(b"amq.headers", bound, b"", other)
    assert world.topology.bind(b"amq.headers", bound, b"", one) is None
    world.settle()
    after = await world.again()
    assert after.broker.bindings == 1
    after.topology.unbind(b"amq.headers", after.broker.queues[b"q"], b"", other)
    after.settle()
    assert (await after.again()).broker.bindings == 0


async def test_an_older_folder_may_have_a_binding_twice_in_two_orders(world: World) -> None:
    queue(world, b"q", durable=True)
    for names in ("ab", "ba"):
        table = joined_tables(*(encode.field_table({name: 1}) for name in names))
        world.broker.topology_table.put_binding(Binding(b"amq.headers", b"q", False, b"", table))
    world.settle()
    after = await world.again()
    assert after.broker.bindings == 1
    after.topology.unbind(b"amq.headers", after.broker.queues[b"q"], b"", table)
    after.settle()
    assert (await after.again()).broker.bindings == 0


async def test_a_binding_that_makes_no_sense_is_refused_before_anything_is_written(world: World) -> None:
    bound = queue(world, b"q", durable=True)
    with pytest.raises(Refusal, match="x-match"):
        bind(world, b"amq.headers", bound, **{"x-match": "some"})
    world.settle()
    after = await world.again()
    assert after.broker.bindings == 0


async def test_what_is_deleted_takes_its_bindings_along(world: World) -> None:
    exchange(world, b"e", "fanout", auto_delete=True, durable=True)
    bound = queue(world, b"q", durable=True)
    bind(world, b"e", bound)
    bind(world, b"amq.fanout", world.topology.exchange(b"e"))
    world.topology.delete_queue(bound)
    assert b"e" not in world.broker.exchanges
    assert world.broker.bindings == 0
    world.settle()
    after = await world.again()
    assert (after.broker.bindings, set(after.broker.queues)) == (0, set())
    assert b"e" not in after.broker.exchanges


async def test_an_exchange_that_is_bound_to_itself_can_be_deleted(world: World) -> None:
    exchange(world, b"e", "fanout", durable=True)
    bind(world, b"e", world.topology.exchange(b"e"))
    ticket = world.topology.delete_exchange(b"e")
    world.settle()
    assert ticket is not None
    assert (ticket.done, ticket.error) == (True, None)
    assert (world.broker.bindings, world.broker.counts.crashes) == (0, 0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.PRECONDITION_FAILED, {"durable": True}),
        (Code.PRECONDITION_FAILED, {"auto_delete": True}),
        (Code.PRECONDITION_FAILED, {"arguments": QueueArguments(ttl_ms=5)}),
        (Code.RESOURCE_LOCKED, {"exclusive": True}),
    ],
)
async def test_a_queue_is_declared_again_just_as_it_was(
    world: World, code: Code, kind: dict[str, Any]
) -> None:
    first = queue(world, b"q")
    assert queue(world, b"q") is first
    with pytest.raises(Refusal) as error:
        queue(world, b"q", **kind)
    assert error.value.code is code


async def test_deletes_that_ask_first(world: World) -> None:
    bound = queue(world, b"q")
    bind(world, b"amq.fanout", bound)
    world.publish(b"", b"q", b"x")
    with pytest.raises(Refusal, match="not empty"):
        world.topology.delete_queue(bound, if_empty=True)
    exchange(world, b"e", "direct")
    bind(world, b"e", bound)
    with pytest.raises(Refusal, match="in use"):
        world.topology.delete_exchange(b"e", if_unused=True)
    assert world.topology.delete_queue(bound)[0] == 1
    world.topology.delete_exchange(b"e", if_unused=True)


async def test_there_is_a_bound_of_everything() -> None:
    world = await World.open(DmpSettings(queues_max=2, exchanges_max=16, bindings_max=2))
    one, _ = queue(world, b"1"), queue(world, b"2")
    with pytest.raises(Refusal, match="queues_max"):
        queue(world, b"3")
    bind(world, b"amq.direct", one, b"1")
    bind(world, b"amq.direct", one, b"2")
    bind(world, b"amq.direct", one, b"2")
    with pytest.raises(Refusal, match="bindings_max"):
        bind(world, b"amq.direct", one, b"3")
    for n in range(len(world.broker.exchanges), 16):
        exchange(world, b"%d" % n, "direct")
    with pytest.raises(Refusal, match="exchanges_max"):
        exchange(world, b"one more", "direct")


async def test_topic_bindings_of_many_wildcards_have_a_bound_and_durable_ones_come_back() -> None:
    world = await World.open(DmpSettings(wild_words_max=12))
    bound = queue(world, b"q", durable=True)
    exchange(world, b"t", "topic", durable=True)
    for key in (b"*.*.*", b"a*.b*.c#.d#.e*", b"#.a.#.b.#.c.#", b"*.*.*.#.x"):
        bind(world, b"t", bound, key)
    bind(world, b"amq.direct", bound, b"#.a.#.b.#.c.#")
    assert world.broker.wild_words == 12
    with pytest.raises(Refusal, match="wild_words_max"):
        bind(world, b"t", bound, b"*.*.*.*")
    world.topology.unbind(b"t", bound, b"*.*.*.#.x")
    bind(world, b"t", bound, b"*.*.*.*")
    assert world.broker.wild_words == 11
    world.settle()
    world.store.abandon()
    again = await World.open(DmpSettings(wild_words_max=0), world.disk.kill())
    assert again.broker.wild_words == 11
    assert routed(again, b"t", b"1.2.3.4") == {b"q"}
    again.topology.delete_exchange(b"t")
    assert again.broker.wild_words == 0


SIMPLE = st.sampled_from([None, True, False, 0, 1, 2, 1.0, "1", b"1", bytearray(b"1")])
NESTED = st.sampled_from([[1], [True], [b"1"], [bytearray(b"1")], {"a": 1}, {"a": 1.0}, {"a": [1, {}]}])
VALUES = SIMPLE | NESTED
TABLES = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", "?a", "=a"]), VALUES, max_size=4)
MATCHES = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


@given(
    tables=st.lists(st.tuples(TABLES, MATCHES, st.integers(0, 3)), max_size=12),
    gone=st.sets(st.integers(0, 11)),
    headers=st.lists(TABLES, min_size=1, max_size=4),
)
def test_the_bindings_found_are_those_that_fit(
    tables: list[tuple[dict[str, Any], str, int]],
    gone: set[int],
    headers: list[dict[str, Any]],
) -> None:
    """Of several destinations: some bindings differ in their keys only, some in where they lead."""
    kind = ExchangeKind("fanout")
    places = [Exchange(b"%d" % number, kind) for number in range(4)]
    exchange = Exchange(b"h", ExchangeKind("headers"))
    bindings: dict[Binding, dict[str, Any]] = {}
    for number, (table, match, place) in enumerate(tables):
        arguments = {**table, "x-match": match}
        same = repr(sorted(arguments.items(), key=str)).encode()
        binding = Binding(b"h", places[place].name, True, b"%d" % number, same)
        bindings[binding] = arguments
        exchange.add(binding, places[place], arguments)
    for number, binding in enumerate(list(bindings)):
        if number in gone:
            exchange.remove(binding)
            del bindings[binding]
    for each in headers:
        fitting = {binding.destination for binding, wanted in bindings.items() if fit(wanted, each)}
        assert {
            place.name for place in exchange.match(having(each)) if isinstance(place, Exchange)
        } == fitting


async def test_bindings_that_differ_in_arguments_only_are_two(world: World) -> None:
    bound = queue(world, b"q")
    bind(world, b"amq.direct", bound, b"k", n=1)
    bind(world, b"amq.direct", bound, b"k", n=2)
    world.topology.unbind(b"amq.direct", bound, b"k", encode.field_table({"n": 1}))
    assert routed(world, b"amq.direct", b"k") == {b"q"}
    world.topology.unbind(b"amq.direct", bound, b"k", encode.field_table({"n": 2}))
    world.topology.unbind(b"amq.direct", bound, b"k", encode.field_table({"n": 2}))
    assert routed(world, b"amq.direct", b"k") == set()
    assert world.broker.bindings == 0
