"""Sinks: what is read goes where it should, in order, whatever the cuts; what is refused. No sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from dmp import wire
from dmp.data_types import short
from dmp.refusals import Code
from dmp.settings import DmpSettings
from dmp.wire import DMP_HEADER
from tests.dmp.peers import Application, Peer, bodies, opened, packed, pieces, texts
from tests.dmp.world import World, ready, singles

PERSISTENT = commands.Basic.Properties(delivery_mode=2).marshal()
REFUSED = "502 SYNTAX-ERROR"


async def test_messages_reach_the_queues_that_are_bound(app: Application) -> None:
    all_, some = app.queue(b"all", b"quotes"), app.queue(b"some", b"quotes", b"a.*")
    sink = app.sink(b"quotes")
    sink.say(packed(b"1", b"2", key=b"a.b") + packed(b"3", key=b"c") + packed(b"4", key=b"a.d"))
    assert (ready(all_), ready(some)) == ([b"1", b"2", b"3", b"4"], [b"1", b"2", b"4"])


async def test_the_default_exchange_is_a_sink_by_its_empty_name(app: Application) -> None:
    queue = app.queue(b"mine")
    sink = app.sink(b"")
    sink.say(packed(b"x", key=b"mine") + packed(b"y", key=b"nobody's"))
    assert ready(queue) == [b"x"]


async def test_what_comes_with_the_lease_in_one_read_is_not_lost(app: Application) -> None:
    queue = app.queue(b"all", b"quotes")
    Peer(app.world).say(DMP_HEADER + short(app.sink_lease(b"quotes")) + packed(b"x", b"y"))
    assert ready(queue) == [b"x", b"y"]


sent = st.tuples(
    st.sampled_from([b"a", b"b", b"a.b", b"none"]),
    st.sampled_from([b"", b"quotes"]),
    st.sampled_from([0, 3, 3, 3, 50]),
    st.sampled_from([wire.NO_PROPERTIES, PERSISTENT]),
    st.sampled_from([0, 0, 0, 2]),
    st.integers(1, 25),
    st.booleans(),
)


@given(st.lists(sent, max_size=12), st.lists(st.integers(0, 1 << 14), max_size=4), st.booleans())
async def test_any_messages_in_any_pieces_arrive_as_with_a_plain_reader(
    shapes: list[tuple[bytes, bytes, int, bytes, int, int, bool]], cuts: list[int], overlapping: bool
) -> None:
    """Against a plain model: every queue and feed has what its key asks for, each once and in order."""
    world, app = await opened()
    keys = {b"qa": b"a", b"qb": b"b", b"fa": b"a", b"fall": b"#" if overlapping else b"b"}
    queues = {name: app.queue(name, b"quotes", key) for name, key in keys.items()}
    durable = world.queue(b"d", durable=True)
    world.topology.bind(b"quotes", durable, b"a.#")
    feeds = {name: app.feed(name) for name in (b"fa", b"fall")}
    sink = app.sink(b"quotes")
    data, model, number = b"", [], 0
    for key, exchange, size, properties, options, count, null in shapes:
        for _ in range(count):
            body = (b"%d." % number).ljust(size, b"x")
            model.append((key, exchange, body, properties))
            data += packed(body, key=key, exchange=exchange, properties=properties, options=options)
            number += 1
        data += wire.NULL_MESSAGE * null
    for piece in pieces(data, cuts):
        assert sink.say(piece) == b""
    world.settle()

    def wanted(pattern: bytes) -> list[bytes]:
        return [body for key, _, body, _ in model if pattern in (key, b"#")]

    assert ready(queues[b"qa"]) == wanted(b"a")
    assert ready(queues[b"qb"]) == wanted(b"b")
    assert ready(durable) == [body for key, _, body, _ in model if key in (b"a", b"a.b")]
    assert all(message.head.exchange == b"quotes" for message in singles(durable))
    for name, feed in feeds.items():
        found, _ = wire.take_messages(feed.connection.taken())
        assert [(m.key, m.exchange, m.body, m.properties) for m in found] == [
            each for each in model if keys[name] in (each[0], b"#")
        ]
        assert all(not message.options for message in found)
    counts = world.broker.counts
    assert counts.published == counts.sunk == number
    assert counts.published_bytes == sum(len(body) for _, _, body, _ in model)
    assert counts.unroutable == (0 if overlapping else len(wanted(b"none")))


async def test_what_comes_waits_in_the_queue_while_the_feed_has_no_room(app: Application) -> None:
    queue = app.queue(b"all", b"quotes")
    feed = app.feed(b"all")
    sink = app.sink(b"quotes")
    sink.say(packed(b"1"))
    feed.connection.outbox.bound = -1  # no room
    sink.say(packed(b"2", b"3"))
    sink.say(packed(b"4"))
    assert ready(queue) == [b"2", b"3", b"4"]
    feed.connection.outbox.bound = 1 << 20
    sink.say(packed(b"5"))
    queue.dispatch()
    assert bodies(feed.connection.taken()) == [b"1", b"2", b"3", b"4", b"5"]


async def test_order_holds_for_a_queue_that_two_sets_of_queues_share(app: Application) -> None:
    app.queue(b"both", b"quotes", b"#")
    one = app.queue(b"one", b"quotes", b"a")
    feed = app.feed(b"both")
    sink = app.sink(b"quotes")
    names = [b"%d" % n for n in range(40)]
    sink.say(b"".join(packed(name, key=b"ab"[n % 2 : n % 2 + 1]) for n, name in enumerate(names)))
    assert bodies(feed.connection.taken()) == names
    assert ready(one) == names[::2]


async def test_bindings_that_change_count_at_once(world: World, app: Application) -> None:
    first = app.queue(b"first", b"quotes")
    sink = app.sink(b"quotes")
    sink.say(packed(b"1"))
    second = app.queue(b"second", b"quotes")
    sink.say(packed(b"2"))
    world.topology.unbind(b"quotes", first, b"#")
    sink.say(packed(b"3"))
    assert (ready(first), ready(second)) == ([b"1", b"2"], [b"2", b"3"])


@pytest.mark.parametrize(
    "wrong",
    [
        packed(b"x", exchange=b"other"),
        packed(b"x", properties=b"\0\x01"),
        packed(b"x", properties=b"\0\x02"),
        (9).to_bytes(4, "big") + packed(b"x")[4:],
        (100).to_bytes(4, "big") + packed(b"x")[4:] + bytes(100),
        (10 + 64).to_bytes(4, "big") + packed(b"x")[4:] + b"surplus." * 8,
        bytes.fromhex("00000008 ff ff 0000 00000000"),
        bytes.fromhex("00000008 00 ff 0000 00000000"),
        bytes.fromhex("0000000c 00 00 8000 ff 000000 00000000"),
        bytes.fromhex("00000005 00 00 0000 00"),
        bytes.fromhex("ffffffff"),
        bytes.fromhex("08 000000 00000000"),
        b"GET / HTTP/1.1\r\n\r\n",
        packed(b"x", properties=commands.Basic.Properties(expiration="soon").marshal()),
    ],
)
async def test_what_is_malformed_is_refused_and_what_came_before_it_stands(
    world: World, app: Application, wrong: bytes
) -> None:
    queue = app.queue(b"all", b"quotes")
    other = app.sink(b"quotes")
    sink = app.sink(b"quotes")
    (said,) = texts(sink.say(packed(b"before") + wrong + packed(b"behind")))
    assert said.startswith(REFUSED)
    assert sink.connection.finished
    other.say(packed(b"another's"))
    assert ready(queue) == [b"before", b"another's"]
    assert world.broker.counts.refusals == {"dmp SYNTAX_ERROR": 1}


async def test_what_has_come_of_a_large_message_counts_against_the_bound_of_all(app: Application) -> None:
    sink = app.sink(b"quotes")
    whole = packed(bytes(200_000))
    sink.say(whole[:80_000])
    assert sink.connection.held_bytes == 80_000
    sink.say(whole[80_000:150_000])
    assert sink.connection.held_bytes == 150_000
    sink.say(whole[150_000:])
    assert sink.connection.held_bytes == 0
    medium = packed(bytes(50_000))
    sink.say(medium[:30_000])
    assert sink.connection.held_bytes == 30_000
    sink.say(medium[30_000:])
    assert sink.connection.held_bytes == 0


async def test_the_largest_body_is_a_setting() -> None:
    _, app = await opened(DmpSettings(message_bytes_max=100))
    queue = app.queue(b"all", b"quotes")
    sink = app.sink(b"quotes")
    (said,) = texts(sink.say(packed(bytes(100)) + packed(bytes(101))))
    assert said == "502 SYNTAX-ERROR a body of 101 bytes, 100 at most"
    assert ready(queue) == [bytes(100)]


async def test_a_message_begun_is_finished_in_time() -> None:
    _, app = await opened(DmpSettings(frame_seconds=30))
    sink = app.sink(b"quotes")
    whole = packed(b"x")
    sink.say(whole + whole[:5])
    assert sink.wait(20) == b""
    sink.say(whole[5:8])  # which does not buy time
    (said,) = texts(sink.wait(10))
    assert said == "502 SYNTAX-ERROR a message was not complete after 30 s"


async def test_idle_between_messages_is_allowed(app: Application) -> None:
    queue = app.queue(b"all", b"quotes")
    sink = app.sink(b"quotes")
    sink.say(packed(b"x"))
    assert sink.wait(3600) == b""
    sink.say(packed(b"y"))
    assert ready(queue) == [b"x", b"y"]


async def test_the_end_of_input_is_answered_with_the_end(app: Application) -> None:
    queue = app.queue(b"all", b"quotes")
    sink = app.sink(b"quotes")
    sink.say(packed(b"x") + packed(b"y")[:-1])
    sink.session.receive_eof()
    assert sink.connection.finished
    assert ready(queue) == [b"x"]


async def test_mandatory_and_immediate_come_back_to_the_principal(world: World, app: Application) -> None:
    app.exchange(b"nobody", "direct")
    sink = app.sink(b"nobody")
    sink.say(
        packed(b"plain") + packed(b"m1", b"m2", options=2) + packed(b"i", options=1) + packed(b"b", options=3)
    )
    assert app.returned == [
        (Code.NO_ROUTE, b"nobody", b"m1"),
        (Code.NO_ROUTE, b"nobody", b"m2"),
        (Code.NO_CONSUMERS, b"nobody", b"i"),
        (Code.NO_ROUTE, b"nobody", b"b"),
    ]
    assert world.broker.counts.unroutable == 5
    app.queue(b"all", b"quotes")
    sink = app.sink(b"quotes")
    app.returned.clear()
    sink.say(packed(b"waits", options=2) + packed(b"cannot wait", options=1))
    assert app.returned == [(Code.NO_CONSUMERS, b"quotes", b"cannot wait")]
    app.world.broker.queues[b"all"].purge()
    feed = app.feed(b"all")
    sink.say(packed(b"now", options=1))
    assert bodies(feed.connection.taken()) == [b"now"]


async def test_a_sink_whose_exchange_goes_is_told_so(world: World, app: Application) -> None:
    sink = app.sink(b"quotes")
    sink.say(packed(b"x"))
    world.topology.delete_exchange(b"quotes")
    assert texts(sink.say(packed(b"y"))) == ["404 NOT-FOUND the exchange is gone"]
    assert sink.connection.finished


async def test_a_name_of_another_user_is_refused(app: Application) -> None:
    sink = app.sink(b"quotes")
    sink.say(packed(b"x", properties=commands.Basic.Properties(user_id="guest").marshal()))
    (said,) = texts(sink.say(packed(b"x", properties=commands.Basic.Properties(user_id="root").marshal())))
    assert said.startswith("403 NO-ACCESS")


async def test_a_sink_that_outlives_its_application_speaks_for_no_user(app: Application) -> None:
    queue = app.queue(b"other")
    lease = app.sink_lease(b"")
    app.close()
    sink = app.open(lease)
    sink.say(packed(b"x", key=b"nobody"))
    assert sink.fault is None
    properties = commands.Basic.Properties(user_id="guest").marshal()
    (said,) = texts(sink.say(packed(b"x", key=b"nobody", properties=properties)))
    assert said.startswith("403 NO-ACCESS")
    assert queue.deleted


async def test_a_sink_waits_while_memory_is_full_and_loses_nothing() -> None:
    world, app = await opened(DmpSettings(memory_bytes_max=1 << 20))
    queue = app.queue(b"all", b"quotes")
    sink = app.sink(b"quotes")
    for n in range(12):
        sink.say(packed(*[b"%03d" % n + bytes(1000)] * 100))
    assert not sink.connection.reading
    assert sink.session.waits_for == ["memory for messages"]
    assert world.broker.counts.memory_waits == 1
    held = len(queue.row.ready)
    assert held < 1200
    queue.purge()
    sink.wait(0)
    assert sink.connection.reading
    assert held + len(queue.row.ready) == 1200


async def test_persistent_messages_of_a_sink_outlive_a_restart(world: World, app: Application) -> None:
    queue = world.queue(b"d", durable=True)
    world.topology.bind(b"amq.topic", queue, b"#")
    sink = app.sink(b"amq.topic")
    sink.say(packed(b"kept", b"kept too", properties=PERSISTENT) + packed(b"light"))
    world.settle()
    after = await world.again()
    assert ready(after.broker.queues[b"d"]) == [b"kept", b"kept too"]


async def test_a_store_that_takes_no_writes_is_an_internal_error(world: World, app: Application) -> None:
    queue = world.queue(b"d", durable=True)
    world.topology.bind(b"quotes", queue, b"#")
    sink = app.sink(b"quotes")
    world.store.abandon()
    (said,) = texts(sink.say(packed(b"x", properties=PERSISTENT)))
    assert said.startswith("541 INTERNAL-ERROR")
    assert ready(queue) == []
    assert world.broker.counts.refused_publishes == 1
