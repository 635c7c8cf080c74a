"""Feeds: a queue's messages as they come, at most once; what keeps an application's queues. No sockets."""

import pytest
from pamqp import commands

from dmp import wire
from dmp.amqp.wire import Direct
from dmp.data_types import short
from dmp.declarations import QueueArguments
from dmp.feed import IDLE_SECONDS
from dmp.settings import DmpSettings
from dmp.wire import DMP_HEADER
from tests.dmp.amqp_peer import Peer as AmqpPeer
from tests.dmp.amqp_peer import bodies as contents
from tests.dmp.peers import Application, Peer, bodies, opened, packed
from tests.dmp.world import PERSISTENT, Taker, World, ready, singles


def names(first: int, last: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, last)]


def sent(peer: Peer, count: int) -> bytes:
    """So many bytes of what the server has written."""
    outbox = peer.connection.outbox
    data = b"".join(bytes(chunk) for chunk in outbox.chunks or ())  # type: ignore[arg-type]
    outbox.advance(count)
    return data[:count]


async def test_what_was_queued_before_goes_first(world: World, app: Application) -> None:
    app.queue(b"mine", b"quotes")
    world.publish(b"quotes", b"k", b"1", b"2")
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"3")
    assert bodies(feed.read + feed.connection.taken()) == [b"1", b"2", b"3"]
    assert world.broker.memory.total_bytes == 0


async def test_a_feed_is_idle_for_five_seconds_then_a_null_message_is_written(
    world: World, app: Application
) -> None:
    app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    assert feed.wait(IDLE_SECONDS - 0.1) == b""
    world.publish(b"quotes", b"k", b"x")
    feed.connection.now = world.clock.now
    assert bodies(feed.connection.taken()) == [b"x"]
    assert feed.wait(0.1) == b""
    assert feed.wait(IDLE_SECONDS) == wire.NULL_MESSAGE == bytes(4)
    assert feed.wait(IDLE_SECONDS) == wire.NULL_MESSAGE


async def test_who_asks_for_one_message_gets_none_while_a_feed_is_open() -> None:
    world, app = await opened(DmpSettings(feed_bytes_max=4096))
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    for name in names(0, 400):
        world.publish(b"quotes", b"k", name)
    assert queue.depth
    assert queue.get(True) is None
    feed.close()
    assert queue.get(True) is not None


async def test_null_messages_of_its_client_are_ignored_and_all_else_ends_it(
    world: World, app: Application
) -> None:
    app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    assert feed.say(bytes(6)) == b""
    assert not feed.connection.finished
    assert feed.say(packed(b"x")) == b"", "a text would be taken for a message"
    assert feed.connection.finished
    assert world.broker.counts.refusals == {"dmp INVALID": 1}


async def test_what_is_behind_an_answer_to_the_lease_that_never_left_goes_back(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = Peer(world)
    feed.session.receive(DMP_HEADER + short(app.feed_lease(b"mine")))
    world.publish(b"quotes", b"k", b"1", b"2")
    assert queue.depth == 0
    feed.close()
    assert ready(queue) == [b"1", b"2"]


async def test_what_is_being_sent_with_the_answer_to_the_lease_may_be_out_and_does_not_come_back(
    world: World, app: Application
) -> None:
    """So a driver sends that cannot see how much was written: over TLS."""
    queue = app.queue(b"mine", b"quotes")
    world.publish(b"quotes", b"k", b"1", b"2")
    feed = Peer(world)
    feed.session.receive(DMP_HEADER + short(app.feed_lease(b"mine")))
    feed.connection.outbox.begin()
    world.publish(b"quotes", b"k", b"3")
    feed.close()
    assert ready(queue) == [b"3"]


async def test_the_oldest_go_where_more_comes_back_than_the_queue_may_hold(
    world: World, app: Application
) -> None:
    limits = QueueArguments(messages_max=2)
    queue = app.queue(b"mine", b"quotes", arguments=limits)
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"1", b"2", b"3", b"4")
    assert queue.depth == 0
    feed.close()
    assert ready(queue) == [b"3", b"4"]
    assert world.broker.counts.overflowed == 2


