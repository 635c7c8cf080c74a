"""Subscriptions from the past: what was recorded, then what comes, nothing missing or twice in between."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pubsub.listener
from pubsub.client import Subscriber
from pubsub.listener import open_pubsub
from pubsub.look_back import LookBack
from pubsub.session import LOOKS_BACK, Session
from pubsub.settings import PubsubSettings
from pubsub.wire import (
    FRAME_BYTES,
    Command,
    Fault,
    decode_since,
    encode_command,
    encode_id,
    encode_since,
    since_minutes,
)
from shared.access import Access, User
from shared.client.dial import Address
from shared.client.trio_loop import trio_loop
from shared.errors import RemoteProtocolError
from shared.plugin import Context
from shared.recording.recorder import Recording
from shared.recording.settings import RecordSettings
from tests.pubsub.test_kept_log import MODE, Life
from tests.pubsub.world import LOG, Peer, World
from tests.support.connections import MemoryConnection
from tests.support.stores import HandClock, open_store
from tests.support.turns import short_turns


class Recorded(Life):
    """A server that records. It is 1,000 minutes old when it starts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = PubsubSettings(**MODE, **settings)
        self.clock = HandClock()

    async def start(self) -> None:
        store = await open_store(self.disk, clock=self.clock)
        chosen = RecordSettings(protocols=("pubsub",))
        self.recording = Recording(store, chosen, LOG, wall_us=lambda: self.clock.wall * 1000)
        self.context = Context(store, LOG, recorder=self.recording.of("pubsub"))
        self.service = await open_pubsub(self.context, self.settings)
        self.sessions = self.service.sessions
        self.settle()

    def asked(self, client_id: bytes, *commands: bytes) -> Peer:
        peer = self.connect(client_id)
        peer.send(b"".join(commands))
        return peer


@pytest.fixture
async def life(nursery: trio.Nursery) -> Recorded:
    life = Recorded()
    await life.start()
    nursery.start_soon(life.service.run)
    await trio.testing.wait_all_tasks_blocked()
    return life


async def read_on(peer: Peer) -> list[bytes]:
    """The topics of all that comes until nothing does."""
    topics: list[bytes] = []
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if peer.wake_if_due() or (some := peer.topics()) == []:
            if not peer.connection.outbox.chunks and peer.connection.deadline > peer.connection.now:
                return topics
            continue
        topics += some


async def test_the_past_comes_first_and_then_what_came_since(life: Recorded) -> None:
    life.publish(b"x/1", b"y/1", b"x/2")
    life.clock.advance(60)
    life.publish(b"x/3")
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    life.publish(b"x/4", b"y/2")
    await trio.testing.wait_all_tasks_blocked()
    life.publish(b"x/5")
    assert await read_on(peer) == [b"x/1", b"x/2", b"x/3", b"x/4", b"x/5"]
    assert life.sessions.counts.past_messages == 3
    peer.lose()
    life.publish(b"x/6")
    assert life.connect(b"A").topics() == [b"x/6"], "it is kept for it, as type 3"


async def test_who_asks_before_the_service_runs_gets_it_then(nursery: trio.Nursery) -> None:
    life = Recorded()
    await life.start()
    life.publish(b"x/1")
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    nursery.start_soon(life.service.run)
    assert await read_on(peer) == [b"x/1"]


async def test_a_bug_there_costs_that_client_alone(life: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    life.publish(b"x/1")
    monkeypatch.setattr(LookBack, "past_frames", lambda *_: 1 / 0)
    failed: list[Exception] = []
    monkeypatch.setattr(MemoryConnection, "fail", lambda _, error: failed.append(error))
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    await trio.testing.wait_all_tasks_blocked()
    life.publish(b"x/2")
    assert [type(error) for error in failed] == [ZeroDivisionError]
    assert peer.topics() == [b"x/2"]


async def test_no_more_than_was_asked_for(life: Recorded) -> None:
    for number in range(10):
        life.publish(b"x/%d" % number)
        life.recording.flush()
        life.clock.advance(60)
    assert await read_on(life.asked(b"A", encode_since(3, b"x/*"))) == [b"x/7", b"x/8", b"x/9"]
    two = life.asked(b"B", encode_since(1, b"x/*"), encode_since(2, b"+/8"))
    assert await read_on(two) == [b"x/8", b"x/9"], "asked for together, each message comes once"
    assert await read_on(life.asked(b"C", encode_since(0, b"x/*"))) == []


async def test_type_0_behind_it_ends_the_keeping_and_not_the_past(life: Recorded) -> None:
    life.publish(b"x/1")
    peer = life.asked(b"A", encode_since(5, b"x/*"), encode_command(Command.SUBSCRIBE, b"x/*"))
    assert await read_on(peer) == [b"x/1"]
    peer.lose()
    life.publish(b"x/2")
    assert life.connect(b"A").topics() == []


async def test_where_nothing_is_recorded_it_is_type_3(world: World) -> None:
    peer = world.connect(encode_id(b"A") + encode_since(60, b"x/*"))
    world.publish(b"x/1")
    assert peer.topics() == [b"x/1"]
    peer.lose()
    world.publish(b"x/2")
    assert world.connect(encode_id(b"A")).topics() == [b"x/2"]


async def test_what_is_retained_comes_once_with_its_past(nursery: trio.Nursery) -> None:
    life = Recorded(retain=("x/*",))
    await life.start()
    nursery.start_soon(life.service.run)
    life.publish(b"x/1")
    life.recording.flush()
    life.clock.advance(600)
    life.publish(b"x/2", b"x/2")
    await trio.testing.wait_all_tasks_blocked()
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    assert await read_on(peer) == [b"x/1", b"x/2", b"x/2"]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub.listener, "PAST_BYTES", 100)
    short_turns(monkeypatch, 1, 1)


