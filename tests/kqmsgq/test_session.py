"""What a producer's events bring about at consumers, and what closes a connection."""

from typing import Any

import attrs
import pytest

from kqmsgq.fanout import ALIKE_MAX, Producer
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.states import State
from kqmsgq.wire import Fault, Message, message, subscribe, unsubscribe
from shared import fanout
from shared.access import ANONYMOUS, Access, Rule, User
from shared.budget import Account
from shared.errors import RemoteProtocolError
from tests.kqmsgq.world import Peer, World
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer
from tests.support.turns import short_turns

MANY = 1000
"""Events or messages of one read."""


def test_a_message_reaches_everyone_subscribed_to_its_queue_with_its_own_bytes(world: World) -> None:
    one, two, other = (world.consumer(subscribe(name)) for name in (b"a", b"a", b"b"))
    sent = message(b"a", b"hello") + message(b"b", b"") + message(b"a", bytes(range(256)))
    world.producer(sent)
    assert one.taken() == two.taken() == message(b"a", b"hello") + message(b"a", bytes(range(256)))
    assert other.taken() == message(b"b", b"")


A, B, EVERY = (subscribe(name) for name in (b"a", b"b", b""))
NOT_A, NOT_B, NONE = (unsubscribe(name) for name in (b"a", b"b", b""))


@pytest.mark.parametrize(
    ("events", "queues_got"),
    [
        (A, [b"a"]),
        (EVERY, [b"a", b"b", b"", b"\xff\x00"]),
        (A + EVERY + A + EVERY, [b"a", b"b", b"", b"\xff\x00"]),
        (A + EVERY + A + EVERY + NOT_A, [b"a", b"b", b"", b"\xff\x00"]),
        (EVERY + A + NOT_A + NOT_B, [b"a", b"b", b"", b"\xff\x00"]),
        (A + A + B + NOT_A, [b"b"]),
        (A + B + EVERY + NONE, []),
        (A + B + EVERY + NONE + B, [b"b"]),
    ],
)
def test_each_message_comes_once_to_whom_a_subscription_covers_it(
    world: World, events: bytes, queues_got: list[bytes]
) -> None:
    """One to all queues covers those that do not exist yet, and that without a name; it ends with a `/`
    without a name, as all others do.
    """
    consumer = world.consumer(events)
    world.producer(b"".join(message(name, b"of " + name) for name in (b"a", b"b", b"", b"\xff\x00")))
    assert consumer.messages() == [Message(name, b"of " + name) for name in queues_got]


def test_what_nobody_is_subscribed_to_is_dropped_and_counted(world: World) -> None:
    producer = world.producer(message(b"a", b"1"))
    late = world.consumer(subscribe(b"a"))
    producer.send(message(b"a", b"2"))
    assert late.bodies() == [b"2"]
    counts = world.counts
    assert (counts.messages_in, counts.messages_unrouted, counts.messages_delivered) == (2, 1, 1)


BAD_PRODUCERS = [
    (b">\0\0\0\1a", Fault.SIDE),
    (b"/\0\0\0\0", Fault.SIDE),
    (b"x", Fault.EVENT),
    (b"\0" * 20, Fault.EVENT),
    (b"*\0\0\x10\x01", Fault.NAME),
    (b"*\xff\xff\xff\xff", Fault.NAME),
    (b"*\0\0\0\1a\x01\0\0\x01", Fault.MESSAGE),
    (b"*\0\0\0\0\xff\xff\xff\xff", Fault.MESSAGE),
]
BAD_CONSUMERS = [
    (b"*\0\0\0\1a\0\0\0\0", Fault.SIDE),
    (b"consume", Fault.EVENT),
    (b">\0\0\x10\x01", Fault.NAME),
    (b"/\xff\0\0\0", Fault.NAME),
]
BAD = [(b"produce", *each) for each in BAD_PRODUCERS] + [(b"consume", *each) for each in BAD_CONSUMERS]


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(("role", "bad", "fault"), BAD)
def test_what_breaks_the_protocol_is_counted_and_closes_that_connection(
    world: World, role: bytes, bad: bytes, fault: Fault, one_by_one: bool
) -> None:
    witness = world.consumer(subscribe())
    good = message(b"a", b"before") if role == b"produce" else subscribe(b"a")
    data = role + good + bad + b"*\0\0\0\1a\0\0\0\1x"
    peer = world.connect()
    peer.send(*([data[at : at + 1] for at in range(len(data))] if one_by_one else [data]))
    assert isinstance(peer.fault, RemoteProtocolError)
    assert peer.fault.fault is fault
    assert peer.session.state is State.ENDING
    assert (peer.closed, peer.taken()) == (True, b"")
    assert world.counts.faults == {fault: 1}
    assert witness.bodies() == ([b"before"] if role == b"produce" else [])
    world.producer(message(b"a", b"after"))
    assert peer.taken() == b"", "it is subscribed to nothing any more"
    assert witness.bodies() == [b"after"], "the others do not notice"


