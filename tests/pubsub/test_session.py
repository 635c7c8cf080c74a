"""What a subscriber's bytes bring about, and what closes its connection."""

from itertools import pairwise

import pytest

from pubsub.sessions import Changed, saved, saver
from pubsub.settings import PubsubSettings
from pubsub.states import State
from pubsub.wire import (
    FRAME_BYTES,
    Command,
    Fault,
    Kind,
    datagram,
    encode_command,
    encode_id,
)
from shared.budget import Account
from shared.errors import RemoteProtocolError, StoreError
from shared.storage.table import Table
from tests.pubsub.world import Peer, World, framed
from tests.support.commits import make_read_only
from tests.support.connections import MemoryConnection
from tests.support.stores import NONE, fresh_store
from tests.support.turns import short_turns

MANY = 500
"""Commands of one read."""
SUBSCRIBE, UNSUBSCRIBE, KEEP = Command.SUBSCRIBE, Command.UNSUBSCRIBE, Command.KEEP


def test_a_message_comes_as_one_frame_with_its_senders_address(world: World) -> None:
    peer = world.subscriber(b"A", b"hall/+")
    world.receive([datagram(b"hall/3", Kind.INT, b"\1\0\0\0\5")], sender=b"127.0.0.1:51234")
    data = peer.connection.taken()
    assert data == framed(b"hall/3".ljust(50, b"\0") + b"\0\1\0\0\0\5", b"127.0.0.1:51234")
    assert len(data) == 1603


def test_a_client_gets_a_message_once_however_many_subscriptions_match(world: World) -> None:
    peer = world.subscriber(b"A", b"*", b"a/+", b"a/b", b"a/*")
    world.publish(b"a/b")
    assert peer.topics() == [b"a/b"]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (b"*", [b"", b"a", b"a/b", b"/"], []),
        (b"a/*", [b"a", b"a/", b"a/b/c"], [b"b", b"ab", b""]),
        (b"a/*/z", [b"a/z", b"a/b/c/z"], [b"a", b"a/z/b"]),
        (b"+", [b"a", b""], [b"a/b", b"/"]),
        (b"a/+/c", [b"a/b/c", b"a//c"], [b"a/c", b"a/b/b/c"]),
        (b"a*/b", [b"a*/b"], [b"a/b", b"ab/b"]),
        (b"", [b""], [b"a", b"/"]),
    ],
)
def test_wildcards_stand_for_whole_levels(
    world: World, pattern: bytes, matching: list[bytes], other: list[bytes]
) -> None:
    peer = world.subscriber(b"A", pattern)
    world.publish(*matching, *other)
    assert peer.topics() == matching


def test_subscriptions_outlive_a_disconnect_and_a_duplicate_is_turned_away_at_once(world: World) -> None:
    first = world.subscriber(b"A", b"a")
    second = world.connect(encode_id(b"A"))
    assert second.closed
    assert not first.closed
    first.send(encode_command(Command.DISCONNECT) + encode_command(SUBSCRIBE, b"never"))
    assert first.closed
    world.publish(b"a")
    third = world.connect(encode_id(b"A"))
    world.publish(b"a", b"never")
    assert third.topics() == [b"a"], "what came meanwhile is not kept, and what was asked after 2 is not done"
    assert world.said == [
        "New client A connected from 127.0.0.1:1.",
        "Client A already connected.",
        "Client A disconnected.",
        "New client A connected from 127.0.0.1:3.",
    ]
    assert world.counts.faults == {"already_connected": 1}


def test_a_disconnect_needs_no_topic(world: World) -> None:
    peer = world.subscriber(b"A")
    peer.send(bytes([Command.DISCONNECT]) + b"x" * 51)
    assert peer.closed
    assert world.counts.faults == {}


def test_unsubscribing_ends_just_that_pattern(world: World) -> None:
    peer = world.subscriber(b"A", b"a/+", b"a/b")
    peer.send(encode_command(UNSUBSCRIBE, b"a/+") + encode_command(UNSUBSCRIBE, b"never"))
    world.publish(b"a/b", b"a/c")
    assert peer.topics() == [b"a/b"]