async def test_who_leaves_amid_the_past_has_kept_what_came_since(small_pieces: None, life: Recorded) -> None:
    for number in range(5):
        life.publish(b"x/%d" % number)
        life.recording.flush()
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    await trio.testing.wait_all_tasks_blocked()
    life.publish(b"x/5")
    assert peer.topics() == [b"x/0"], "one piece at a time"
    peer.lose()
    await trio.testing.wait_all_tasks_blocked()
    life.publish(b"x/6")
    assert life.connect(b"A").topics() == [b"x/5", b"x/6"]
    assert life.sessions.clients[b"A"].look_back is None


async def test_a_later_subscription_waits_until_the_past_was_sent(small_pieces: None, life: Recorded) -> None:
    for number in range(3):
        life.publish(b"x/%d" % number, b"y/%d" % number)
        life.recording.flush()
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    await trio.testing.wait_all_tasks_blocked()
    peer.send(encode_since(5, b"y/*"))
    assert peer.session.stopped & LOOKS_BACK
    life.publish(b"x/3", b"y/3")
    assert await read_on(peer) == [b"x/0", b"x/1", b"x/2", b"x/3", b"y/0", b"y/1", b"y/2", b"y/3"]


async def test_who_unsubscribes_or_loses_the_right_gets_no_more_of_the_past(
    monkeypatch: pytest.MonkeyPatch, life: Recorded
) -> None:
    monkeypatch.setattr(pubsub.listener, "PAST_BYTES", 100)
    for number in range(3):
        life.publish(b"x/%d" % number, b"y/%d" % number, b"z/%d" % number)
        life.recording.flush()
    peer = life.asked(b"A", *(encode_since(5, b"%b/*" % name) for name in (b"x", b"y", b"z")))
    await trio.testing.wait_all_tasks_blocked()
    peer.send(encode_command(Command.UNSUBSCRIBE, b"y/*"))
    client = life.sessions.clients[b"A"]
    life.sessions.end_subscriptions(client, [b"z/*"])
    topics = await read_on(peer)
    assert topics[:3] == [b"x/0", b"y/0", b"z/0"]
    assert topics[-2:] == [b"x/1", b"x/2"]
    assert list(client.topics) == [b"x/*"]


async def test_what_waits_has_the_bound_of_a_subscriber_that_does_not_read(
    small_pieces: None, nursery: trio.Nursery
) -> None:
    life = Recorded(subscriber_bytes_max=3 * FRAME_BYTES)
    await life.start()
    nursery.start_soon(life.service.run)
    await trio.testing.wait_all_tasks_blocked()
    life.publish(b"x/past")
    peer = life.asked(b"A", encode_since(5, b"x/*"))
    await trio.testing.wait_all_tasks_blocked()
    for number in range(5):
        life.publish(b"x/%d" % number)
    assert peer.connection.held_bytes == 3 * FRAME_BYTES, "it counts with the backlogs"
    assert await read_on(peer) == [b"x/past", b"x/2", b"x/3", b"x/4"]
    assert life.sessions.counts.frames_dropped == 2
    assert peer.connection.held_bytes == 0