async def test_very_much_that_was_not_sent_goes_back_in_turns_and_in_order(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    for name in names(0, 100):
        world.publish(b"quotes", name, name)
    consumer = Taker()
    queue.add_consumer(consumer)
    world.clock.step = 1.0
    feed.close()
    assert queue.depth < 100
    world.publish(b"quotes", b"k", b"new")
    assert consumer.bodies == []
    world.finish_work()
    assert consumer.bodies == [*names(0, 100), b"new"]


async def test_while_a_feed_is_open_consumers_get_nothing(world: World, app: Application) -> None:
    queue = app.queue(b"mine", b"quotes")
    consumer = Taker()
    queue.add_consumer(consumer)
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"1")
    app.sink(b"quotes").say(packed(b"2"))
    assert bodies(feed.connection.taken()) == [b"1", b"2"]
    feed.close()
    world.publish(b"quotes", b"k", b"3")
    assert consumer.bodies == [b"3"]


@pytest.mark.parametrize("by_sink", [True, False])
@pytest.mark.parametrize("cut", range(0, 60, 7))
async def test_a_message_is_gone_when_its_first_byte_is_written_and_no_earlier(
    world: World, app: Application, cut: int, by_sink: bool
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    if by_sink:
        app.sink(b"quotes").say(packed(*names(0, 10)))
    else:
        world.publish(b"quotes", b"k", *names(0, 10))
    size = len(packed(b"0000", exchange=b"" if by_sink else b"quotes"))
    sent(feed, cut)
    feed.close()
    gone = -(-cut // size)
    assert ready(queue) == names(gone, 10)
    assert not any(message.tries for message in singles(queue))
    assert world.broker.counts.delivered == gone
    again = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"new")
    assert not queue.row.ready
    again.close()


async def test_what_comes_back_stands_before_what_waited_behind_it() -> None:
    world, app = await opened(DmpSettings(feed_bytes_max=4096))
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    sink = app.sink(b"quotes")
    for number in range(10):
        sink.say(packed(b"%d" % number + bytes(999)))
    waiting = len(queue.row.ready)
    assert 0 < waiting < 10, "the outbox has a bound"
    feed.close()
    assert [message.bodies[0][:1] for message in singles(queue)] == [b"%d" % number for number in range(10)]
    assert world.broker.memory.total_bytes > 0
    assert bodies(app.feed(b"mine").read) == [b"%d" % number + bytes(999) for number in range(10)]
    assert world.broker.memory.total_bytes == 0


@pytest.mark.parametrize("half_closes", [False, True])
async def test_a_consumer_behind_a_feed_that_goes_gets_first_what_comes_back(half_closes: bool) -> None:
    world, app = await opened(DmpSettings(feed_bytes_max=4096))
    queue = app.queue(b"mine", b"quotes")
    feed, consumer = app.feed(b"mine"), Taker()
    for name in names(0, 400):
        world.publish(b"quotes", b"k", name)
    queue.add_consumer(consumer)
    if half_closes:
        feed.session.receive_eof()
        assert consumer.bodies == [], "some of what was given to the feed may come back"
    feed.close()
    assert consumer.bodies == names(0, 400)


async def test_an_application_consumes_exclusively_beside_its_own_feed(world: World, peer: AmqpPeer) -> None:
    peer.ask(commands.Queue.Declare(0, "own", exclusive=True))
    feed = Peer(world)
    feed.say(DMP_HEADER + short(peer.ask(Direct.Get("own")).lease.encode()))
    assert peer.ask(commands.Basic.Consume(0, "own", no_ack=True, exclusive=True)).name == "Basic.ConsumeOk"
    peer.publish("", "own", b"x")
    assert peer.frames() == []
    assert bodies(feed.connection.taken()) == [b"x"]
    feed.close()
    peer.publish("", "own", b"y")
    assert contents(peer.frames()) == [b"y"]


async def test_half_close_ends_a_feed_and_what_is_in_its_outbox_is_still_sent(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"1")
    feed.session.receive_eof()
    world.publish(b"quotes", b"k", b"2")
    assert bodies(feed.connection.taken()) == [b"1"]
    assert feed.connection.finished
    feed.close()
    assert ready(queue) == [b"2"]


async def test_a_feed_whose_reader_has_ended_takes_nothing_new_though_its_input_is_not_read_yet(
    world: World, app: Application
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"1")
    feed.session.hang_up()
    world.publish(b"quotes", b"k", b"2")
    app.sink(b"quotes").say(packed(b"3"))
    assert bodies(feed.connection.taken()) == [b"1"]
    feed.session.receive_eof()
    feed.close()
    assert ready(queue) == [b"2", b"3"]


async def test_a_feed_ends_with_its_queue(world: World, app: Application) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"1")
    world.topology.delete_queue(queue)
    assert bodies(feed.connection.taken()) == [b"1"]
    assert feed.connection.finished
    feed.close()
    app.close()


