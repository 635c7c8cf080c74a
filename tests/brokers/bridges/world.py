"""All five protocols on one store without sockets, and bridges between them that are stepped by hand."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import structlog
import trio

from brokers.bridges.bridge import Bridge
from brokers.bridges.bridges import Bridges
from brokers.bridges.settings import BridgeSettings, parse_bridges
from dmp.declarations import QueueKind
from dmp.message import Head
from dmp.properties import NO_PROPERTIES
from dms import listener as dms
from dms.settings import DmsSettings
from kqmsgq.fanout import Producer
from kqmsgq.listener import KqmsgqService
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import message
from logmq import listener as logmq
from logmq.settings import LogmqSettings
from pubsub import listener as pubsub
from pubsub.settings import PubsubSettings
from pubsub.wire import DATAGRAM_BYTES_MIN, Kind, frame, take_frames
from shared.access import Access
from shared.bridging import BridgeEnds
from shared.budget import Account
from shared.plugin import Context, Service
from shared.storage.store import Store, Ticket
from shared.tracing import Observer
from tests.dmp.world import ready
from tests.support.fake_disk import FakeDisk
from tests.support.stores import FakeClock, open_store, payloads

PROTOCOLS = ("pubsub", "kqmsgq", "logmq", "dms", "dmp")
LOG = structlog.stdlib.get_logger("test")
STEPS_MAX = 10_000


def ends(protocol: str) -> BridgeEnds | None:
    if protocol not in PROTOCOLS:
        return None
    found: BridgeEnds = import_module(f"{protocol}.bridge").ENDS
    return found


def bridge(source: str, target: str, **more: Any) -> BridgeSettings:
    """As TOML has it; keys that are words of Python's end in `_`."""
    table = {"name": "b", "from": source, "to": target, **{key.rstrip("_"): more[key] for key in more}}
    (found,), problems = parse_bridges([table], ends)
    assert not problems, problems
    return found


