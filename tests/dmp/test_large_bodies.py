"""Bodies above message_bytes_max: written as they come, read as they go, and never held whole."""

import random

import pytest
from pamqp import commands
from trio.testing import MockClock

from dmp.amqp.wire import FRAME_OVERHEAD, encode
from dmp.bodies import PART_BYTES
from dmp.queue_log import QueueLog
from dmp.settings import DmpSettings
from shared.errors import StoreFull
from tests.dmp.amqp_peer import Peer, bodies, closed, content_header, opened, publish
from tests.dmp.peers import Application
from tests.dmp.peers import bodies as feed_bodies
from tests.dmp.world import PERSISTENT, World, singles
from tests.support.commits import NO_SPACE, leave_free
from tests.support.explore import sampled_states

C = commands
SMALL = DmpSettings(message_bytes_max=1000, body_bytes_max=1 << 20, begun_bytes_max=1 << 30)
PASSING = b"\0\0"
PAYLOAD_MAX = SMALL.frame_bytes_max - FRAME_OVERHEAD


def body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def declared(settings: DmpSettings = SMALL, **options: object) -> tuple[World, Peer]:
    """A durable queue `q`, and a channel in confirm mode."""
    world, peer = await opened(settings)
    peer.ask(C.Queue.Declare(0, "q", durable=True, **options))  # type: ignore[arg-type]
    peer.ask(C.Confirm.Select())
    return world, peer


def published(world: World, peer: Peer, *contents: bytes, properties: bytes = PERSISTENT) -> list[str]:
    peer.publish("", "q", *contents, properties=properties, part=PAYLOAD_MAX)
    world.settle()
    return peer.names()


@pytest.mark.parametrize("size", [1001, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 700_000])
@pytest.mark.parametrize("properties", [PERSISTENT, PASSING], ids=["persistent", "passing"])
async def test_a_large_body_comes_as_it_was_sent_by_get_and_to_consumers(
    size: int, properties: bytes
) -> None:
    world, peer = await declared()
    content = body(size)
    assert published(world, peer, content, b"small", properties=properties) == ["Basic.Ack"]
    assert world.broker.memory.total_bytes < 2000
    frames = peer.say(C.Basic.Get(0, "q"))
    assert [value.name for _, value in frames[:2]] == ["Basic.GetOk", "ContentHeader"]
    assert frames[1][1].body_size == size
    assert b"".join(bodies(frames)) == content
    assert max(map(len, bodies(frames))) <= PAYLOAD_MAX
    peer.method(C.Basic.Nack(1, requeue=True))
    other = Peer(world).login(frame_max=4096)
    frames = other.say(C.Basic.Consume(0, "q"))
    assert frames[1][1].redelivered
    assert b"".join(bodies(frames)) == content + b"small", "each behind the other"
    other.method(C.Basic.Ack(0, multiple=True))
    world.settle()
    assert (len(world.broker.bodies), world.body_logs) == (0, [])


async def test_what_comes_between_the_frames_of_a_large_body_is_another_channels() -> None:
    world, peer = await declared()
    peer.ask(C.Channel.Open(), 2)
    data = publish("", "q", body(5000), properties=PERSISTENT, part=700)
    for at in range(0, len(data), 999):
        peer.send(data[at : at + 999])
    half = publish("", "q", body(6000), part=3000)
    cut = half.index(b"\x03\0\x01\0\0")
    peer.send(half[: cut + 3008] + publish("", "q", b"other", channel=2) + half[cut + 3008 :])
    world.settle()
    assert [peer.ask_get("q") for _ in range(3)] == [body(5000), b"other", body(6000)]


async def test_little_of_a_large_body_is_in_memory_while_it_comes_and_while_it_goes() -> None:
    world, peer = await declared()
    content = body(1 << 20)
    data = publish("", "q", content, properties=PERSISTENT, part=PAYLOAD_MAX)
    most = 0
    for at in range(0, len(data), 100_000):
        peer.send(data[at : at + 100_000])
        most = max(most, peer.connection.held_bytes + world.broker.memory.total_bytes)
        world.settle()
    assert most < PART_BYTES + 2 * SMALL.frame_bytes_max
    consumer = Peer(world).login()
    consumer.method(C.Basic.Consume(0, "q"))
    outbox = consumer.connection.outbox
    assert outbox.size > 1 << 20
    assert outbox.memory_bytes < 2000
    assert b"".join(bodies(consumer.frames())) == content


