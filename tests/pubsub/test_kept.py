"""What is kept for a client that is away: which messages, how many, and who pays."""

import gc

import pytest
import trio
import trio.testing

import pubsub.fanout
import pubsub.kept
from pubsub.listener import open_pubsub
from pubsub.session import Session
from pubsub.settings import KEPT_LOG, NAMESPACE, PubsubSettings
from pubsub.wire import FRAME_BYTES, Command, Kind, datagram, encode_command, encode_id, frame
from shared.budget import Account
from shared.plugin import Context
from tests.pubsub.world import LOG, World
from tests.support.connections import MemoryConnection
from tests.support.fake_disk import FakeDisk
from tests.support.memory import growth_bytes
from tests.support.stores import ALWAYS, open_store, records
from tests.support.turns import short_turns

SUBSCRIBE, UNSUBSCRIBE, KEEP = Command.SUBSCRIBE, Command.UNSUBSCRIBE, Command.KEEP


def test_what_a_client_keeps_is_sent_on_return_before_anything_newer(world: World) -> None:
    peer = world.subscriber(b"A", b"kept/*", keep=True)
    peer.send(encode_command(SUBSCRIBE, b"plain"))
    peer.lose()
    world.publish(b"kept/1", b"plain", b"kept/2")
    assert world.counts.messages_delivered == 0
    again = world.connect(encode_id(b"A"))
    assert world.counts.messages_delivered == 2
    world.publish(b"kept/3", b"plain")
    assert again.topics() == [b"kept/1", b"kept/2", b"kept/3", b"plain"]
    again.lose()
    assert world.connect(encode_id(b"A")).topics() == [], "each is sent once"