class World:
    """Open one with `World.open`. Time stands still but for `clock`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = FakeClock()
        self.budget = Account("process", 1 << 30)
        self.access = Access()
        self.services: dict[str, Any] = {}
        self.bridges = Bridges(
            store,
            LOG,
            lambda name: self.services.get(name),
            ends,
            access=self.access,
            budget=self.budget,
            clock=lambda: self.clock.steady,
            wall=lambda: self.clock.wall / 1000,
        )
        self.seen: dict[str, list[tuple[bytes, bytes]]] = {"pubsub": [], "kqmsgq": []}

    @classmethod
    async def open(cls, store: Store | None = None, *bridges: BridgeSettings, **settings: Any) -> "World":
        world = cls(store or await open_store(FakeDisk()))
        context = Context(world.store, LOG, budget=world.budget)
        opened: dict[str, Service] = {
            "logmq": await logmq.open_service(context, settings.get("logmq") or LogmqSettings()),
            "dms": await dms.open_service(context, settings.get("dms") or DmsSettings(persist=True)),
            "pubsub": await pubsub.open_pubsub(context, PubsubSettings()),
            "kqmsgq": KqmsgqService(context, KqmsgqSettings()),
        }
        dmp = import_module("dmp.listener")
        broker = await dmp.open_broker(context, import_module("dmp.settings").DmpSettings())
        opened["dmp"] = dmp.DmpService(broker)
        world.services = opened
        world.services["pubsub"].sessions.observe(Observer(world._frames), b"*")
        world.services["kqmsgq"].queues.observe(Observer(world._messages), b"")
        await world.bridges.open()
        await world.bridges.change(bridges)
        return world

    # -- bridges

    def each(self) -> Sequence[Bridge]:
        found: Sequence[Bridge] = self.bridges.objects.items()
        return found

    @property
    def only(self) -> Bridge:
        (found,) = self.each()
        return found

    def carry(self) -> None:
        """Step all bridges until none has anything to do now."""
        for _ in range(STEPS_MAX):
            delays = [each.step() for each in self.each()]
            self.store.commit_pending()
            if not any(delay == 0 for delay in delays):
                return
        raise AssertionError("bridges go on and on")

    def later(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.carry()

    # -- what is sent in by a protocol's own way

    def make(self, protocol: str, name: str) -> None:
        """What is not made by writing."""
        if protocol == "dms" and self.services["dms"].engine.find(name) is None:
            self.services["dms"].engine.create(name, {})
        elif protocol == "dmp" and name.encode() not in self.services["dmp"].broker.queues:
            broker = self.services["dmp"].broker
            broker.topology.declare_queue(name.encode(), QueueKind(durable=True), broker.new_application(""))
        self.store.commit_pending()

    def put(self, protocol: str, name: str, *bodies: bytes) -> Ticket:
        """As `send`, to something durable; what says when it is acknowledged."""
        found: Ticket = getattr(self, f"_send_{protocol}")(name.encode(), bodies, b"")
        return found

    def send(self, protocol: str, name: str, *bodies: bytes, exchange: str = "") -> None:
        getattr(self, f"_send_{protocol}")(name.encode(), bodies, exchange.encode())
        self.store.commit_pending()

    def _send_logmq(self, name: bytes, bodies: Sequence[bytes], _: bytes) -> Any:
        log = self.services["logmq"].broker.topics.writable_untrusted(name)
        for body in bodies:
            _, ticket = log.append(len(body).to_bytes(4, "big") + body, 1)
        return ticket

    def _send_dms(self, name: bytes, bodies: Sequence[bytes], _: bytes) -> Any:
        return self.services["dms"].engine.queues[name].produce(bodies, sum(map(len, bodies)))

    def _send_dmp(self, name: bytes, bodies: Sequence[bytes], exchange: bytes) -> Any:
        broker = self.services["dmp"].broker
        ticket = None
        for body in bodies:
            head = Head(exchange, name, len(body), b"\x10\x00\x02" if not exchange else NO_PROPERTIES)
            ticket = broker.publish(head, broker.route(exchange, head), [body])
        broker.flush()
        return ticket

    def _send_kqmsgq(self, name: bytes, bodies: Sequence[bytes], _: bytes) -> None:
        Producer(self.services["kqmsgq"].queues).publish(b"".join(message(name, body) for body in bodies))

    def _send_pubsub(self, name: bytes, bodies: Sequence[bytes], _: bytes) -> None:
        self.datagrams([(name, Kind.STRING, body) for body in bodies])

    def datagrams(self, sent: Sequence[tuple[bytes, int, bytes]]) -> None:
        frames = b"".join(frame(b"10.0.0.1:9", *each) for each in sent)
        left = self.services["pubsub"].fanout.receive_frames(
            frames, [DATAGRAM_BYTES_MIN + len(body) for _, _, body in sent]
        )
        assert left is None

    # -- what has arrived

    async def found(self, protocol: str, name: str) -> list[bytes]:
        return list(await getattr(self, f"_found_{protocol}")(name))

    async def _found_logmq(self, name: str) -> Sequence[bytes]:
        log = self.services["logmq"].broker.topics.find(name)
        if log is None:
            return []
        found: list[bytes] = []
        at = log.first
        while at < log.visible:
            read: list[Any] = []
            log.read(at, 1 << 20, read.append)
            while not read:
                await trio.lowlevel.checkpoint()
            found += payloads(read[0])
            at += len(read[0])
        return found

    async def _found_dms(self, name: str) -> Sequence[bytes]:
        queue = self.services["dms"].engine.find(name)
        for _ in range(100):
            if queue.is_cold:
                queue.cold.fetch()
                await trio.lowlevel.checkpoint()
        runs = [*(run for run, _ in queue.returned_runs()), *queue.ready.runs]
        return [body for run in sorted(runs, key=lambda run: run.first) for body in run.bodies]

    async def _found_dmp(self, name: str) -> Sequence[bytes]:
        return ready(self.services["dmp"].broker.queues[name.encode()])

    async def _found_kqmsgq(self, name: str) -> Sequence[bytes]:
        return [body for at, body in self.seen["kqmsgq"] if at == name.encode()]

    async def _found_pubsub(self, name: str) -> Sequence[bytes]:
        return [body for at, body in self.seen["pubsub"] if at == name.encode()]

    def _frames(self, data: bytes) -> None:
        self.seen["pubsub"] += [(each.topic, each.value) for each in take_frames(data)[0]]

    def _messages(self, data: bytes) -> None:
        from kqmsgq.wire import take_messages

        self.seen["kqmsgq"] += [(each.queue, each.body) for each in take_messages(data, 1 << 20, 1 << 30)[0]]
