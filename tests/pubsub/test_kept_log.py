"""What is kept for who is away, on a disk that is killed and cut off at any moment."""

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pubsub.kept
from pubsub.kept import unpacked
from pubsub.listener import PubsubService, open_pubsub
from pubsub.settings import KEPT_LOG, NAMESPACE, PubsubSettings
from pubsub.wire import FRAME_BYTES, Command, Kind, datagram, encode_command, encode_id, frame
from shared.access import ANONYMOUS, Access, Guard, User
from shared.budget import unbounded
from shared.net.datagram_sink import Frames
from shared.plugin import Context, UdpEndpoint
from shared.storage.log import Log
from tests.pubsub.world import LOG, Peer, framed
from tests.support.connections import MemoryConnection
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, open_store, read_all, records

KEPT_BY = {b"A": b"x/*", b"B": b"*"}
MODE = {"durability": ALWAYS}


class Life:
    """A server on a disk; `sessions` is for its peers."""

    def __init__(self, **settings: int) -> None:
        self.disk = FakeDisk()
        self.settings = PubsubSettings(**MODE, **settings)  # type: ignore[arg-type]
        self.number = 0
        self.budget = unbounded()
        self.access: Guard | None = None
        self.service: PubsubService

    async def start(self) -> None:
        self.context = Context(await open_store(self.disk), LOG, budget=self.budget, access=self.access)
        self.service = await open_pubsub(self.context, self.settings)
        self.sessions = self.service.sessions
        self.settle()

    async def crash(self, power: int | None = None) -> None:
        """`power`: the power goes, too, and a seed says what the disk has of what was not synced."""
        self.context.store.abandon()
        if power is None:
            self.disk = self.disk.kill()
        else:
            source = random.Random(power)
            self.disk = self.disk.power_cut().boot(lambda n, _: source.randrange(n))
        await self.start()

    def settle(self) -> None:
        self.context.store.commit_pending()

    def connect(self, client_id: bytes) -> Peer:
        peer = Peer(self, MemoryConnection(), self.access)  # type: ignore[arg-type]
        peer.send(encode_id(client_id))
        self.settle()
        return peer

    def keep(self, client_id: bytes, pattern: bytes) -> None:
        peer = self.connect(client_id)
        peer.send(encode_command(Command.KEEP, pattern))
        peer.lose()
        self.settle()

    def publish(self, *topics: bytes, size: int = 0) -> None:
        endpoint = self.service.endpoints[1]
        assert isinstance(endpoint, UdpEndpoint)
        sent = [datagram(topic, Kind.STRING, b"." * (1 + size)) for topic in topics]
        frames = b"".join(framed(each, b"127.0.0.1:9") for each in sent)
        left: Frames | None = (frames, [len(each) for each in sent])
        while left is not None:
            left = endpoint.sink.receive_frames(*left)
        self.settle()

    def held(self, client_id: bytes) -> int:
        return self.sessions.kept.held(client_id)[0]

    @property
    def log_bytes(self) -> int:
        return log_of(self).end - log_of(self).first


@attrs.define
class Client:
    """`due`: what it must get, in order; `may`: those that it may miss, because they were sent as it was cut
    off from a server that died."""

    peer: Peer | None = None
    due: list[bytes] = attrs.Factory(list)
    may: set[bytes] = attrs.Factory(set)
    got: list[bytes] = attrs.Factory(list)

    def read(self, frames_max: int) -> None:
        """The system takes so many frames, and the client has read them."""
        assert self.peer is not None
        outbox = self.peer.connection.outbox
        data = b""
        while outbox.chunks and len(data) < frames_max * FRAME_BYTES:
            first = outbox.chunks[0]
            room = frames_max * FRAME_BYTES - len(data)
            part = first.read(room) if not isinstance(first, bytes | memoryview) else bytes(first[:room])
            outbox.advance(len(part))
            data += part
        assert len(data) % FRAME_BYTES == 0
        self.got += [data[at + 50 : at + 101].rstrip(b"\0") for at in range(0, len(data), FRAME_BYTES)]


Step = tuple[Any, ...]
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from([b"x", b"y"]), min_size=1, max_size=6)),
    st.tuples(st.just("connect"), st.sampled_from(sorted(KEPT_BY))),
    st.tuples(st.just("read"), st.sampled_from(sorted(KEPT_BY)), st.integers(1, 9)),
    st.tuples(st.sampled_from(["leave", "half-close"]), st.sampled_from(sorted(KEPT_BY))),
    st.tuples(st.just("kill")),
    st.tuples(st.just("power"), st.integers(0, 99)),
)