async def test_what_retention_drops_meanwhile_and_what_is_damaged_is_left_out(
    small_pieces: None, life: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(300):
        life.publish(b"x/%d" % number, size=1000)
        life.recording.flush()
        life.settle()
        life.clock.advance(1)
    cut = life.sessions.cut()
    assert cut is not None
    log = cut[0]
    peer = life.asked(b"A", encode_since(60, b"x/*"))
    await trio.testing.wait_all_tasks_blocked()
    assert peer.topics() == [b"x/0"]
    log.drop_below(log.seek(life.clock.wall - 10_000))
    life.settle()
    topics = await read_on(peer)
    assert topics[-10:] == [b"x/%d" % number for number in range(290, 300)]
    assert len(topics) < 20


class Said(Subscriber):
    """A subscriber that is not connected."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.said: list[bytes] = []

    async def _say(self, said: bytes) -> None:
        self.said.append(said)

    def says_again(self) -> bytes:
        """Where it connects again."""
        return self._first_words()


async def test_the_client_asks_for_the_past_once(life: Recorded) -> None:
    assert [since_minutes(since, 10**12) for since in ("10m", "90s", "2h", 61.0, 0)] == [10, 2, 120, 2, 0]
    for wrong in ("soon", -1.0, 40_000_000.0, "2100-01-01"):
        with pytest.raises(ValueError, match=r"time|in the past"):
            since_minutes(wrong, 10**12)
    async with trio_loop() as loop:
        subscriber = Said(loop, Address("127.0.0.1", 1, kind="pub/sub"), encode_id(b"A"))
        await subscriber.subscribe("x/*", since="10m")
        await subscriber.subscribe("y/*", since=600, keep=True)
    assert subscriber.said == [
        encode_since(10, b"x/*") + encode_command(Command.SUBSCRIBE, b"x/*"),
        encode_since(10, b"y/*"),
    ]
    words = encode_command(Command.SUBSCRIBE, b"x/*") + encode_command(Command.KEEP, b"y/*")
    assert subscriber.says_again() == encode_id(b"A") + words


FORMS = [
    (b"10:home/*", (10, b"home/*")),
    (b"0:", (0, b"")),
    (b"525600:a:b", (525_600, b"a:b")),
    (b"ann:secret", None),
    (b":x", None),
    (b"", None),
    (b"10", "not '10'"),
    (b"-5:x", "not '-5'"),
    (b"525601:x", "not '525601'"),
    (b"0000001:x", "not '0000001'"),
]


@pytest.mark.parametrize(("topic", "found"), FORMS)
def test_a_subscription_from_the_past_is_minutes_and_a_pattern(topic: bytes, found: Any) -> None:
    if isinstance(found, str):
        with pytest.raises(RemoteProtocolError, match=found) as caught:
            decode_since(topic, may_log_in=True)
        assert caught.value.fault == Fault.SINCE
    else:
        assert decode_since(topic, may_log_in=True) == found


def test_a_bad_form_closes_the_connection_and_is_counted_by_name(world: World) -> None:
    for wrong in (b"99999999:x", b"soon:x"):
        assert world.connect(encode_id(b"A") + encode_command(Command.LOGIN, wrong)).closed
    assert world.counts.faults == {"since": 2}


def test_a_user_may_be_named_by_a_number(world: World) -> None:
    gate = Access({"10": User("10", ())}).guard("pubsub")
    connection = MemoryConnection()
    session = Session(connection, world.sessions, gate)
    with pytest.raises(RemoteProtocolError, match="a login was refused"):
        session.receive(encode_id(b"A") + encode_command(Command.LOGIN, b"10:secret"))


Step = tuple[Any, ...]
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=4)),
    st.tuples(st.just("read"), st.integers(1, 5)),
    st.tuples(st.just("run"), st.integers(1, 30)),
    st.tuples(st.just("flush")),
)


@given(
    st.lists(STEPS, max_size=15),
    st.lists(STEPS, min_size=3, max_size=25),
    st.booleans(),
    st.sampled_from([100, 1 << 18]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_is_missing_or_twice_between_the_past_and_what_comes(
    small_pieces: None, before: Sequence[Step], after: Sequence[Step], has_another: bool, piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pubsub.listener, "PAST_BYTES", piece)
        trio.run(_past_and_live, before, after, has_another)


async def _past_and_live(before: Sequence[Step], after: Sequence[Step], has_another: bool) -> None:
    life = Recorded()
    await life.start()
    sent: list[bytes] = []
    got: list[bytes] = []
    peer: Peer | None = None

    async def do(step: Step) -> None:
        match step:
            case "publish", names:
                topics = [b"%b/%d" % (name, len(sent) + at) for at, name in enumerate(names)]
                sent.extend(topics)
                life.publish(*topics)
            case "flush", *_:
                life.recording.flush()
                life.settle()
            case "run", times:
                for _ in range(times):
                    await trio.lowlevel.checkpoint()
            case "read", frames if peer is not None:
                outbox = peer.connection.outbox
                while outbox.chunks and frames:
                    first = outbox.chunks[0]
                    data = (
                        first[:FRAME_BYTES]
                        if isinstance(first, bytes | memoryview)
                        else first.read(FRAME_BYTES)
                    )
                    outbox.advance(len(data))
                    got.append(bytes(data[50:100]).rstrip(b"\0"))
                    frames -= 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.service.run)
        await trio.testing.wait_all_tasks_blocked()
        for step in before:
            await do(step)
        peer = life.asked(b"A", *[encode_command(Command.SUBSCRIBE, b"y/*")] * has_another)
        start = len(sent)
        peer.send(encode_since(5, b"x/*"))
        for step in after:
            await do(step)
        got += await read_on(peer)
        nursery.cancel_scope.cancel()
    past = [each for each in sent[:start] if each.startswith(b"x")]
    live = [each for each in sent[start:] if has_another or each.startswith(b"x")]
    assert got == past + live