@pytest.mark.parametrize("first", [b"GET / H", b"Produce", b"consumr", b"produc\n", b"p\0", b"x"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_wrong_first_bytes_are_refused_at_the_first_that_is_wrong(
    peer: Peer, first: bytes, one_by_one: bool
) -> None:
    peer.send(*([first[at : at + 1] for at in range(len(first))] if one_by_one else [first]))
    assert peer.fault is not None
    assert peer.closed


def test_the_largest_name_and_the_largest_message_pass() -> None:
    settings = KqmsgqSettings()
    world = World()
    name = b"n" * settings.name_bytes_max
    consumer = world.consumer(subscribe(name))
    sent = message(name, b"m" * settings.message_bytes_max)
    world.producer(sent)
    assert consumer.taken() == sent


def test_a_message_that_did_not_end_is_not_delivered(world: World) -> None:
    consumer = world.consumer(subscribe())
    producer = world.producer(message(b"a", b"1") + message(b"a", b"x" * 300_000)[:-1])
    producer.close_input()
    assert producer.closed
    lost = world.producer(message(b"a", b"2") + message(b"a", b"x" * 30)[:-1])
    lost.lose()
    assert consumer.bodies() == [b"1", b"2"]
    assert world.counts.producers == 0


def test_what_has_come_of_an_unfinished_message_counts_against_the_bound_of_all(world: World) -> None:
    for size in (30_000, 300_000):  # the one is gathered as it is, the other in place
        whole = message(b"a", b"x" * size)
        producer = world.producer(message(b"a", b"1") + whole[:20_000])
        assert producer.connection.held_bytes == 20_000
        producer.send(whole[20_000:25_000])
        assert producer.connection.held_bytes == 25_000
        producer.send(whole[25_000:] + whole[:100])  # what is soon complete is not worth the telling
        assert producer.connection.held_bytes == 0


def test_the_end_of_a_consumers_input_ends_it_once_all_is_written(world: World) -> None:
    consumer = world.consumer(subscribe(b"a"))
    producer = world.producer(message(b"a", b"1"))
    consumer.close_input()
    producer.send(message(b"a", b"2"))
    assert consumer.closed
    assert consumer.bodies() == [b"1"]
    assert world.counts.messages_unrouted == 1
    assert world.counts.consumers == 0


def test_an_event_must_be_whole_in_time_and_silence_between_is_free(world: World) -> None:
    consumer = world.consumer(subscribe())
    producer = world.producer()
    producer.advance(100_000)
    producer.send(message(b"a", b"1")[:4])
    producer.advance(29)
    producer.send(message(b"a", b"1")[4:])
    producer.advance(100_000)
    assert producer.fault is None
    producer.send(message(b"a", b"2")[:4])
    producer.advance(29)
    producer.send(message(b"a", b"2")[4:7])
    producer.advance(2)
    assert producer.closed
    assert world.counts.faults == {Fault.TOO_LATE: 1}
    assert consumer.bodies() == [b"1"]
    for role in (b"", b"consume"):
        late = world.connect(role + b"c" if not role else role + b">")
        late.advance(31)
        assert late.closed


@pytest.mark.parametrize("role", [b"produce", b"consume"])
def test_the_first_request_is_the_whole_role(peer: Peer, role: bytes) -> None:
    peer.send(role[:-1])
    assert peer.connection.awaits_first is not None
    peer.send(role[-1:])
    assert peer.connection.awaits_first is None


@pytest.mark.parametrize("bytes_max", [1000, 100_000])
def test_a_message_that_is_too_large_is_refused_also_where_its_queue_is_known(bytes_max: int) -> None:
    world = World(KqmsgqSettings(message_bytes_max=bytes_max))
    consumer = world.consumer(subscribe())
    producer = world.producer(message(b"a", b"small") * 3 + message(b"a", bytes(bytes_max)))
    assert producer.fault is None
    producer.send(message(b"a", b"small") + message(b"a", bytes(bytes_max + 1)))
    assert producer.fault is not None
    assert [len(body) for body in consumer.bodies()] == [5, 5, 5, bytes_max, 5]


def test_what_is_remembered_of_queues_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "ROUTES_MAX", 4)
    world = World()
    consumer = world.consumer(subscribe())
    bodies = [b"%d" % number for number in range(20)]
    producer = world.producer()
    for body in bodies:
        producer.send(message(body, body))
        assert len(world.queues.routes.known) <= 4
    assert consumer.bodies() == bodies


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        (KqmsgqSettings(subscriptions_max=2), True),
        (KqmsgqSettings(subscriptions_max=1), False),
        (KqmsgqSettings(subscriptions_bytes_max=2 * (128 + 1000)), True),
        (KqmsgqSettings(subscriptions_bytes_max=2 * (128 + 1000) - 1), False),
        (KqmsgqSettings(subscriptions_bytes_total_max=4 * (128 + 1000)), True),
        (KqmsgqSettings(subscriptions_bytes_total_max=4 * (128 + 1000) - 1), False),
        (KqmsgqSettings(subscriptions_total_max=4), True),
        (KqmsgqSettings(subscriptions_total_max=3), False),
    ],
)
def test_the_subscriptions_of_one_consumer_and_of_all_have_a_bound(
    settings: KqmsgqSettings, fits: bool
) -> None:
    world = World(settings)
    names = [b"%01000d" % number for number in range(2)]
    other = world.consumer()
    for name in names:
        other.send(subscribe(name))
    for _ in range(3):  # what went leaves room
        consumer = world.consumer(subscribe(names[0]) * 2 + unsubscribe(names[0]) + unsubscribe(b"none"))
        consumer.send(*map(subscribe, names))
        assert (consumer.closed or other.closed) is not fits
        consumer.send(unsubscribe())
        consumer.lose()
    other.send(unsubscribe(names[0]))
    other.lose()
    assert world.queues.subscriptions_bytes == 0
    assert world.counts.faults == (
        {} if fits else {Fault.SUBSCRIPTIONS: world.counts.faults[Fault.SUBSCRIPTIONS]}
    )


