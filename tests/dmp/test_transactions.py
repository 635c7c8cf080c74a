"""Transactions: what a channel publishes and settles is applied at once, or not at all."""

from collections.abc import Iterable

import pytest
from pamqp import base, commands

from dmp import queue_log
from dmp.amqp.wire import encode
from dmp.settings import DmpSettings
from tests.dmp.amqp_peer import Peer, bodies, closed, opened, publish
from tests.dmp.world import PERSISTENT, World, singles
from tests.support.explore import sampled_states
from tests.support.fake_disk import Crash, FakeDisk, Operation

C = commands


async def in_transaction(*queues: str, settings: DmpSettings | None = None) -> tuple[World, Peer]:
    """Durable queues, and a peer whose channel 1 is transactional."""
    world, peer = await opened(settings)
    for queue in queues:
        peer.ask(C.Queue.Declare(0, queue, durable=True))
    assert peer.ask(C.Tx.Select()).name == "Tx.SelectOk"
    return world, peer


def fill(world: World, queue: str, *sent: bytes) -> None:
    Peer(world).login().publish("", queue, *sent, properties=PERSISTENT)
    world.settle()


def held(world: World) -> dict[str, list[bytes]]:
    """What is ready, queue by queue."""
    queues = world.broker.queues.items()
    return {name.decode(): sorted(message.bodies[0] for message in singles(queue)) for name, queue in queues}


async def held_on(world: World, disks: Iterable[FakeDisk]) -> list[dict[str, list[bytes]]]:
    """What brokers hold that are started on these disks, one after the other."""
    seen = []
    for disk in disks:
        found = await World.open(world.broker.settings, disk)
        seen.append(held(found))
        found.store.abandon()
    return seen


async def test_nothing_is_seen_before_the_commit_and_all_of_it_after() -> None:
    world, peer = await in_transaction("a", "b")
    peer.publish("", "a", b"1", b"2", properties=PERSISTENT)
    peer.publish("", "b", b"3")
    world.settle()
    assert held(world) == {"a": [], "b": []}
    assert peer.say(C.Tx.Commit()) == [], "it is answered once it is on the disk"
    world.settle()
    assert peer.names() == ["Tx.CommitOk"]
    assert held(world) == {"a": [b"1", b"2"], "b": [b"3"]}
    assert peer.ask(C.Tx.Commit()).name == "Tx.CommitOk"
    assert held(await world.again()) == {"a": [b"1", b"2"], "b": []}


async def test_a_rollback_forgets_publishes_and_what_was_settled_can_be_settled_again() -> None:
    world, peer = await in_transaction("a", "b")
    fill(world, "a", b"1", b"2", b"3")
    peer.say(C.Basic.Consume(0, "a"))
    peer.publish("", "b", b"x", properties=PERSISTENT)
    for settle in (C.Basic.Ack(2), C.Basic.Reject(1, False), C.Basic.Nack(3, False, True)):
        peer.method(settle)
    assert peer.ask(C.Tx.Rollback()).name == "Tx.RollbackOk"
    assert (world.broker.queues[b"a"].held, world.broker.counts.acknowledged) == (3, 0)
    assert world.broker.memory.total_bytes < 1000
    peer.method(C.Basic.Ack(2, True))
    peer.ask(C.Tx.Commit())
    assert (world.broker.queues[b"a"].held, world.broker.counts.acknowledged) == (1, 2)
    peer.lose()
    assert held(world) == {"a": [b"3"], "b": []}
    assert held(await world.again()) == {"a": [b"3"], "b": []}


async def test_what_is_settled_is_settled_for_its_client_and_free_for_others_with_the_commit() -> None:
    world, peer = await in_transaction("a")
    fill(world, "a", b"1", b"2", b"3")
    peer.ask(C.Basic.Qos(0, 1))
    assert bodies(peer.say(C.Basic.Consume(0, "a"))) == [b"1"]
    assert peer.say(C.Basic.Ack(1)) == [], "its prefetch is used up until the commit"
    peer.method(C.Tx.Commit())
    world.settle()
    found = peer.frames()
    assert (found[0][1].name, bodies(found)) == ("Tx.CommitOk", [b"2"])
    assert peer.say(C.Basic.Nack(2, False, True)) == []
    assert bodies(peer.say(C.Tx.Commit())) == [b"2"], "it came back"
    peer.send(encode(C.Basic.Ack(3), 1) * 2)
    assert closed(peer) == ("Channel.Close", 406)