@given(st.lists(STEPS, min_size=5, max_size=40), st.sampled_from([0, 300, 1 << 16]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_is_kept_is_lost_or_comes_twice(
    monkeypatch: pytest.MonkeyPatch,
    steps: Sequence[Step],
    slack: int,
) -> None:
    monkeypatch.setattr(pubsub.kept, "SLACK_BYTES", slack)
    trio.run(_nothing_is_lost, steps)


async def _nothing_is_lost(steps: Sequence[Step]) -> None:
    life = Life()
    await life.start()
    clients = {client_id: Client() for client_id in KEPT_BY}
    for client_id, pattern in KEPT_BY.items():
        life.keep(client_id, pattern)
    sent = 0
    for what, *rest in steps:
        client = clients.get(rest[0]) if rest and isinstance(rest[0], bytes) else None
        if what == "publish":
            topics = [b"%b/%d" % (name, sent + n) for n, name in enumerate(rest[0])]
            sent += len(topics)
            life.publish(*topics)
            clients[b"A"].due += [each for each in topics if each.startswith(b"x")]
            clients[b"B"].due += topics
            for each in clients.values():
                if each.peer is not None:  # what it is sent at once is in no log
                    each.may.update(topics)
        elif what in ("kill", "power"):
            for each in clients.values():
                each.peer = None
            await life.crash(*rest)
        elif what == "connect":
            if client is not None and client.peer is None:
                client.peer = life.connect(rest[0])
        elif client is not None and client.peer is not None:
            if what == "read":
                client.read(rest[1])
            else:
                if what == "half-close":
                    client.peer.close_input()
                client.peer.lose()
                client.peer = None
            life.settle()
    for client_id, client in clients.items():
        client.peer = client.peer or life.connect(client_id)
        client.read(1_000)
        assert [each for each in client.due if each in client.got or each not in client.may] == client.got
    life.settle()
    assert life.held(b"A") == life.held(b"B") == 0


async def test_what_many_keep_is_written_once_and_each_takes_it_alone() -> None:
    life = Life()
    await life.start()
    for number in range(50):
        life.keep(b"c%d" % number, b"*")
    before = life.log_bytes
    life.publish(b"a", b"b", size=1400)
    assert life.log_bytes - before < 2 * 3_000
    assert len(life.connect(b"c7").topics()) == 2
    life.settle()
    await life.crash()
    assert (life.held(b"c7"), life.held(b"c8")) == (0, 2)


async def test_the_log_stays_short_though_one_message_waits_for_ever() -> None:
    life = Life()
    await life.start()
    life.keep(b"old", b"old")
    life.keep(b"A", b"new")
    life.publish(b"old")
    for _ in range(200):
        life.publish(*[b"new"] * 10, size=100)
        peer = life.connect(b"A")
        assert len(peer.topics()) == 10
        peer.lose()
        life.settle()
    assert life.log_bytes < 4 * pubsub.kept.SLACK_BYTES
    await life.crash(power=1)
    assert (life.held(b"old"), life.held(b"A")) == (1, 0)


async def test_what_was_dropped_for_newer_ones_is_not_back() -> None:
    life = Life(kept_messages_max=3)
    await life.start()
    life.keep(b"A", b"*")
    life.publish(*(b"%d" % number for number in range(10)))
    life.settings = PubsubSettings(**MODE)  # type: ignore[arg-type]
    await life.crash()
    assert life.connect(b"A").topics() == [b"7", b"8", b"9"]


async def test_what_a_clean_stop_of_an_older_version_kept_is_taken_over_once() -> None:
    life = Life()
    store = await open_store(life.disk)
    log, _ = store.namespace(NAMESPACE, ALWAYS).create(KEPT_LOG)
    some = [frame(b"1.2.3.4:5", b"t%d" % number, Kind.STRING, b"hello").rstrip(b"\0") for number in range(3)]
    log.append(records(*(b"A\0" + each for each in some), b"nobody's"), 4)
    store.commit_pending()
    await store.close()
    await life.start()
    assert all(unpacked(each)[0] for each in await read_all(log_of(life)))  # type: ignore[index]
    peer = life.connect(b"A")
    taken = peer.connection.outbox.chunks[0].read(FRAME_BYTES)  # type: ignore[index, union-attr]
    peer.connection.outbox.advance(len(taken))
    life.settle()
    await life.crash()
    assert life.connect(b"A").topics() == [b"t1", b"t2"]


async def test_what_the_store_does_not_take_is_kept_in_memory_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    life = Life()
    await life.start()
    life.keep(b"A", b"*")
    life.publish(b"before")
    life.disk.full = True
    for _ in range(200):
        life.publish(b"full", size=1400)
    unwritten = life.sessions.counts.kept_unwritten
    assert life.held(b"A") == 201
    assert 50 < unwritten < 201
    assert capsys.readouterr().out.count("what is kept for clients that are away cannot be written") <= 1
    life.disk.full = False
    await life.crash()
    assert life.held(b"A") == 201 - unwritten


async def test_what_has_ended_is_not_back() -> None:
    life = Life()
    await life.start()
    life.keep(b"A", b"k/*")
    life.publish(b"k/1")
    (end,) = life.service.objects[0].actions
    assert (await end.call(life.sessions.clients[b"A"], {}, False))["deleted"] == 1
    await life.crash()
    assert life.sessions.clients == {}
    assert life.held(b"A") == 0


async def test_subscriptions_that_are_no_longer_allowed_are_not_back() -> None:
    life = Life()
    life.access = Access(None).guard("pubsub")
    await life.start()
    life.keep(b"A", b"k/*")
    life.publish(b"k/1")
    peer = life.connect(b"A")
    life.access.access.replace({ANONYMOUS: User(ANONYMOUS, ())})
    life.settle()
    assert not peer.closed
    await life.crash()
    assert life.sessions.subscriptions == 0


def log_of(life: Life) -> Log:
    return life.context.store.namespace(NAMESPACE, ALWAYS).logs[KEPT_LOG]