def test_events_in_great_number_are_taken_in_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch)
    consumer = world.consumer()
    names = [b"%05d" % number for number in range(MANY)]
    consumer.send(b"".join(map(subscribe, names)) + b">\0\0")
    assert 0 < world.queues.statistics()[0] < MANY
    assert not consumer.connection.reading
    consumer.send(b"\0\4last")  # it was on its way
    consumer.advance(0)
    assert world.queues.statistics()[0] == len(names) + 1
    assert consumer.connection.reading
    world.producer(message(b"last", b"x"))
    assert consumer.bodies() == [b"x"]
    consumer.send(b">")
    consumer.advance(world.settings.event_seconds + 1)
    assert consumer.closed, "what has begun is timed as ever"


def test_messages_for_very_many_are_handed_on_in_turns_and_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [world.consumer(subscribe(b"a") + subscribe(b"%d" % number)) for number in range(100)]
    reader = readers[7]
    world.producer(b"".join(message(b"%d" % number, b"") for number in range(100)))  # all are in two sets
    reader.taken()
    short_turns(monkeypatch)
    producer = world.producer()
    count = MANY
    sent = [message((b"a", b"7")[number % 2], b"%d" % number) for number in range(2 * count)]
    producer.send(b"".join(sent) + b"*\0\0\0\1")
    assert 0 < len(reader.messages()) < len(sent) // 2
    assert not producer.connection.reading
    for each in readers:
        each.taken()
    while not producer.connection.reading:
        producer.advance(0)
    assert reader.bodies()[-1] == b"%d" % (2 * count - 1)
    producer.send(b"a\0\0\0\1z")
    while not producer.connection.reading:
        producer.advance(0)
    assert reader.bodies() == [b"z"]
    assert world.counts.messages_in == 100 + len(sent) + 1