async def test_a_large_body_is_there_again_after_a_restart_and_goes_with_its_acknowledgement() -> None:
    world, peer = await declared()
    content = body(400_000)
    published(world, peer, b"small", content, b"behind")
    published(world, peer, body(2000), properties=PASSING)
    assert len(world.body_logs) == 2
    world = await world.again()
    assert len(world.body_logs) == 1, "what is not persistent has gone"
    queue = world.broker.queues[b"q"]
    assert [world.body(message) for message in singles(queue)] == [b"small", content, b"behind"]
    consumer = Peer(world).login()
    consumer.say(C.Basic.Consume(0, "q"))
    consumer.method(C.Basic.Ack(0, multiple=True))
    world.settle()
    assert world.body_logs == []
    world = await world.again()
    assert (world.broker.queues[b"q"].depth, world.broker.bodies.unclaimed) == (0, 0)


async def test_a_body_that_several_queues_have_is_written_once() -> None:
    world, peer = await declared()
    peer.ask(C.Queue.Declare(0, "passing"))
    peer.ask(C.Queue.Declare(0, "other", durable=True))
    for queue in ("q", "passing", "other"):
        peer.ask(C.Queue.Bind(0, queue, "amq.fanout"))
    peer.publish("amq.fanout", "", body(5000), properties=PERSISTENT)
    world.settle()
    assert peer.names() == ["Basic.Ack"]
    assert len(world.body_logs) == 1
    peer.ask(C.Queue.Purge(0, "q"))
    peer.ask(C.Queue.Delete(0, "passing"))
    world = await world.again()
    assert len(world.body_logs) == 1
    peer = Peer(world).login()
    assert peer.ask_get("other") == body(5000)
    world.settle()
    assert world.body_logs == []