@pytest.mark.parametrize(
    "end", [C.Channel.Close(200, "", 0, 0), C.Connection.Close(200, "", 0, 0), C.Basic.Ack(77), None]
)
async def test_the_end_of_a_channel_or_connection_is_a_rollback(end: base.Frame | None) -> None:
    world, peer = await in_transaction("a", "b")
    fill(world, "a", b"1", b"2")
    peer.say(C.Basic.Consume(0, "a"))
    peer.publish("", "b", b"x", properties=PERSISTENT)
    peer.method(C.Basic.Ack(1))
    if end is None:
        peer.lose()
    else:
        peer.method(end, 0 if end.name == "Connection.Close" else 1)
    world.settle()
    assert held(world) == {"a": [b"1", b"2"], "b": []}
    assert world.broker.memory.total_bytes == sum(
        message.head.cost_bytes for message in singles(world.broker.queues[b"a"])
    )
    assert held(await world.again()) == {"a": [b"1", b"2"], "b": []}


async def test_what_cannot_be_routed_comes_back_with_the_commit() -> None:
    world, peer = await in_transaction("a")
    peer.ask(C.Queue.Declare(0, "gone"))
    peer.publish("", "gone", b"0", mandatory=True)
    peer.publish("", "none", b"1", mandatory=True)
    peer.publish("", "none", b"2")
    peer.ask(C.Queue.Delete(0, "gone"))
    found = peer.say(C.Tx.Commit())
    assert (bodies(found), found[-1][1].name) == ([b"0", b"1"], "Tx.CommitOk")
    assert (held(world), world.broker.counts.unroutable) == ({"a": []}, 3)


async def test_a_message_goes_by_the_bindings_at_its_publish_and_an_exchange_must_be_there_then() -> None:
    world, peer = await in_transaction("a")
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.ask(C.Queue.Bind(0, "a", "e"))
    peer.publish("e", "", b"1")
    peer.ask(C.Exchange.Delete(0, "e"))
    peer.ask(C.Tx.Commit())
    assert held(world) == {"a": [b"1"]}
    peer.publish("e", "", b"2")
    assert closed(peer) == ("Channel.Close", 404)


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        ({"transaction_messages_max": 4}, publish("", "a", *[b"x"] * 5)),
        ({"transaction_messages_max": 4}, publish("", "a", b"x", b"y") + publish("", "b", b"1", b"2", b"3")),
        ({"transaction_messages_max": 4}, publish("amq.fanout", "", *[b"x"] * 3)),  # to two queues each
        ({"transaction_bytes_max": 1000}, publish("", "a", bytes(600), bytes(600))),
        (
            {"transaction_messages_max": 33},
            publish("", "a", b"x", b"y") + encode(C.Basic.Reject(1, False), 1),
        ),
    ],
)
async def test_a_transaction_has_bounds_and_above_them_nothing_of_it_is_applied(
    limits: dict[str, int], data: bytes
) -> None:
    world, peer = await in_transaction("a", "b", settings=DmpSettings(**limits))  # type: ignore[arg-type]
    for queue in "ab":
        peer.ask(C.Queue.Bind(0, queue, "amq.fanout"))
    peer.ask(C.Queue.Declare(0, "dying", arguments={"x-dead-letter-exchange": ""}))
    fill(world, "dying", b"letter")
    peer.say(C.Basic.Get(0, "dying"))
    peer.send(data)
    assert closed(peer) == ("Channel.Close", 406)
    assert held(world) == {"a": [], "b": [], "dying": [b"letter"]}


async def test_what_is_held_counts_as_memory_and_cannot_wait_for_it() -> None:
    world, peer = await in_transaction("a", settings=DmpSettings(memory_bytes_max=1 << 20))
    for _ in range(11):
        peer.publish("", "a", bytes(100_000))
    assert world.broker.memory.total_bytes > 1 << 20
    assert peer.connection.reading, "its commit would never be read"
    peer.publish("", "a", b"one more")
    assert closed(peer) == ("Connection.Close", 506)
    assert world.broker.memory.total_bytes == 0
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    for _ in range(11):
        peer.publish("", "a", bytes(100_000))
    assert peer.ask(C.Tx.Commit()).name == "Tx.CommitOk"
    assert not peer.connection.reading, "now it can wait"


async def test_a_commit_that_the_disk_does_not_take_changes_nothing_and_is_not_answered() -> None:
    world, peer = await in_transaction("a", "b")
    fill(world, "a", b"1")
    peer.say(C.Basic.Consume(0, "a"))
    peer.publish("", "b", b"x", properties=PERSISTENT)
    peer.method(C.Basic.Ack(1))
    world.break_disk()
    other = Peer(world).login()
    other.publish("", "b", b"y", properties=PERSISTENT)
    world.settle()
    peer.method(C.Tx.Commit())
    assert closed(peer) == ("Connection.Close", 506)
    assert held(world) == {"a": [b"1"], "b": []}
    world.disk.before = None
    assert held(await world.again()) == {"a": [b"1"], "b": []}


