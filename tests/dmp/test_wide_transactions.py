"""Transactions that put messages into very many queues, in slices: at once, or not at all, as the others."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import base, commands
from structlog.testing import capture_logs

from dmp import queues as dmp_queues
from dmp.amqp import transactions
from dmp.amqp.channel import Mux
from dmp.amqp.wire import encode
from dmp.queues import Queue
from dmp.refusals import Code, Refusal
from dmp.settings import DmpSettings
from shared.garbage import PAUSES
from shared.storage.committer import HeldBatch
from tests.dmp.amqp_peer import Peer, bodies, closed, publish
from tests.dmp.test_turns import BUGS, amid_queues, amid_the_appends, depths, fan
from tests.dmp.world import PERSISTENT, World, ready
from tests.support.commits import fail, journal_write, watch

pytestmark = pytest.mark.usefixtures("wide")

C = commands
COUNT = 1000
COMMITTED = "Tx.CommitOk"
MOMENTS = ["amid the slices", "amid the appends", "appended", "written", "amid those that hear of it"]


async def begun(world: World, *, durable: bool = True) -> tuple[list[Queue], Peer]:
    """What a transaction is to change, and a peer in it: it holds `0` of `in`, and `letter` of `dying`."""
    queues = fan(world, COUNT, durable=durable)
    world.queue(b"in", durable=True)
    world.queue(b"dying", durable=True, dead_letter_exchange=b"", dead_letter_key=b"q7")
    world.publish(b"", b"in", b"0", properties=PERSISTENT)
    world.publish(b"", b"dying", b"letter", properties=PERSISTENT)
    world.settle()
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    for name in ("in", "dying"):
        peer.say(C.Basic.Consume(0, name))
    return queues, peer


def settle_both(peer: Peer) -> None:
    peer.method(C.Basic.Ack(1))
    peer.method(C.Basic.Reject(2, False))


def gone_through(world: World, peer: Peer) -> None:
    for _ in range(3):
        world.advance(0)
        peer.pump()
        world.settle()
    world.advance(0)


def go_to(world: World, queues: list[Queue], moment: str) -> None:
    """As far as that, from a `Tx.Commit` on which was sent just now."""
    if moment == "amid the slices":
        assert sum(queue.unsynced for queue in queues)
        assert not any(queue.numbered for queue in queues)
        return
    if moment == "amid the appends":
        amid_the_appends(world, queues)
        return
    world.advance(0)
    if moment != "appended":
        world.store.commit_pending()
    if moment == "amid those that hear of it":
        while not any(queue.depth for queue in queues):
            world.broker.timers.run_due()
        assert depths(world, queues) > {0}


async def test_a_commit_for_very_many_queues_goes_in_turns_in_order_and_is_answered_once(
    world: World,
) -> None:
    queues, peer = await begun(world)
    other = Peer(world).login()
    other.ask(C.Confirm.Select())
    for body, properties in ((b"1", PERSISTENT), (b"2", b"\0\0"), (b"3", PERSISTENT)):
        peer.publish("amq.fanout", "", body, properties=properties)
    peer.publish("", "q5", b"4", properties=PERSISTENT)
    settle_both(peer)
    (written,) = watch(world.disk, "write")
    peer.send(encode(C.Tx.Commit(), 1) + publish("", "q6", b"later") + encode(C.Tx.Commit(), 1))
    assert 0 < sum(queue.unsynced for queue in queues) < COUNT, "others have their turn"
    other.publish("", "q999", b"between")
    assert other.names() == ["Basic.Ack"]
    world.advance(0)
    world.broker.flush()
    assert {queue.depth for queue in queues[:-1]} == {0}, "it waits for the disk"
    assert peer.frames() == []
    world.store.commit_pending()
    assert len([path for path in written if "journal" in path]) == 1
    assert peer.frames_now() == [], "some queues have not heard of it"
    gone_through(world, peer)
    assert peer.names() == [COMMITTED, COMMITTED]
    expected = {number: [b"1", b"2", b"3"] for number in range(COUNT)}
    expected[5].append(b"4")
    expected[6].append(b"later")
    expected[7].append(b"letter")
    expected[COUNT - 1].insert(0, b"between")
    assert {number: ready(queue) for number, queue in enumerate(queues)} == expected
    counts = world.broker.counts
    assert (counts.acknowledged, counts.rejected, counts.dead_lettered) == (1, 1, 1)
    assert (counts.published, counts.crashes, PAUSES.count) == (6, 0, 0)
    assert {queue.unsynced for queue in queues} == {queue.unsynced_bytes for queue in queues} == {0}
    held = world.broker.memory.held_bytes
    assert held == sum(message.head.cost_bytes for queue in queues for message in queue.ready)
    again = await world.again()
    found = again.broker.queues
    assert [ready(found[name]) for name in (b"q0", b"q5", b"q7", b"in", b"dying")] == [
        [b"1", b"3"],
        [b"1", b"3", b"4"],
        [b"1", b"3", b"letter"],
        [],
        [],
    ]
    assert depths(again, queues) == {2, 3}


@pytest.mark.parametrize("durable", [False, True])
async def test_a_commit_for_very_many_queues_that_nothing_durable_comes_of_waits_for_no_disk(
    world: World, durable: bool
) -> None:
    queues, peer = await begun(world, durable=durable)
    (written,) = watch(world.disk, "write")
    peer.publish("amq.fanout", "", b"x", b"y", properties=b"\0\0" if durable else PERSISTENT)
    peer.method(C.Tx.Commit())
    assert 0 < sum(queue.unsynced for queue in queues) < 2 * COUNT
    world.advance(0)
    assert peer.names() == [COMMITTED]
    assert (depths(world, queues), written) == ({2}, [])


async def committing(world: World, moment: str) -> tuple[list[Queue], Peer]:
    """A commit of a publish and of both deliveries, at that moment."""
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    settle_both(peer)
    peer.method(C.Tx.Commit())
    go_to(world, queues, moment)
    return queues, peer


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_crash_leaves_a_commit_for_very_many_queues_or_nothing_of_it(
    world: World, moment: str
) -> None:
    queues, peer = await committing(world, moment)
    assert peer.frames_now() == []
    again = await world.again()
    there = moment in ("written", "amid those that hear of it")
    found = again.broker.queues
    assert depths(again, [*queues[:7], *queues[8:]]) == {int(there)}
    assert ready(found[b"q7"]) == ([b"x", b"letter"] if there else [])
    assert (ready(found[b"in"]), ready(found[b"dying"])) == (([], []) if there else ([b"0"], [b"letter"]))


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_queue_that_goes_amid_a_commit_costs_the_others_nothing(world: World, moment: str) -> None:
    queues, peer = await committing(world, moment)
    for gone in (queues[0], queues[-1], world.broker.queues[b"in"]):
        world.topology.delete_queue(gone)
    gone_through(world, peer)
    assert COMMITTED in peer.names()
    assert {queue.depth for queue in queues[1:7]} == {queue.depth for queue in queues[8:-1]} == {1}
    assert queues[0].unsynced == queues[-1].unsynced == 0
    for queue in queues[1:-1]:
        queue.purge()
    assert (world.broker.memory.held_bytes, world.broker.counts.crashes) == (0, 0)


@pytest.mark.parametrize("when", ["append", "write"])
@pytest.mark.parametrize("lost", [False, True])
async def test_what_the_store_refuses_of_a_commit_reaches_no_queue_and_what_was_settled_is_there(
    world: World, when: str, lost: bool
) -> None:
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    settle_both(peer)
    peer.method(C.Tx.Commit())
    fail(world.disk, errno.EIO, journal_write)
    if when == "append":  # something else finds that nothing can be written
        world.broker.logs.create("other")
        world.store.commit_pending()
        assert world.store.read_only
    if lost:
        peer.lose()
    gone_through(world, peer)
    if not lost:
        assert closed(peer) == ("Connection.Close", 506 if when == "append" else 541)
    assert {queue.depth for queue in queues} == {queue.unsynced for queue in queues} == {0}
    if when == "append":
        gone_through(world, peer)
        assert [ready(world.broker.queues[name]) for name in (b"in", b"dying")] == [[b"0"], [b"letter"]]
        for name in (b"in", b"dying"):
            assert world.broker.queues[name].unacked == 0
            world.broker.queues[name].purge()
        assert world.broker.counts.refused_publishes == 1
    assert world.broker.memory.held_bytes == 0
    world.disk.before = None
    again = await world.again()
    assert depths(again, queues) == {0}
    assert [ready(again.broker.queues[name]) for name in (b"in", b"dying")] == [[b"0"], [b"letter"]]


@pytest.fixture
def unwritten() -> Iterator[None]:
    """What is logged is not shown: a trace with all that a commit holds takes ten seconds."""
    with capture_logs():
        yield


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(("of", "name", "number", "hurried"), BUGS)
async def test_what_a_bug_keeps_from_a_commit_is_refused_and_nothing_of_it_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, number: int, hurried: bool
) -> None:
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    settle_both(peer)
    monkeypatch.setattr(of, name, amid_queues(getattr(of, name), number))
    peer.method(C.Tx.Commit())
    if hurried:
        amid_the_appends(world, queues)
        world.store.hold(0, 1, {world.broker.settings.durability}, lambda: None).release()
    gone_through(world, peer)
    assert closed(peer) == ("Connection.Close", 541 if hurried else 506)
    assert bool(world.store.read_only) == (name != "expect")
    assert {queue.depth for queue in queues} == {queue.unsynced for queue in queues} == {0}
    assert {queue.unsynced_bytes for queue in queues} == {0}
    gone_through(world, peer)
    settled = [world.broker.queues[each] for each in (b"in", b"dying")]
    assert [len(ready(queue)) for queue in settled] == [int(not hurried)] * 2
    for queue in settled:
        queue.purge()
    assert world.broker.memory.held_bytes == 0
    monkeypatch.undo()
    again = await world.again()
    assert depths(again, queues) == {0}
    assert [ready(again.broker.queues[each]) for each in (b"in", b"dying")] == [[b"0"], [b"letter"]]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("end", [C.Connection.Close(200, "", 0, 0), None])
async def test_a_commit_that_has_begun_is_carried_out_though_its_connection_has_gone(
    world: World, moment: str, end: base.Frame | None
) -> None:
    queues, peer = await committing(world, moment)
    if end is None:
        peer.lose()
    else:
        peer.method(end, 0)
    gone_through(world, peer)
    if end is not None:
        assert peer.names() == [COMMITTED, "Connection.CloseOk"], "what comes behind a commit waits for it"
    assert {queue.depth for queue in (*queues[:7], *queues[8:])} == {1}
    assert ready(queues[7]) == [b"x", b"letter"]
    for name in (b"in", b"dying"):
        queue = world.broker.queues[name]
        assert (queue.depth, queue.unacked) == (0, 0)
    held = world.broker.memory.held_bytes
    assert held == sum(message.head.cost_bytes for queue in queues for message in queue.ready)
    assert world.broker.accounts.transactions.used_bytes == 0
    again = await world.again()
    assert depths(again, queues) == {1, 2}
    assert ready(again.broker.queues[b"in"]) == []


async def test_a_server_that_stops_amid_a_commit_says_nothing_of_it_and_keeps_all_of_it(world: World) -> None:
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    settle_both(peer)
    peer.method(C.Tx.Commit())
    amid_the_appends(world, queues)
    world.broker.draining = True
    peer.session.drain()
    await world.store.close()
    assert COMMITTED not in peer.names()
    again = await World.open(disk=world.disk)
    assert depths(again, [*queues[:7], *queues[8:]]) == {1}
    assert ready(again.broker.queues[b"in"]) == []


async def test_rules_that_changed_refuse_a_commit_for_very_many_queues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    settle_both(peer)

    def require(mux: Mux, action: str, name: bytes) -> None:
        raise Refusal(Code.ACCESS_REFUSED, "not any more")

    monkeypatch.setattr(Mux, "require", require)
    peer.method(C.Tx.Commit())
    gone_through(world, peer)
    assert closed(peer) == ("Channel.Close", 403)
    gone_through(world, peer)
    assert depths(world, queues) == {0}
    assert [ready(world.broker.queues[name]) for name in (b"in", b"dying")] == [[b"0"], [b"letter"]]


@pytest.mark.parametrize("properties", [b"\0\0", PERSISTENT], ids=["memory", "disk"])
async def test_a_large_body_comes_to_very_many_queues_with_a_commit(properties: bytes) -> None:
    world = await World.open(DmpSettings(message_bytes_max=10, transaction_bytes_max=1 << 20))
    queues, peer = await begun(world)
    peer.publish("amq.fanout", "", b"0123456789abcdef", properties=properties)
    peer.publish("", "none", b"back" * 4, properties=properties, mandatory=True)
    peer.method(C.Tx.Commit())
    for _ in range(5):
        gone_through(world, peer)
    found = peer.frames()
    assert (found[0][1].name, found[-1][1].name) == ("Basic.Return", COMMITTED)
    assert bodies(found) == [b"back" * 4]
    assert [queue.depth for queue in queues] == [1] * COUNT
    assert {world.body(message) for queue in queues for message in queue.ready} == {b"0123456789abcdef"}
    disk = world.disk.kill()
    for queue in queues:
        queue.purge()
    gone_through(world, peer)
    assert world.body_logs == []
    world.store.abandon()
    again = await World.open(world.broker.settings, disk)
    assert depths(again, queues) == {int(properties == PERSISTENT)}


async def test_full_queues_and_none_are_left_out_of_a_commit_for_very_many(world: World) -> None:
    queues, peer = await begun(world)
    full = world.queue(b"full", rejects=True, messages_max=2)
    world.topology.bind(b"amq.fanout", full)
    world.queue(b"gone")
    for body in (b"1", b"2", b"3"):
        peer.publish("amq.fanout", "", body * int(body), properties=PERSISTENT)
    peer.publish("", "gone", b"back", mandatory=True)
    world.topology.delete_queue(world.broker.queues[b"gone"])
    peer.method(C.Tx.Commit())
    gone_through(world, peer)
    found = peer.frames()
    assert (bodies(found), found[-1][1].name) == ([b"back"], COMMITTED)
    assert (ready(full), depths(world, queues)) == ([b"1", b"22"], {3})
    counts = world.broker.counts
    assert (counts.dropped_full, counts.unroutable) == (1, 1)


async def test_dead_letters_of_a_commit_come_to_very_many_queues(world: World) -> None:
    queues = fan(world, COUNT, durable=True)
    dying = world.queue(b"dying", durable=True, dead_letter_exchange=b"amq.fanout")
    for body in (b"1", b"2"):
        world.publish(b"", b"dying", body, properties=PERSISTENT)
    world.settle()
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    peer.say(C.Basic.Consume(0, "dying"))
    peer.method(C.Basic.Nack(2, True, False))
    peer.method(C.Tx.Commit())
    assert 0 < sum(queue.unsynced for queue in queues) < COUNT
    gone_through(world, peer)
    assert peer.names() == [COMMITTED]
    assert {tuple(ready(queue)) for queue in queues} == {(b"1", b"2")}
    assert (dying.depth, dying.unacked, world.broker.counts.dead_lettered) == (0, 0, 2)
    again = await world.again()
    assert depths(again, [*queues, dying]) == {0, 2}


@pytest.mark.parametrize("paged", ["before", "amid the slices"])
@pytest.mark.parametrize("disk", [False, True])
async def test_what_is_not_persistent_keeps_its_place_in_a_queue_that_is_paged(
    monkeypatch: pytest.MonkeyPatch, paged: str, disk: bool
) -> None:
    monkeypatch.setattr(dmp_queues, "HOT_LEAST_BYTES", 2048)
    world = await World.open(DmpSettings(hot_bytes=20_000))
    queues, peer = await begun(world)
    deep = queues[-1]

    def fill() -> None:
        for number in range(100):
            world.publish(b"", deep.name, b"%04d" % number + bytes(508), properties=PERSISTENT)
            world.store.commit_pending()
        assert deep.paged

    if paged == "before":
        fill()
    peer.publish("amq.fanout", "", b"x")
    if disk:
        peer.publish("", "q3", b"y", properties=PERSISTENT)
    peer.method(C.Tx.Commit())
    if paged != "before":
        fill()
    gone_through(world, peer)
    assert peer.names() == [COMMITTED]
    assert {queue.depth for queue in queues[:3]} == {1}
    found: list[bytes] = []
    while deep.depth:
        message = deep.get(no_ack=True)
        if message is None:
            gone_through(world, peer)
            continue
        found.append(message.body[:4])
    assert found == [b"%04d" % number for number in range(100)] + [b"x"]
    assert world.broker.counts.crashes == 0


async def test_few_queues_are_gone_through_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PUTS_AT_ONCE", 20)
    queues = fan(world, 10, durable=True)
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    for body in (b"1", b"22"):
        peer.publish("amq.fanout", "", body, properties=PERSISTENT)
    (held,) = [[]] * 1
    monkeypatch.setattr(HeldBatch, "append", lambda *_: held.append(1))
    assert peer.ask(C.Tx.Commit()).name == COMMITTED
    assert (depths(world, queues), held) == ({2}, [])