ALIKE = message(b"a", b"12345")
FAST_READS = {
    "one": [ALIKE],
    "few": [ALIKE * count for count in range(1, ALIKE_MAX + 3)],
    "many": [ALIKE * 600, ALIKE * 50],
    "another queue within": [ALIKE * 3 + message(b"b", b"54321") + ALIKE],
    "another size within": [ALIKE + message(b"a", b"1234") + message(b"a", b"123456") + ALIKE],
    "looks like one, and is not": [message(b"a", ALIKE[:-1]) + ALIKE * 3],
    "nobody reads it": [message(b"nobody", b"12345") * 4, message(b"nobody", b"12345") + ALIKE],
    "cut": [ALIKE * 3 + ALIKE[:9], ALIKE[9:] + ALIKE, ALIKE[:3], ALIKE[3:]],
    "more than a turn": [b"".join(message(b"%d" % number, b"") for number in range(MANY))],
    "wrong behind": [ALIKE * 4, ALIKE * 4 + b"?"],
    "wrong within": [ALIKE * 2 + b">" + ALIKE[1:] + ALIKE],
}


@pytest.mark.parametrize("reads", FAST_READS.values(), ids=FAST_READS)
def test_the_fast_ways_of_a_read_give_what_the_plain_one_gives(
    reads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome() -> list[Any]:
        world = World()
        consumers = [world.consumer(subscribe(b"a")), world.consumer(subscribe(b"a") + subscribe(b"b"))]
        consumers.append(world.consumer(subscribe()))
        producer = world.producer((message(b"a", b"") + message(b"b", b"")) * 2)  # both are known now
        found: list[Any] = []
        for read in reads:
            producer.send(read)
            found += [each.taken() for each in consumers]
            connection = producer.connection
            found += [connection.rests_awaited, connection.deadline, connection.reading, str(producer.fault)]
            producer.advance(0)
            found += [connection.held_bytes, *(each.taken() for each in consumers)]
        found += [each.session.traffic for each in (producer, *consumers)]
        return [*found, attrs.asdict(world.counts)]

    fast = outcome()
    monkeypatch.setattr(Producer, "publish_alike", lambda producer, data: False)
    assert fast == outcome()


def test_a_large_message_that_may_not_be_sent_is_dropped_and_what_follows_it_is_not(world: World) -> None:
    gate = Access({ANONYMOUS: User(ANONYMOUS, (Rule.parse("kqmsgq:write:b"),))}).guard("kqmsgq")
    everything = world.consumer(subscribe())
    connection = MemoryConnection()
    producer = HandPeer(connection, Session(connection, world.queues, gate))
    large = {name: message(name, bytes(100_000)) for name in (b"a", b"b")}
    producer.send(b"produce")
    for name in (b"a", b"b"):
        producer.send(large[name][:100], large[name][100:] + large[b"b"])
    assert everything.taken() == large[b"b"] * 3
    assert producer.fault is None
    assert (world.counts.messages_in, world.counts.messages_unrouted) == (3, 0)


def test_names_end_in_a_refusal_where_the_budget_has_no_room_and_others_are_served_on() -> None:
    budget = Account("process", 5_000)
    world = World(budget=budget)
    friend = world.consumer(subscribe(b"q"))
    greedy = world.consumer()
    greedy.send(*(subscribe(b"%01000d" % number) for number in range(10)))
    assert greedy.closed
    assert world.counts.faults == {Fault.SUBSCRIPTIONS: 1}
    assert budget.used_bytes == 128 + 1
    world.producer(message(b"q", b"x"))
    assert len(friend.messages()) == 1


@pytest.mark.parametrize("cut", [0, 1, 3, 9, 1000, 5000, 20_000])
def test_a_message_in_two_large_reads_is_one_and_keeps_its_place(world: World, cut: int) -> None:
    one, other, everything = (world.consumer(subscribe(name)) for name in (b"a", b"b", b""))
    sent = [message(name, b"%d" % number * 5000) for number, name in enumerate([b"a", b"a", b"b", b"c"] * 3)]
    data = b"".join(sent)
    producer = world.producer(data)
    at = len(data) - cut
    producer.send((data + data)[:at])
    producer.send((data + data)[at:])
    assert everything.taken() == data * 3
    assert one.taken() == b"".join(each for number, each in enumerate(sent) if number % 4 < 2) * 3
    assert other.taken() == b"".join(sent[2::4]) * 3
    counts = world.counts
    assert (counts.messages_in, counts.bytes_in) == (36, len(data) * 3)
    assert (counts.messages_delivered, counts.messages_unrouted) == (36 + 27, 0)


def test_one_run_behind_a_message_in_two_reads_comes_behind_it(world: World) -> None:
    everything = world.consumer(subscribe())
    first, behind = message(b"a", b"1" * 20_000), message(b"a", b"2" * 20_000)
    producer = world.producer(first)
    everything.taken()
    producer.send(first[:100], first[100:] + behind)
    assert everything.taken() == first + behind