@pytest.mark.parametrize("away", [False, True])
def test_one_message_for_many_clients_is_handed_on_in_turns(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    short_turns(monkeypatch, 1)
    world = World()
    peers = [world.subscriber(b"%d" % number, b"*", keep=away) for number in range(95)]
    if away:
        for peer in peers:
            peer.lose()
    first, second = (datagram(topic, Kind.STRING, b"x") for topic in (b"a", b"b"))
    done = [0]
    for _ in world.turns_of([first, second, first]):
        reached = sum(peer.connection.outbox.size // FRAME_BYTES for peer in peers)
        done.append(world.counts.messages_kept if away else reached)
    assert done[-1] == 3 * 95
    # Where topics follow one another in a read they are one write.
    assert max(after - before for before, after in pairwise(done)) <= 95
    if away:
        peers = [world.connect(encode_id(b"%d" % number)) for number in range(95)]
    assert all(peer.topics() == [b"a", b"b", b"a"] for peer in peers)


def test_who_comes_back_between_two_turns_gets_each_message_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_turns(monkeypatch, 1)
    world = World()
    names = [b"%d" % number for number in range(140)]
    for name in names:
        world.subscriber(name, b"*", keep=True).lose()
    world.publish(b"old")
    peers = []
    for _, name in zip(world.turns_of([datagram(b"new", Kind.STRING, b"x")]), names[::-1], strict=False):
        peers.append(world.connect(encode_id(name)))
    peers += [world.connect(encode_id(name)) for name in names[: -len(peers)]]
    world.publish(b"newest")
    assert len(peers) == 140
    assert all(peer.topics() == [b"old", b"new", b"newest"] for peer in peers)


@pytest.mark.parametrize(
    "settings", [PubsubSettings(wild_subscriptions_max=2), PubsubSettings(wild_subscriptions_total_max=2)]
)
def test_patterns_of_many_wildcards_have_a_bound_of_their_own_and_what_was_saved_stays(
    settings: PubsubSettings,
) -> None:
    world = World(settings)
    wild = [b"*/+/*/+", b"+/+/+/+/a", b"*/a/*/a/*/a/*"]
    peer = world.subscriber(b"A", b"+/+/+", b"a*/b*/c*/d*", b"a/+b/+c/+d/+e", *wild[:2])
    peer.send(encode_command(UNSUBSCRIBE, wild[0]) + encode_command(SUBSCRIBE, wild[2]))
    assert not peer.closed
    peer.send(encode_command(SUBSCRIBE, wild[0]))
    assert peer.closed
    assert world.counts.faults == {Fault.SUBSCRIPTIONS: 1}
    again = World(settings)
    for pattern in wild:
        again.sessions.restore(b"A", pattern, True)
    again.publish(b"a/a/a/a/a")
    assert again.connect(encode_id(b"A")).topics() == [b"a/a/a/a/a"]
    assert again.sessions.wild == 3


BAD = [
    (b"\0" * 11, Fault.ID),
    (b"elevenchars", Fault.ID),
    (b"tab\there\0\0\0", Fault.ID),
    (b"a\x7f".ljust(11, b"\0"), Fault.ID),
    ("é".encode().ljust(11, b"\0"), Fault.ID),
    (encode_id(b"A") + b"\5", Fault.COMMAND),
    (encode_id(b"A") + b"\xff" + bytes(51), Fault.COMMAND),
    (encode_id(b"A") + b"\0" + b"x" * 51, Fault.TOPIC),
    (encode_id(b"A") + encode_command(SUBSCRIBE, b"a") + b"\3" + b"x" * 51, Fault.TOPIC),
]


@pytest.mark.parametrize(("data", "fault"), BAD)
@pytest.mark.parametrize("bytewise", [False, True])
def test_what_breaks_the_protocol_closes_that_connection_alone(
    world: World, data: bytes, fault: Fault, bytewise: bool
) -> None:
    neighbour = world.subscriber(b"N", b"*")
    peer = world.connect()
    peer.send(*([bytes([byte]) for byte in data] if bytewise else [data]))
    assert isinstance(peer.fault, RemoteProtocolError)
    assert peer.fault.fault is fault
    assert world.counts.faults == {fault: 1}
    assert peer.session.state is State.ENDING
    world.publish(b"a")
    assert peer.messages() == []
    assert neighbour.topics() == [b"a"]


def test_bytes_behind_the_first_nul_of_an_id_or_topic_are_ignored(world: World) -> None:
    peer = world.connect(b"A\0garbage\xff\xff" + b"\0a/b\0".ljust(52, b"?"))
    world.publish(b"a/b")
    assert peer.topics() == [b"a/b"]
    assert list(world.sessions.clients) == [b"A"]


def test_limits_are_kept_and_what_stood_before_them_stays() -> None:
    world = World(PubsubSettings(subscriptions_max=2, sessions_max=2, subscriptions_total_max=3))
    one = world.subscriber(b"1", b"a", b"b", b"c")
    assert one.fault
    two = world.subscriber(b"2", b"a")
    assert not two.closed
    assert world.subscriber(b"3").fault, "sessions_max"
    two.send(encode_command(SUBSCRIBE, b"b"))
    assert two.fault, "subscriptions_total_max"
    assert world.counts.faults == {"subscriptions": 2, "sessions": 1}
    assert world.sessions.subscriptions == 3


def test_an_id_or_a_command_that_does_not_end_closes_the_connection(world: World) -> None:
    half = world.subscriber(b"A")
    half.advance(1000)
    assert not half.closed, "between commands a subscriber may be silent for ever"
    half.send(b"\0top")
    half.advance(29)
    half.send(b"ic")
    assert not half.closed
    half.advance(2)
    assert half.fault
    assert world.counts.faults == {"too_late": 1}


def test_the_first_request_is_the_whole_id(peer: Peer) -> None:
    peer.send(encode_id(b"A")[:-1])
    assert peer.connection.awaits_first is not None
    peer.send(b"\0")
    assert peer.connection.awaits_first is None


def test_a_slow_subscriber_loses_its_oldest_whole_frames() -> None:
    world = World(PubsubSettings(subscriber_bytes_max=1603 * 4))
    slow = world.subscriber(b"A", b"*")
    for number in range(10):
        world.publish(b"%d" % number)
    topics = slow.topics()
    assert topics == [b"6", b"7", b"8", b"9"]
    assert world.counts.frames_dropped == 6
    assert world.counts.subscribers_dropped_from == 1


def test_a_session_without_subscriptions_ends_with_its_connection(world: World) -> None:
    peer = world.subscriber(b"A", b"a")
    peer.send(encode_command(UNSUBSCRIBE, b"a"))
    peer.close_input()
    assert not world.sessions.clients
    assert world.counts.connected == 0


def test_each_change_is_saved_once(world: World) -> None:
    world.subscriber(b"A", b"a", b"a").send(
        encode_command(KEEP, b"a"), encode_command(UNSUBSCRIBE, b"a"), encode_command(UNSUBSCRIBE, b"a")
    )
    assert [(each.topic, each.keeps) for each in world.changes] == [(b"a", False), (b"a", True), (b"a", None)]


def test_who_has_unsubscribed_gets_nothing_more_of_what_was_sent_before(world: World) -> None:
    one, two = world.subscriber(b"A", b"a"), world.subscriber(b"B", b"a")
    world.publish(b"a")
    one.send(encode_command(Command.UNSUBSCRIBE, b"a"))
    world.publish(b"a")
    assert (one.topics(), two.topics()) == ([b"a"], [b"a", b"a"])
    assert world.counts.messages_delivered == 3


def test_a_start_takes_back_all_subscriptions_under_smaller_limits_and_keeps_what_fits(world: World) -> None:
    for name in (b"A", b"B", b"C"):
        world.subscriber(name, name, b"+/" + name, b"all", keep=True).lose()
    world.publish(*[b"all"] * 10)
    small = PubsubSettings(
        sessions_max=1,
        subscriptions_max=1,
        subscriptions_total_max=1,
        wild_subscriptions_max=0,
        wild_subscriptions_total_max=0,
        kept_messages_max=4,
    )
    again = World(small, Account("process", 10))
    for change in world.changes:
        again.sessions.restore(change.client_id, change.topic, bool(change.keeps))
    again.sessions.kept.append(b"A", [b"all"] * 30)
    assert again.sessions.kept.total_bytes == 0, "the budget has no room"
    assert again.counts.kept_dropped == 30
    for name in (b"A", b"B", b"C"):
        peer = again.connect(encode_id(name))
        again.publish(name, b"x/" + name, b"all")
        assert peer.topics() == [name, b"x/" + name, b"all"]
    assert again.subscriber(b"D", b"d").fault


def test_who_is_closed_while_a_batch_goes_out_costs_the_others_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (world.subscriber(name, b"a") for name in (b"A", b"B", b"C"))
    sound = MemoryConnection.write
    left = [one, two]

    def write(self: MemoryConnection, data: bytes) -> None:
        sound(self, data)
        for other in left:  # as where all outboxes together have become too much
            if other.connection is not self:
                left.remove(other)
                other.lose()
                break

    monkeypatch.setattr(MemoryConnection, "write", write)
    world.publish(b"a")
    assert three.topics() == [b"a"]


def test_subscriptions_of_a_forgotten_session_count_no_more() -> None:
    world = World(PubsubSettings(subscriptions_total_max=2))
    world.subscriber(b"A", b"a", b"b").lose()
    assert world.subscriber(b"B", b"a").fault is not None
    assert world.sessions.forget(b"A")
    assert world.sessions.subscriptions == 0
    assert world.subscriber(b"C", b"a", b"b").fault is None


def test_who_is_away_gets_nothing_and_counts_for_nothing(world: World) -> None:
    world.subscriber(b"A", b"a").lose()
    world.publish(b"a")
    assert (world.counts.messages_delivered, world.counts.messages_unmatched) == (0, 1)


def test_a_forgotten_session_is_as_one_that_never_was(world: World) -> None:
    world.subscriber(b"A", b"a", keep=True).lose()
    world.publish(b"a")
    world.changes.clear()
    assert world.sessions.forget(b"A")
    world.publish(b"a")
    assert (world.sessions.kept.clients(), world.sessions.kept.total_bytes) == ([], 0)
    assert [(each.topic, each.keeps) for each in world.changes] == [(b"a", None)]
    assert world.connect(encode_id(b"A")).topics() == []


def test_what_was_saved_is_taken_back_and_only_what_keeps_is_kept(world: World) -> None:
    for topic, keeps in ((b"kept", True), (b"plain", False)):
        world.sessions.restore(b"A", topic, keeps)
    world.publish(b"kept", b"plain")
    back = world.connect(encode_id(b"A"))
    assert back.topics() == [b"kept"]
    world.publish(b"kept", b"plain")
    assert back.topics() == [b"kept", b"plain"]


async def test_what_the_table_does_not_take_is_counted_and_what_is_no_subscription_left_out() -> None:
    disk, store = await fresh_store()
    table = await Table.open(store.namespace("pubsub", NONE), "sessions")
    told: list[StoreError] = []
    world = World()
    save = saver(table, world.counts, told.append)
    save(Changed(b"A", b"a", True))
    save(Changed(b"A", b"t" * 50, False))
    for key in (b"A", b"\0a", b"elevenchars\0a", b"A\0" + b"t" * 51):
        table.put(key, b"")
    assert list(saved(table)) == [Changed(b"A", b"a", True), Changed(b"A", b"t" * 50, False)]
    assert world.counts.unpersisted == 0
    await make_read_only(store, disk)
    save(Changed(b"A", b"b", True))
    assert (world.counts.unpersisted, len(told)) == (1, 1)


def test_subscriptions_and_sessions_end_in_a_refusal_where_the_budget_has_no_room() -> None:
    budget = Account("process", 10_000)
    world = World(budget=budget)
    friend = world.subscriber(b"friend", b"news")
    greedy = world.subscriber(b"greedy", *(b"+/%d" % number for number in range(20)))
    assert greedy.fault
    assert budget.used_bytes <= 10_000
    assert budget.account("names").refused == 1
    assert world.counts.faults == {"subscriptions": 1}
    budget.charge(10_000)
    assert world.subscriber(b"another").fault
    world.publish(b"news")
    assert friend.topics() == [b"news"]


def test_sessions_give_back_what_they_took() -> None:
    budget = Account("process", 100_000)
    world = World(budget=budget)
    peer = world.subscriber(b"one", b"a", b"+/b", keep=True)
    peer.lose()
    world.publish(b"a", b"a")
    assert budget.used_bytes > 0
    assert world.sessions.forget(b"one")
    assert budget.used_bytes == 0


def test_what_is_kept_is_dropped_where_the_budget_has_no_room() -> None:
    budget = Account("process", 6_000)
    world = World(budget=budget)
    world.subscriber(b"one", b"a", keep=True).lose()
    for _ in range(200):
        world.publish(b"a")
    assert budget.used_bytes <= 6_000
    kept, _ = world.sessions.kept.held(b"one")
    assert 0 < kept == 200 - world.counts.kept_dropped


def test_sessions_that_were_saved_are_there_again_whatever_the_budget_says() -> None:
    budget = Account("process", 10)
    world = World(budget=budget)
    world.sessions.restore(b"one", b"a", keeps=False)
    assert budget.used_bytes > 10
    assert not world.subscriber(b"one").fault


def ended(world: World, now: float) -> int:
    """How many sessions end by then."""
    return len(list(world.sessions.end_long_away(now)))


def test_a_session_ends_when_its_client_has_been_away_for_long() -> None:
    world = World(PubsubSettings(session_seconds=100.0))
    for number, name in enumerate((b"A", b"B", b"C")):
        peer = world.subscriber(name, b"home", keep=True)
        peer.connection.now = 10.0 * number
        if name != b"C":
            peer.lose()
    world.publish(b"home")
    assert ended(world, 99.9) == 0
    assert ended(world, 100.0) == 1
    assert world.sessions.clients.keys() == {b"B", b"C"}
    assert world.changes[-1] == Changed(b"A", b"home", None), "it does not come back with a start"
    assert world.sessions.kept.held(b"A") == (0, 0)
    back = world.subscriber(b"B")
    assert back.topics() == [b"home"]
    assert ended(world, 1e6) == 0, "who is connected has all the time there is"
    back.connection.now = 200.0
    back.lose()
    assert ended(world, 299.0) == 0, "it counts from when he left the last time"
    assert ended(world, 300.0) == 1
    assert world.counts.sessions_expired == 2


def test_sessions_that_a_start_found_are_away_from_then_on() -> None:
    world = World(PubsubSettings(session_seconds=100.0))
    for number in range(5):
        world.sessions.restore(b"C%d" % number, b"home", True)
    world.sessions.restored(50.0)
    assert ended(world, 149.0) == 0
    assert ended(world, 150.0) == 5
    assert world.sessions.clients == {}


def test_no_session_ends_by_time_where_the_setting_is_0() -> None:
    world = World(PubsubSettings(session_seconds=0))
    world.subscriber(b"A", b"home").lose()
    assert ended(world, 1e12) == 0


def test_nothing_is_kept_for_who_was_forgotten_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 1)
    world = World()
    for number in range(40):
        world.subscriber(b"%d" % number, b"*", keep=True).lose()
    turns = world.turns_of([datagram(b"a", Kind.STRING, b"x")])
    next(turns)
    assert world.sessions.forget(b"39")
    for _ in turns:
        pass
    assert world.subscriber(b"39", b"b").topics() == []
    assert world.counts.messages_kept == 39