async def test_what_a_commit_settles_that_the_disk_refuses_is_in_its_queue_again() -> None:
    world, peer = await in_transaction("a", "b")
    fill(world, "a", b"1", b"2", b"3")
    peer.say(C.Basic.Consume(0, "a"))
    peer.publish("", "b", b"x", properties=PERSISTENT)
    for settle in (C.Basic.Ack(1), C.Basic.Reject(3, False)):
        peer.method(settle)
    peer.method(C.Tx.Commit())
    world.refuse_a_write()
    for _ in range(5):
        world.settle()
        world.advance(0)
        peer.pump()
    assert closed(peer) == ("Connection.Close", 541)
    assert held(world) == {"a": [b"1", b"2", b"3"], "b": []}
    other = Peer(world).login()
    other.ask(C.Queue.Purge(0, "a"))
    assert (world.broker.queues[b"a"].held, world.broker.memory.total_bytes) == (0, 0)
    assert held(await world.again()) == {"a": [], "b": []}


async def test_a_commit_whose_sync_fails_is_not_answered() -> None:
    world, peer = await in_transaction("a")
    peer.publish("", "a", b"x", properties=PERSISTENT)
    peer.method(C.Tx.Commit())
    world.break_disk()
    world.settle()
    assert closed(peer) == ("Connection.Close", 541)


async def test_a_full_queue_drops_what_it_has_no_room_for_in_a_commit_too() -> None:
    world, peer = await in_transaction()
    arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
    peer.ask(C.Queue.Declare(0, "small", arguments=arguments))
    for body in (b"1", b"2", b"3", b"4"):
        peer.publish("", "small", body + b"!" * int(body))
    peer.ask(C.Tx.Commit())
    assert held(world) == {"small": [b"1!", b"2!!", b"3!!!"]}
    assert world.broker.counts.dropped_full == 1


async def test_dead_letters_of_a_commit_wait_for_room_in_a_full_queue_that_rejects() -> None:
    world, peer = await in_transaction("acked")
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "full"}
    peer.ask(C.Queue.Declare(0, "full", durable=True, arguments=full))
    peer.ask(C.Queue.Declare(0, "source", durable=True, arguments=dying))
    fill(world, "source", b"1", b"2", b"3")
    fill(world, "acked", b"4")
    for queue in ("source", "acked"):
        peer.say(C.Basic.Consume(0, queue))
    peer.method(C.Basic.Nack(2, True, False))
    peer.method(C.Basic.Nack(3, False, False))
    peer.method(C.Basic.Ack(4))
    peer.ask(C.Tx.Commit())
    world.settle()
    counts = world.broker.counts
    assert (counts.rejected, counts.acknowledged, counts.dead_letters_lost) == (3, 1, 0)
    queue = world.broker.queues[b"full"]
    for body in (b"1", b"2", b"3"):
        (letter,) = queue.ready
        assert letter.bodies == [body]
        queue.get(no_ack=True)
        world.advance(1.1)
        world.settle()
    assert (counts.dead_lettered, counts.dead_letters_lost, world.broker.memory.total_bytes) == (3, 0, 0)


async def test_deliveries_are_settled_across_queues_and_counted_once() -> None:
    world, peer = await in_transaction("a", "b")
    fill(world, "a", b"1", b"2")
    fill(world, "b", b"3", b"4")
    for queue in "ab":
        peer.say(C.Basic.Consume(0, queue))
    peer.method(C.Basic.Ack(3, True))
    peer.method(C.Basic.Reject(4, False))
    peer.ask(C.Tx.Commit())
    counts = world.broker.counts
    assert (counts.acknowledged, counts.rejected, world.broker.memory.total_bytes) == (3, 1, 0)
    assert held(await world.again()) == {"a": [], "b": []}