@pytest.mark.parametrize("target", [True, False], ids=["durable", "passing"])
async def test_a_dead_letter_takes_its_large_body_along(target: bool) -> None:
    world, peer = await declared(
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    peer.ask(C.Queue.Declare(0, "dead", durable=target))
    published(world, peer, body(5000), body(3000))
    peer.say(C.Basic.Get(0, "q"))
    peer.method(C.Basic.Reject(1, False))
    world.settle()
    if target:
        world = await world.again()
        peer = Peer(world).login()
    assert peer.ask_get("dead") == body(5000)
    assert peer.ask_get("q") == body(3000)
    world.settle()
    assert world.body_logs == []


async def test_what_expires_overflows_or_goes_with_its_queue_takes_its_body_along() -> None:
    world, peer = await declared(arguments={"x-message-ttl": 5000, "x-max-length": 2})
    published(world, peer, body(2000), body(3000), body(4000))
    world.settle()
    assert len(world.body_logs) == 2
    world.advance(6)
    world.settle()
    assert world.body_logs == []
    published(world, peer, body(2000))
    peer.ask(C.Queue.Delete(0, "q"))
    world.settle()
    assert world.body_logs == []


@pytest.mark.parametrize("close", ["channel", "connection"])
async def test_what_begins_and_never_ends_is_removed(close: str) -> None:
    world, peer = await declared()
    begun = publish("", "q", body(900_000), properties=PERSISTENT, part=PAYLOAD_MAX)[:600_000]
    peer.send(begun)
    world.settle()
    assert len(world.body_logs) == 1
    after = await world.again()
    assert after.body_logs == []
    assert after.broker.bodies.unclaimed == 0
    world, peer = await declared()
    peer.send(begun)
    if close == "connection":
        peer.lose()
    else:
        rest = publish("", "q", body(900_000), properties=PERSISTENT, part=PAYLOAD_MAX)[600_000:]
        end = rest.index(b"\xce\x03\0\x01") + 1
        peer.send(rest[:end] + encode(C.Basic.Qos(), 1))
        assert closed(peer) == ("Connection.Close", 505)
    world.settle()
    assert (world.body_logs, world.broker.bodies.begun_bytes) == ([], 0)


async def test_large_bodies_that_have_begun_have_a_bound_for_each_connection_and_for_all() -> None:
    world = await World.open(DmpSettings(message_bytes_max=1000, body_bytes_max=5000, begun_bytes_max=12_000))
    begin = encode(C.Basic.Publish(0, "", "q"), 1) + content_header(5000)
    peers = [Peer(world).login() for _ in range(3)]
    for peer in peers:
        peer.send(begin)
    assert closed(peers[2]) == ("Connection.Close", 506)
    peers[0].lose()
    Peer(world).login().send(begin)
    assert world.broker.bodies.begun_bytes == 10_000
    peers[1].send(encode(C.Channel.Open(), 2) + begin.replace(b"\0\x01\0\0", b"\0\x02\0\0"))
    world = await World.open(DmpSettings(message_bytes_max=1000, body_bytes_max=5000))
    peer = Peer(world).login()
    for number in range(2, 5):
        publish_ = encode(C.Basic.Publish(0, "", "q"), number)
        peer.send(encode(C.Channel.Open(), number) + publish_ + content_header(5000, channel=number))
    assert closed(peer) == ("Connection.Close", 506)
    assert world.broker.bodies.begun_bytes == 0


async def test_a_large_body_that_does_not_come_makes_room_for_others() -> None:
    world, peer = await declared()
    data = publish("", "q", body(900_000), properties=PERSISTENT, part=PAYLOAD_MAX)
    peer.send(data[:100_000])
    peer.advance(20)
    peer.send(data[100_000:500_000])
    world.settle()
    peer.advance(20)
    peer.send(data[500_000:550_000])
    assert world.broker.bodies.begun_bytes == 900_000
    peer.advance(15)
    assert closed(peer) == ("Connection.Close", 506)
    world.settle()
    assert (world.broker.bodies.begun_bytes, world.body_logs) == (0, [])
    assert world.broker.counts.too_late == 1


async def test_a_body_stays_while_it_is_not_written_that_its_message_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, peer = await declared()
    published(world, peer, body(2000))
    monkeypatch.setattr(QueueLog, "flush", failing)
    assert peer.ask_get("q") == body(2000)
    world.settle()
    (message,) = singles((await world.again()).broker.queues[b"q"])
    assert message.tries


def failing(log: QueueLog) -> None:
    raise StoreFull("no room")


@pytest.mark.parametrize("confirms", [True, False])
async def test_a_body_that_finds_no_room_on_the_disk_is_refused_when_it_is_there(
    confirms: bool, autojump_clock: MockClock
) -> None:
    world, peer = await opened(SMALL)
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    if confirms:
        peer.ask(C.Confirm.Select())
    data = publish("", "q", body(900_000), properties=PERSISTENT, part=PAYLOAD_MAX)
    peer.send(data[:500_000])
    world.settle()
    await leave_free(world.store, world.disk, NO_SPACE)
    peer.send(data[500_000:])
    world.settle()
    if confirms:
        assert peer.names() == ["Basic.Nack"]
    else:
        assert closed(peer) == ("Connection.Close", 506)
    world.settle()
    assert (world.body_logs, world.broker.bodies.begun_bytes) == ([], 0)


@pytest.mark.parametrize("transaction", [False, True])
async def test_what_no_log_has_is_confirmed_when_its_large_body_can_be_got(transaction: bool) -> None:
    world, peer = await opened(SMALL)
    peer.ask(C.Queue.Declare(0, "passing"))
    peer.ask(C.Tx.Select() if transaction else C.Confirm.Select())
    peer.publish("", "passing", body(3000))
    if transaction:
        peer.method(C.Tx.Commit())
    assert peer.names() == []
    world.settle()
    assert peer.names() == ["Tx.CommitOk" if transaction else "Basic.Ack"]
    assert peer.ask_get("passing") == body(3000)


async def test_what_no_feed_can_carry_dies_at_it_and_the_rest_goes_on() -> None:
    world = await World.open(SMALL)
    app = Application(world)
    queue = app.queue(b"mine")
    world.publish(b"", b"mine", b"one", body(5000), b"two")
    feed = app.feed(b"mine")
    world.settle()
    assert feed_bodies(feed.read + feed.connection.taken()) == [b"one", b"two"]
    world.publish(b"", b"mine", body(3000), b"three")
    world.settle()
    assert feed_bodies(feed.connection.taken()) == [b"three"]
    assert world.broker.counts.too_large_for_feeds == 2
    world.settle()
    assert (queue.depth, world.body_logs) == (0, [])


async def test_a_damaged_body_costs_its_message_and_its_connection_and_nothing_is_deleted() -> None:
    world, peer = await declared()
    published(world, peer, body(600_000), b"behind")
    (name,) = world.body_logs
    await world.store.close()
    disk = world.disk.kill()
    disk.flip(f"dmp-bodies/{name}.log", 300_000 * 8)
    world = await World.open(SMALL, disk)
    peer = Peer(world).login()
    peer.method(C.Basic.Consume(0, "q"))
    with pytest.raises(EOFError):
        peer.frames()  # a driver closes the connection
    peer.lose()
    peer = Peer(world).login()
    assert bodies(peer.say(C.Basic.Consume(0, "q"))) == [b"behind"]
    assert world.broker.queues[b"q"].lost
    world.settle()
    assert world.body_logs == [name]


async def test_a_whole_body_that_no_queue_has_is_kept_and_told_of() -> None:
    world, peer = await declared()
    published(world, peer, body(2000))
    names = world.body_logs
    await world.store.close()
    disk = world.disk.kill()
    disk.flip("dmp-queues/q.log", 100)
    world = await World.open(SMALL, disk)
    assert (world.broker.queues[b"q"].depth, world.broker.queues[b"q"].lost) == (0, True)
    assert (world.body_logs, world.broker.bodies.unclaimed) == (names, 1)


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_cut_at_any_time_keeps_what_was_confirmed_whole_and_nothing_half(seed: int) -> None:
    settings = DmpSettings(message_bytes_max=1000, body_bytes_max=1 << 20)
    world, peer = await declared(settings)
    contents = [body(size) for size in (3000, 40_000, 70_000)]
    sure: list[bytes] = []
    gone: set[bytes] = set()
    for content in contents:
        data = publish("", "q", content, properties=PERSISTENT, part=20_000)
        for at in range(0, len(data), 30_000):
            peer.send(data[at : at + 30_000])
            await check(world, seed, sure, contents, gone)
            world.store.commit_pending()
        world.settle()
        assert peer.names() == ["Basic.Ack"]
        sure.append(content)
        await check(world, seed, sure, contents, gone)
    peer.say(C.Basic.Get(0, "q"))
    gone.add(contents[0])
    peer.method(C.Basic.Ack(1))
    await check(world, seed, sure, contents, gone)
    world.settle()
    await check(world, seed, sure, contents, gone)


async def check(world: World, seed: int, sure: list[bytes], contents: list[bytes], gone: set[bytes]) -> None:
    """Every state that a power cut may leave, or a kill."""
    for disk in (world.disk.kill(), *sampled_states(world.disk.power_cut(), seed, 6)):
        after = await World.open(world.broker.settings, disk)
        queue = after.broker.queues[b"q"]
        found = [after.body(message) for message in singles(queue)]
        assert [each for each in found if each not in gone] == [
            each for each in contents if each in found and each not in gone
        ]
        assert all(each in found for each in sure if each not in gone)
        assert not queue.lost
        after.settle()
        assert len(after.body_logs) == len(found)
        assert after.broker.bodies.unclaimed == 0
        after.store.abandon()


@pytest.mark.parametrize("seed", range(3))
async def test_a_transaction_takes_large_bodies_along_or_leaves_nothing_of_them(seed: int) -> None:
    world, peer = await opened(SMALL)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.ask(C.Queue.Declare(0, "dying", durable=True, arguments=dead))
    peer.ask(C.Queue.Declare(0, "passing"))
    peer.ask(C.Tx.Select())
    peer.publish("", "dying", body(3000), properties=PERSISTENT)
    peer.ask(C.Tx.Rollback())
    world.settle()
    assert world.body_logs == []
    peer.publish("", "dying", body(3000), properties=PERSISTENT)
    peer.publish("", "passing", body(4000))
    peer.method(C.Tx.Commit())
    world.settle()
    peer.frames()
    assert len(world.body_logs) == 2
    peer.say(C.Basic.Get(0, "dying"))
    peer.method(C.Basic.Reject(1, False))
    peer.publish("", "q", body(5000), properties=PERSISTENT)
    peer.method(C.Tx.Commit())
    for disk in (world.disk.kill(), *sampled_states(world.disk.power_cut(), seed, 8)):
        after = await World.open(SMALL, disk)
        found = {
            name: [len(after.body(message)) for message in singles(queue)]
            for name, queue in after.broker.queues.items()
        }
        assert found in ({b"q": [], b"dying": [3000]}, {b"q": [5000, 3000], b"dying": []})
        assert (len(after.body_logs), after.broker.bodies.unclaimed) == (sum(map(len, found.values())), 0)
        after.store.abandon()
    world.settle()
    assert peer.ask_get("passing") == body(4000)