async def test_the_principal_closes_and_sink_and_feed_go_on_and_the_last_takes_the_queue_along() -> None:
    for first, last in (("sink", "feed"), ("feed", "sink")):
        world, app = await opened()
        queue = app.queue(b"mine", b"quotes")
        open_ = {"sink": app.sink(b"quotes"), "feed": app.feed(b"mine")}
        app.close()
        open_["sink"].say(packed(b"x"))
        assert bodies(open_["feed"].connection.taken()) == [b"x"]
        open_[first].close()
        assert not queue.deleted, f"the {last} is still there"
        open_[last].close()
        assert queue.deleted
        assert b"mine" not in world.broker.queues
        assert (world.broker.counts.sinks, world.broker.counts.feeds) == (0, 0)


async def test_the_exchange_of_a_message_is_as_it_was_givenor_the_publishs(
    world: World, app: Application
) -> None:
    app.queue(b"mine", b"quotes")
    feed, sink = app.feed(b"mine"), app.sink(b"quotes")
    sink.say(packed(b"1") + packed(b"2", exchange=b"quotes"))
    world.publish(b"quotes", b"k", b"3", properties=PERSISTENT)
    world.publish(b"", b"mine", b"4")
    found, _ = wire.take_messages(feed.connection.taken())
    assert [(each.exchange, each.key, each.body) for each in found] == [
        (b"", b"k", b"1"),
        (b"quotes", b"k", b"2"),
        (b"quotes", b"k", b"3"),
        (b"", b"mine", b"4"),
    ]
    assert found[2].properties == PERSISTENT


@pytest.mark.parametrize("cut", [0, 1, 5000, 5013, 5014, 20_000, 44_999])
async def test_what_is_left_of_a_large_read_goes_back_though_it_was_no_piece_of_its_own(
    world: World, app: Application, cut: int
) -> None:
    queue = app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    given = [b"%d" % number * 5000 for number in range(9)]
    data = packed(*given)
    app.sink(b"quotes").say(data + data[:700])
    sent(feed, cut)
    feed.close()
    assert ready(queue) == given[-(-cut // len(packed(given[0]))) :]


async def test_an_auto_delete_queue_goes_with_its_feed(world: World, app: Application) -> None:
    queue = app.queue(b"mine", b"quotes", auto_delete=True)
    consumer = Taker()
    queue.add_consumer(consumer)
    feed = app.feed(b"mine")
    queue.remove_consumers(consumer)
    world.topology.consumer_left(queue)
    assert not queue.deleted, "a feed counts as a consumer"
    feed.close()
    assert queue.deleted


async def test_a_feed_that_is_slow_is_not_idle(world: World, app: Application) -> None:
    app.queue(b"mine", b"quotes")
    feed = app.feed(b"mine")
    world.publish(b"quotes", b"k", b"x")
    waiting = feed.connection.outbox.size
    for _ in range(3):
        world.advance(IDLE_SECONDS)
        feed.connection.now = world.clock.now
        feed.session.on_deadline(world.clock.now)
    assert feed.connection.outbox.size == waiting
