"""All protocols that keep something, on one data folder and without sockets: filled, looked at, started
again.

`fill` does what clients do, in all of them, and `look` tells what they would be given. What both say is
compared by who damages the folder in between.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

import dmp.listener
import dms.opening
import logmq.listener
import pubsub.listener
from dmp.broker import Broker as DmpBroker
from dmp.declarations import ExchangeKind, QueueKind
from dmp.message import Head
from dmp.queues import Queue as DmpQueue
from dmp.settings import DmpSettings
from dms.engine import Engine as DmsEngine
from dms.refusals import Refusals as DmsRefusals
from dms.settings import DmsSettings
from dms.times import Times
from dms.wire import Type, pack, pack_name
from logmq.broker import Broker as LogmqBroker
from logmq.settings import LogmqSettings
from pubsub.listener import PubsubService
from pubsub.sessions import Sessions
from pubsub.settings import PubsubSettings
from pubsub.wire import Command, Kind, datagram, encode_command, encode_id
from shared.errors import CorruptRecord, StoreError
from shared.plugin import Context
from shared.recording.recorder import Recording
from shared.recording.settings import RecordSettings
from shared.storage.log import Log
from shared.storage.settings import Durability, StorageSettings
from shared.storage.store import Store
from tests.dms.world import Peer as DmsPeer
from tests.dms.world import deliveries
from tests.pubsub.world import Peer as PubsubPeer
from tests.pubsub.world import framed
from tests.support.connections import MemoryConnection
from tests.support.stores import ask, inline, payloads, records

LOG = structlog.stdlib.get_logger("test")
STORAGE = StorageSettings(
    segment_bytes=1 << 20, zero_fill=False, scrub_bytes_per_second=0, reserve_bytes_min=0, reserve_bytes_max=0
)
PERSISTENT = b"\x10\x00\x02"
LATER_SECONDS = 10_000.0
"""By then all delays and pauses are over."""

Found = dict[tuple[str, ...], "Counter[Any]"]
"""What there is: by protocol and place, the things that are there, and how many of each."""


class Everything:
    """The protocols, opened. `refused`: places that answered with an error when they were looked at."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.logmq: LogmqBroker
        self.dms: DmsEngine
        self.engine: DmsEngine  # the same, as a peer of DMS calls it
        self.refusals: DmsRefusals
        self.pubsub: PubsubService
        self.sessions: Sessions  # as a peer of pub/sub calls them
        self.dmp: DmpBroker
        self.recording: Recording
        self.now = 0.0
        self.refused: set[tuple[str, ...]] = set()
        self.peers: list[DmsPeer] = []

    @classmethod
    async def open(cls, folder: Path) -> "Everything":
        self = cls(await Store.open(folder, STORAGE, in_thread=inline))
        try:
            context = Context(self.store, LOG)
            self.recording = Recording(self.store, RecordSettings(protocols=("kqmsgq",)), LOG)
            self.dmp = await dmp.listener.open_broker(context, DmpSettings())
            times = Times(lambda: self.now, lambda: 1_700_000_000_000)
            self.dms = self.engine = await dms.opening.open_engine(context, DmsSettings(), times)
            self.refusals = DmsRefusals(self.dms.counts, LOG)
            self.logmq = await logmq.listener.open_broker(context, LogmqSettings())
            self.pubsub = await pubsub.listener.open_pubsub(context, PubsubSettings(retain=("news/+",)))
            self.sessions = self.pubsub.sessions
        except BaseException:
            self.store.abandon()
            raise
        return self

    def settle(self) -> None:
        self.dmp.flush()
        self.store.commit_pending()
        for peer in self.peers:
            peer.pump()

    def abandon(self) -> None:
        """As `kill -9` does."""
        self.store.abandon()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Its background work goes on meanwhile, and ends as at a clean stop."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.store.run)
            nursery.start_soon(self.pubsub.run)
            yield
            nursery.cancel_scope.cancel()

    # -- what clients do

    async def fill(self, part: int) -> None:
        """Something in every protocol; what comes with another `part` is other, and behind it."""
        await self._fill_logmq(part)
        await self._fill_dms(part)
        self._fill_dmp(part)
        self._fill_pubsub(part)
        track = self.recording.of("kqmsgq").track(1, name=b"ticks")  # type: ignore[union-attr]
        for number in range(20):
            track.record(1, b"recorded %d.%03d" % (part, number) + bytes(500))
        self.recording.flush()
        self.settle()

    async def _fill_logmq(self, part: int) -> None:
        broker = self.logmq
        for name, count in (("orders", 150), ("invoices", 3), (f"part{part}", 5)):
            log = broker.topics.writable_untrusted(name.encode())
            for number in range(count):
                _, ticket = log.append(records(_body(name, part, number)), 1)
                if number % 10 == 9:
                    await self.store.wait(ticket)
            self.settle()
            for group in ("billing", f"group{part}"):
                broker.groups.commit(group, log, log.end)
            broker.writers.write(log, "ann", "writer", part + 1, [(records(_body(name, part, count)), 1)])
            self.settle()

    async def _fill_dms(self, part: int) -> None:
        broker = self.dms
        asked: dict[str, dict[str, Any]] = {
            "jobs": {},
            "later": {"delay_ms": 60_000},
            "tried": {"max_deliveries": 1, "dead_letter": "dead"},
            "dead": {},
            f"part{part}": {},
        }
        for name, options in asked.items():
            queue = broker.find(name) or broker.create(name, options)[0]
            bodies = [_body(name, part, number) for number in range(200 if name == "jobs" else 12)]
            for start in range(0, len(bodies) if name != "dead" else 0, 10):
                ticket = queue.produce(bodies[start : start + 10], sum(map(len, bodies[start : start + 10])))
                assert ticket is not None
                await self.store.wait(ticket)
        peer = self._dms_peer()
        taken = peer.consume("jobs", 10)
        peer.ack(*[number for number, _ in taken[:5]])  # the others are held until the end
        peer.nack(*[number for number, _ in peer.consume("tried", 4)])
        self.settle()

    def _fill_dmp(self, part: int) -> None:
        broker, owner = self.dmp, self.dmp.new_application("guest")
        topology = broker.topology
        topology.declare_exchange(b"events", ExchangeKind("topic", durable=True))
        topology.declare_exchange(b"part%d" % part, ExchangeKind("fanout", durable=True))
        for name in (b"audit", b"mail", b"part%d" % part):
            queue, _ = topology.declare_queue(name, QueueKind(durable=True), owner)
            topology.bind(b"events", queue, b"%s.#" % name)
            topology.bind(b"part%d" % part, queue)
            for number in range(150 if name == b"audit" else 8):
                body = _body(name.decode(), part, number)
                of = Head(b"events", name + b".x", len(body), PERSISTENT)
                broker.publish(of, broker.route(b"events", of), [body])
                if number % 10 == 9:
                    self.settle()
            self.settle()
        audit = broker.queues[b"audit"]
        got = [message for message in (audit.get(no_ack=False) for _ in range(10)) if message is not None]
        audit.settle(got[:5])
        self.settle()

    def _fill_pubsub(self, part: int) -> None:
        for number in range(10):
            client = b"client%d.%d" % (part, number)
            peer = PubsubPeer(self, MemoryConnection())  # type: ignore[arg-type]
            peer.send(encode_id(client), encode_command(Command.KEEP, b"news/%d" % number))
            peer.send(encode_command(Command.SUBSCRIBE, b"mail/*"))
            peer.lose()
        sink = self.pubsub.endpoints[1].sink  # type: ignore[union-attr]
        for number in range(10):
            sent = datagram(b"news/%d" % number, Kind.STRING, b"news %d.%d" % (part, number))
            left: Any = (framed(sent, b"127.0.0.1:9"), [len(sent)])
            while left is not None:
                left = sink.receive_frames(*left)
        self.settle()

    def _dms_peer(self) -> DmsPeer:
        peer = DmsPeer(self, MemoryConnection(now=self.now))  # type: ignore[arg-type]
        self.peers.append(peer)
        peer.send(pack(Type.HANDSHAKE, 1, b"test"))
        peer.take()
        return peer

    # -- what clients would be given

    async def look(self) -> Found:
        """Everything that is there; much of it is taken, so the folder is started again afterwards."""
        found: Found = {}
        namespaces = self.store.namespace("recorded", Durability("always")).logs
        for name, log in namespaces.items():
            found["recorded", name] = Counter(await self._read(log, ("recorded", name)))
        for topic in self.logmq.topics.all():
            found["topic", topic.name] = Counter(await self._read(topic, ("topic", topic.name)))
        logs = self.logmq.topics.by_id()
        found["groups",] = Counter(
            (row.group, row.topic, row.offset) for row in self.logmq.groups.each(logs.get)
        )
        found["writers",] = Counter({"slots": len(self.logmq.writers)})
        self._look_at_dmp(found)
        await self._look_at_dms(found)
        for client in self.pubsub.sessions.clients.values():
            found["session", client.name] = Counter(client.topics.items())
            messages, _ = self.pubsub.sessions.kept.held(client.id)
            found["kept", client.name] = Counter({"messages": messages})
        assert self.sessions.retained is not None
        for retained, _ in self.sessions.retained.items():
            # Which one is not asked: where the last is lost, the one before may be back.
            found["retained", retained.decode()] = Counter(["a message"])
        return found

    async def _read(self, log: Log, place: tuple[str, ...]) -> list[bytes]:
        found: list[bytes] = []
        offset = log.first
        while offset < log.visible:
            data = await ask(log.read, offset, 1 << 20)
            if isinstance(data, CorruptRecord):
                self.refused.add(place)
                offset = log.lost_at(offset).end
            elif isinstance(data, StoreError):
                raise data
            else:
                found += payloads(data)
                offset += len(data)
        return found

    def _look_at_dmp(self, found: Found) -> None:
        for name, exchange in self.dmp.exchanges.items():
            if exchange.kind.durable and not name.startswith(b"amq.") and name:
                found["exchange", name.decode()] = Counter([exchange.kind.type])
                found["bindings", name.decode()] = Counter(
                    (binding.destination, binding.key) for binding in exchange.bindings
                )
        for name, queue in self.dmp.queues.items():
            found["dmp", name.decode()] = Counter(_drained(queue))
            if queue.damaged:
                self.refused.add(("dmp", name.decode()))

    async def _look_at_dms(self, found: Found) -> None:
        self.now = LATER_SECONDS
        while self.dms.times.timers.next <= self.dms.times.now_ms():  # in turns: the machine may be busy
            self.dms.times.timers.run_due()
            self.settle()
        for queue in list(self.dms.queues.values()):
            peer = self._dms_peer()  # what it gets it holds until the end: none of it comes to another queue
            place = "dms", queue.text
            bodies: list[bytes] = []
            tries = 3
            while tries:
                peer.send(pack(Type.CONSUME, 7, pack_name(queue.text)) * 50)
                frames = peer.take()
                got = [body for _, body in deliveries(frames)]
                bodies += got
                refused = [frame for frame in frames if frame[0] == Type.ERROR]
                if refused:
                    self.refused.add(place)
                tries = tries - 1 if refused and not got else 0 if len(got) < 50 and not refused else 3
            found[place] = Counter(bodies)
            found["options", queue.text] = Counter([json.dumps(attrs.asdict(queue.options), sort_keys=True)])


def _body(name: str, part: int, number: int) -> bytes:
    return f"{name} {part}.{number:04d} ".encode() + bytes(range(256)) * 3


def _drained(queue: DmpQueue) -> Sequence[bytes]:
    return [message.bodies[0] for message in iter(lambda: queue.get(no_ack=True), None)]