SIZES = {"small": 10, "more than a batch of the journal holds": 5 << 20}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
async def test_a_crash_leaves_all_of_a_transaction_or_nothing(size: int) -> None:
    """Killed before each thing that the disk is asked to do, and for the small one without power, too."""
    world, peer = await in_transaction(
        "in", "out", "dead", settings=DmpSettings(transaction_bytes_max=1 << 25)
    )
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    peer.ask(C.Queue.Declare(0, "dying", durable=True, arguments=letters))
    peer.ask(C.Queue.Bind(0, "out", "amq.fanout"))
    peer.ask(C.Queue.Bind(0, "dead", "amq.fanout"))
    fill(world, "in", b"1", b"2", b"3")
    fill(world, "dying", b"letter")
    peer.say(C.Basic.Consume(0, "in"))
    peer.say(C.Basic.Consume(0, "dying"))
    peer.send(publish("", "out", bytes(size), properties=PERSISTENT, part=100_000))
    peer.send(publish("amq.fanout", "", bytes(size + 1), properties=PERSISTENT, part=100_000))
    peer.method(C.Basic.Ack(2, True))
    peer.method(C.Basic.Reject(4, False))
    before = {"in": [b"1", b"2", b"3"], "out": [], "dead": [], "dying": [b"letter"]}
    new = bytes(size + 1)
    after = {"in": [b"3"], "out": [bytes(size), new], "dead": [new, b"letter"], "dying": []}
    kills: list[FakeDisk] = []
    cuts: list[Crash] = []

    def watch(operation: Operation) -> None:
        kills.append(world.disk.kill())
        if size < 1000:
            cuts.append(world.disk.power_cut())

    world.disk.before = watch
    peer.method(C.Tx.Commit())
    world.settle()
    assert peer.names() == ["Tx.CommitOk"]
    world.disk.before = None
    machines = [*kills, world.disk.kill()]
    machines[:0] = [disk for cut in cuts for disk in sampled_states(cut, 1, 12)]
    machines += sampled_states(world.disk.power_cut(), 1, 6)
    world.store.abandon()
    seen = await held_on(world, machines)
    assert [state for state in seen if state not in (before, after)] == []
    assert before in seen
    assert seen[len(machines) - 7 :] == [after] * 7, "what is answered is kept"


async def many_settled() -> tuple[World, Peer, dict[str, list[bytes]], dict[str, list[bytes]]]:
    """A transaction of many, before its commit; and what is held before and after that."""
    world, peer = await in_transaction("in", "out")
    sent = [b"%02d" % number for number in range(40)]
    fill(world, "in", *sent)
    peer.say(C.Basic.Consume(0, "in"))
    peer.publish("", "out", b"new", properties=PERSISTENT)
    peer.method(C.Basic.Nack(1, False, True))
    peer.method(C.Basic.Ack(25, True))
    peer.method(C.Basic.Nack(30, True, True))
    peer.method(C.Basic.Reject(31, False))
    return world, peer, {"in": sent, "out": []}, {"in": [sent[0], *sent[25:30], *sent[31:]], "out": [b"new"]}


async def test_a_crash_leaves_all_of_a_commit_of_many_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 1)  # logs are tidied all the time
    world, peer, before, after = await many_settled()
    peer.method(C.Tx.Commit())
    kills = [world.disk.kill()]
    world.settle()
    kills.append(world.disk.kill())
    assert peer.names()[0] == "Tx.CommitOk"
    assert (world.broker.counts.acknowledged, world.broker.counts.requeued) == (24, 6)
    peer.lose()
    world.advance(0)
    assert held(world) == after
    world.store.abandon()
    assert await held_on(world, kills) == [before, after]


async def test_a_transaction_that_settles_too_many_is_refused_and_all_of_it_comes_back() -> None:
    limits = DmpSettings(transaction_messages_max=10)
    world, peer = await in_transaction("in", settings=limits)
    sent = [b"%02d" % number for number in range(20)]
    fill(world, "in", *sent)
    peer.say(C.Basic.Consume(0, "in"))
    peer.method(C.Basic.Ack(10, True))
    assert peer.names() == []
    peer.method(C.Basic.Ack(11))
    assert closed(peer) == ("Channel.Close", 406)
    peer.lose()
    world.advance(0)
    assert held(world) == {"in": sent}


async def test_very_many_that_are_rolled_back_can_be_settled_again_in_their_order() -> None:
    world, peer, _, _ = await many_settled()
    peer.method(C.Tx.Rollback())
    assert peer.names() == ["Tx.RollbackOk"]
    for tag in range(39, 0, -2):
        peer.method(C.Basic.Ack(tag))
    peer.method(C.Tx.Rollback())
    peer.method(C.Basic.Ack(30, True))
    peer.method(C.Tx.Commit())
    for _ in range(2):
        world.advance(0)
        peer.pump()
        world.settle()
    assert peer.names()[-1] == "Tx.CommitOk"
    assert (world.broker.queues[b"in"].held, world.broker.counts.acknowledged) == (10, 30)
