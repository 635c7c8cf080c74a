"""Random subscriptions and messages, cut anywhere, against the plainest model: a dict of sets."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kqmsgq.repeats import WORTH_MESSAGES, count_messages, repeats_for_counting
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import message, subscribe, unsubscribe
from tests.kqmsgq.world import Peer, World

NAMES = [b"", b"a", b"b", b"queue-10", b"queue-9", b"n" * 255, b"m" * 256, b"l" * 3000]
SIZES = [0, 1, 7, 100, 255, 256, 300, 65535, 65536, 70000]


@attrs.define
class Model:
    """Who is subscribed, and what each consumer is to get, in the order of the messages."""

    by_name: dict[bytes, set[int]] = attrs.field(factory=dict)
    every: set[int] = attrs.field(factory=set)
    expected: dict[int, list[bytes]] = attrs.field(factory=dict)

    def subscribe(self, consumer: int, name: bytes) -> None:
        (self.by_name.setdefault(name, set()) if name else self.every).add(consumer)

    def unsubscribe(self, consumer: int, name: bytes) -> None:
        if name:
            self.by_name.get(name, set()).discard(consumer)
        else:
            self.every.discard(consumer)
            for those in self.by_name.values():
                those.discard(consumer)

    def publish(self, name: bytes, event: bytes) -> None:
        for consumer in self.by_name.get(name, set()) | self.every:
            self.expected.setdefault(consumer, []).append(event)


consumer_steps = st.tuples(
    st.sampled_from(["subscribe", "unsubscribe"]), st.integers(0, 3), st.sampled_from(NAMES)
)
one_message = st.tuples(st.sampled_from(NAMES), st.sampled_from(SIZES))
rounds = st.tuples(
    st.lists(st.tuples(st.sampled_from(NAMES[:5]), st.sampled_from(SIZES[:7])), min_size=1, max_size=20),
    st.integers(1, 3 * WORTH_MESSAGES),
)
"""What comes round again, and how often."""
messages = st.lists(
    st.one_of(one_message.map(lambda one: [one]), rounds.map(lambda drawn: drawn[0] * drawn[1])), max_size=6
)
steps = st.lists(
    st.one_of(consumer_steps, st.tuples(st.just("publish"), st.integers(0, 1), messages)), max_size=25
)


@given(messages)
def test_messages_are_counted_as_they_are(parts: list[list[tuple[bytes, int]]]) -> None:
    events = [message(name, b"x" * size) for part in parts for name, size in part]
    counting = repeats_for_counting()
    for begin in (0, 1, 3):
        assert count_messages(b"".join(events[begin:]), counting) == len(events[begin:])


@given(steps, st.data(), st.sampled_from([KqmsgqSettings(), KqmsgqSettings(message_bytes_max=65536 + 5000)]))
def test_every_consumer_gets_what_the_model_says_in_each_producers_order(
    steps: Sequence[tuple[str, int, object]], data: st.DataObject, kq_settings: KqmsgqSettings
) -> None:
    world = World(kq_settings)
    model = Model()
    consumers = [world.consumer() for _ in range(4)]
    producers = [world.producer(), world.producer()]
    serial = 0
    for what, who, argument in steps:
        if what == "publish":
            assert isinstance(argument, list)
            events = []
            for name, size in (one for part in argument for one in part):
                serial += 1
                body = serial.to_bytes(4, "big") * (size // 4 + 1)
                events.append(message(name, body[:size]))
                model.publish(name, events[-1])
            if data.draw(st.booleans(), label="each alone"):
                producers[who].send(*events)
            else:
                _send_cut(producers[who], b"".join(events), data)
        else:
            assert isinstance(argument, bytes)
            consumers[who].send((subscribe if what == "subscribe" else unsubscribe)(argument))
            getattr(model, what)(who, argument)
    for number, consumer in enumerate(consumers):
        expected = model.expected.get(number, [])
        assert consumer.taken() == b"".join(expected)
        assert consumer.session.traffic == {"messages_in": 0, "messages_out": len(expected)}
    counts = world.counts
    assert counts.messages_in == serial == sum(each.session.traffic["messages_in"] for each in producers)
    assert counts.messages_delivered == sum(map(len, model.expected.values()))
    assert counts.faults == {}


def _send_cut(peer: Peer, sent: bytes, data: st.DataObject) -> None:
    """In reads of sizes as they may come."""
    at = 0
    step = data.draw(st.sampled_from([1 << 20, 65536, 10_000, 1000]), label="read")
    for cut in (*sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=3), label="cuts")), len(sent)):
        while at < cut:
            peer.send(sent[at : min(at + step, cut)])
            at = min(at + step, cut)


@pytest.mark.parametrize("count", [1, 16, 100])
def test_a_stream_of_rounds_arrives_whole_however_it_is_cut(count: int) -> None:
    names = [b"q%d" % number for number in range(count)]
    sent = b"".join(message(names[serial % len(names)], b"%8d" % serial) for serial in range(600))
    for step in (1, 2, 3, 7, 19, 22, 23, 100, 1000, 4096, 6000):
        world = World()
        everything = world.consumer(subscribe())
        named = world.consumer(subscribe(names[0]))
        world.producer().send(*(sent[at : at + step] for at in range(0, len(sent), step)))
        assert everything.taken() == sent
        assert named.taken() == b"".join(
            message(names[0], b"%8d" % serial) for serial in range(0, 600, len(names))
        )


@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 300, 301, 599])
def test_what_is_wrong_amid_rounds_is_found_and_all_before_it_delivered(at: int) -> None:
    names = [b"q%d" % number for number in range(16)]
    events = [message(names[serial % 16], b"%8d" % serial) for serial in range(600)]
    for wrong in (b">" + events[at][1:], b"*\0\1\0\0" + events[at][5:]):
        world = World()
        everything = world.consumer(subscribe())
        world.consumer(subscribe(names[3]))
        producer = world.producer()
        producer.send(b"".join([*events[:320], *events[:at], wrong, *events[at + 1 :]]))
        assert producer.fault is not None
        assert everything.taken() == b"".join([*events[:320], *events[:at]])


def test_a_subscription_amid_rounds_counts_from_the_next_read_on() -> None:
    names = [b"q%d" % number for number in range(16)]
    events = b"".join(message(names[serial % 16], b"x" * 50) for serial in range(320))
    world = World()
    first = world.consumer(subscribe(names[0]))
    producer = world.producer()
    for _ in range(3):
        producer.send(events)
    late = world.consumer(subscribe(names[0]) + subscribe(names[1]))
    producer.send(events)
    first.send(unsubscribe())
    producer.send(events)
    assert len(first.messages()) == 4 * 20
    assert len(late.messages()) == 2 * 40