def test_what_was_unread_when_the_connection_broke_is_kept_before_anything_newer(world: World) -> None:
    peer = world.subscriber(b"A", b"kept/*", keep=True)
    peer.send(encode_command(SUBSCRIBE, b"plain"))
    world.publish(b"kept/1", b"plain", b"kept/2", b"kept/3")
    outbox = peer.connection.outbox
    outbox.advance(FRAME_BYTES // 2)  # the first is out in part, so nobody has read it
    peer.lose()
    world.publish(b"kept/4", b"plain")
    again = world.connect(encode_id(b"A"))
    assert again.topics() == [b"kept/1", b"kept/2", b"kept/3", b"kept/4"]
    again.lose()
    assert world.connect(encode_id(b"A")).topics() == [], "what was read is not kept"


def test_what_comes_while_a_connection_ends_is_kept_behind_what_it_leaves_unread(world: World) -> None:
    peer = world.subscriber(b"A", b"*", keep=True)
    world.publish(b"1", b"2")
    peer.close_input()
    world.publish(b"3")
    assert peer.topics() == [b"1", b"2"], "what was in the outbox is still sent"
    peer.lose()
    peer = world.connect(encode_id(b"A"))
    assert peer.topics() == [b"3"]

    peer.lose()
    world.publish(b"4")
    peer = world.connect(encode_id(b"A"))
    world.publish(b"5")
    peer.close_input()
    world.publish(b"6")
    peer.lose()  # it has taken nothing
    assert world.connect(encode_id(b"A")).topics() == [b"4", b"5", b"6"]


def test_who_keeps_nothing_leaves_nothing_unread(world: World) -> None:
    peer = world.subscriber(b"A", b"*")
    world.publish(b"1")
    peer.lose()
    assert world.connect(encode_id(b"A")).topics() == []
    assert world.counts.messages_kept == 0


def test_of_much_that_was_unread_the_newest_is_kept_and_the_rest_counted() -> None:
    world = World(PubsubSettings(kept_messages_max=3))
    peer = world.subscriber(b"A", b"*", keep=True)
    world.publish(b"1", b"2", b"3", b"4")
    peer.close_input()
    world.publish(b"5")
    peer.lose()
    assert world.connect(encode_id(b"A")).topics() == [b"3", b"4", b"5"]
    assert world.counts.kept_dropped == 2


def test_who_returns_and_ends_its_subscriptions_leaves_nothing_behind(world: World) -> None:
    for command in (SUBSCRIBE, UNSUBSCRIBE):
        world.subscriber(b"A", b"kept", keep=True).lose()
        world.publish(b"kept")
        again = world.connect(encode_id(b"A"))
        again.send(encode_command(command, b"kept"))
        assert world.sessions.kept.held(b"A")[0] == 1, "it has not read it"
        again.lose()
        assert world.sessions.kept.held(b"A")[0] == 0
    assert b"A" not in world.sessions.clients


def test_a_session_that_is_away_holds_no_connection(world: World) -> None:
    peer = world.subscriber(b"A", b"kept", keep=True)
    held = {id(peer.session), id(peer.connection)}
    peer.lose()
    client = world.sessions.clients[b"A"]
    assert not held.intersection(map(id, gc.get_referents(client, client.holds)))


def test_a_kept_frame_is_the_frame_that_would_have_come(world: World) -> None:
    world.subscriber(b"A", b"*", keep=True).lose()
    live = world.subscriber(b"B", b"*")
    world.receive([datagram(b"t", Kind.STRING, b"ends in NULs\0\0"), datagram(b"", Kind.INT, bytes(5))])
    assert world.connect(encode_id(b"A")).connection.taken() == live.connection.taken()


def test_type_0_after_3_ends_the_keeping(world: World) -> None:
    peer = world.subscriber(b"A", b"a", keep=True)
    peer.send(encode_command(SUBSCRIBE, b"a"))
    peer.lose()
    world.publish(b"a")
    again = world.connect(encode_id(b"A"))
    assert again.topics() == []
    world.publish(b"a")
    assert again.topics() == [b"a"], "the subscription itself stays"


def test_too_many_kept_messages_push_out_the_oldest_and_are_counted() -> None:
    world = World(PubsubSettings(kept_messages_max=2))
    world.subscriber(b"A", b"*", keep=True).lose()
    world.publish(b"1", b"2", b"3")
    assert world.connect(encode_id(b"A")).topics() == [b"2", b"3"]
    assert world.counts.kept_dropped == 1


def test_kept_bytes_have_a_bound_for_each_client_and_for_all() -> None:
    world = World(PubsubSettings(kept_bytes_max=500, kept_bytes_total_max=700))
    for client in (b"A", b"B"):
        world.subscriber(client, client, keep=True).lose()
    for _ in range(3):
        world.receive([datagram(b"A", Kind.STRING, b"x" * 200)])
    kept = world.sessions.kept
    assert kept.held(b"A")[0] == 1
    for _ in range(5):
        world.receive([datagram(b"B", Kind.STRING, b"x" * 200)])
    assert kept.held(b"A")[0] == 1, "another client pays for its own"
    assert kept.total_bytes <= 700
    assert kept.total_bytes == sum(kept.held(client)[1] for client in (b"A", b"B"))


def test_when_all_together_keep_too_much_those_pay_who_have_the_most() -> None:
    world = World(PubsubSettings(kept_bytes_total_max=10_000))
    for client in (b"H1", b"H2", b"V"):
        world.subscriber(client, client[:1], keep=True).lose()
    kept = world.sessions.kept
    for number in range(100):
        world.receive([datagram(b"H", Kind.STRING, b"x" * 1000)])
        if not number % 10:
            world.receive([datagram(b"V", Kind.STRING, b"v" * 10)])
        assert kept.total_bytes <= 10_000
    assert kept.total_bytes > 8_000
    assert kept.total_bytes == sum(kept.held(client)[1] for client in (b"H1", b"H2", b"V"))
    assert kept.held(b"V")[0] == 10, "what little is kept for one stays, whatever is kept for others"
    assert len(world.connect(encode_id(b"V")).topics()) == 10
    assert world.counts.kept_dropped == 200 - sum(kept.held(client)[0] for client in (b"H1", b"H2"))
    world.receive([datagram(b"H", Kind.STRING, b"x" * 1400) for _ in range(20)])
    assert min(kept.held(client)[1] for client in (b"H1", b"H2")) > 2_000, "they take turns"


def test_what_many_keep_is_in_memory_once(world: World) -> None:
    for number in range(100):
        world.subscriber(b"%d" % number, b"*", keep=True).lose()
    world.publish(b"first")
    frame = datagram(b"a", Kind.STRING, b"x" * 1000)
    assert growth_bytes(lambda: world.receive([frame])) < 20 * 1000
    assert world.sessions.kept.total_bytes > 100 * 1000


async def test_what_is_kept_for_a_client_whose_session_is_lost_waits_for_it() -> None:
    disk = FakeDisk()
    context = Context(await open_store(disk), LOG)
    log, _ = context.store.namespace(NAMESPACE, ALWAYS).create(KEPT_LOG)
    frame = datagram(b"news", Kind.STRING, b"hello").rstrip(b"\0")
    log.append(records(b"A\0" + frame), 1)
    context.store.commit_pending()
    service = await open_pubsub(context, PubsubSettings())
    connection = MemoryConnection()
    service.sessions.join(b"A", connection)
    assert len(connection.taken()) == FRAME_BYTES


@pytest.mark.parametrize("stops", [False, True])
async def test_what_a_bridge_published_is_kept_also_where_it_published_last(
    stops: bool, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    short_turns(monkeypatch, 1, 5)
    service = await open_pubsub(Context(await open_store(FakeDisk()), LOG), PubsubSettings())
    nursery.start_soon(service.run)
    await trio.testing.wait_all_tasks_blocked()
    ids = [b"A%d" % number for number in range(20)]
    for client_id in ids:
        connection = MemoryConnection()
        session = Session(connection, service.sessions)
        session.receive(encode_id(client_id) + encode_command(KEEP, b"news"))
        session.connection_lost()
    some = frame(b"0.0.0.0:0", b"news", Kind.STRING, b"hello")
    assert service.fanout.publish(b"news", some, [60], ())
    if stops:
        service.drain()
    else:
        await trio.testing.wait_all_tasks_blocked()
    assert [service.sessions.kept.held(client_id)[0] for client_id in ids] == [1] * 20


async def test_a_damaged_log_of_what_is_kept_costs_what_stood_there_and_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = FakeDisk()
    context = Context(await open_store(disk), LOG)
    log, _ = context.store.namespace(NAMESPACE, ALWAYS).create(KEPT_LOG)
    for number in range(100):
        log.append(records(b"A\0%04d" % number + b"x" * 1400), 1)
    context.store.commit_pending()
    await context.store.close()
    disk = disk.kill()
    disk.flip(f"{NAMESPACE}/{KEPT_LOG}.log", 8 * 1000)
    service = await open_pubsub(Context(await open_store(disk), LOG), PubsubSettings())
    messages, _ = service.sessions.kept.held(b"A")
    assert 0 < messages < 100
    assert messages + service.sessions.counts.kept_lost == 100
    assert "messages that were kept for clients that are away are lost to damage" in capsys.readouterr().out


def test_a_right_that_goes_takes_what_no_other_subscription_keeps(world: World) -> None:
    peer = world.subscriber(b"A", b"*", b"a/*", keep=True)
    peer.send(encode_command(SUBSCRIBE, b"b/*"))
    peer.lose()
    world.publish(b"a/1", b"b/1", b"c", b"a/2", b"a/1")
    client = world.sessions.clients[b"A"]
    world.sessions.end_subscriptions(client, [b"*"])
    assert world.sessions.kept.held(b"A")[0] == 3
    world.publish(b"a/3", b"b/2")
    assert world.connect(encode_id(b"A")).topics() == [b"a/1", b"a/2", b"a/1", b"a/3"]
    assert world.sessions.kept.total_bytes == 0
    assert world.counts.kept_dropped == 0


def test_rights_that_all_go_take_all_that_is_kept() -> None:
    budget = Account("process", 1_000_000)
    world = World(budget=budget)
    world.subscriber(b"A", b"a", b"b", keep=True).lose()
    world.publish(b"a", b"b")
    kept = budget.account("messages")
    assert kept.used_bytes > 0
    world.sessions.end_subscriptions(world.sessions.clients[b"A"], [b"a", b"b"])
    assert world.sessions.kept.clients() == []
    assert kept.used_bytes == 0
    assert world.connect(encode_id(b"A")).topics() == []


def test_what_is_too_much_to_look_up_is_dropped_the_oldest_first_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.subscriber(b"A", b"+", b"gone/*", keep=True).lose()
    world.publish(*(b"%d" % number for number in range(100)))
    monkeypatch.setattr(pubsub.kept, "RESTRICT_VISITS_MAX", 50)
    world.sessions.end_subscriptions(world.sessions.clients[b"A"], [b"gone/*"])
    topics = world.connect(encode_id(b"A")).topics()
    assert 10 < len(topics) < 90
    assert topics == [b"%d" % number for number in range(100 - len(topics), 100)]
    assert world.counts.kept_dropped == 100 - len(topics)
