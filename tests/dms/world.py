"""A DMS without sockets: a broker in memory or on a fake disk, and peers that are driven by hand."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
import trio
import trio.testing

from dms import wire
from dms.engine import Engine, Queue
from dms.opening import open_engine
from dms.refusals import Refusals
from dms.session import Session
from dms.settings import DmsSettings
from dms.times import Times
from dms.wire import Frame, Status, Type
from shared.access import ANONYMOUS, Guard
from shared.budget import Account, unbounded
from shared.plugin import Context
from shared.storage.settings import StorageSettings
from shared.storage.shipping import Ships
from shared.storage.store import Store
from tests.support.commits import leave_free
from tests.support.connections import MemoryConnection
from tests.support.fake_disk import FakeDisk
from tests.support.hand_peer import HandPeer
from tests.support.stores import SMALL, HandClock, open_store

LOG: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    None, wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
)

MEMORY = DmsSettings(persist=False)
NAME = wire.pack_name("orders")
"""Of the queue that `with_queue` makes unless another is named."""


class World:
    """One broker, restarted at will. Time stands still unless `advance` moves it."""

    def __init__(
        self,
        settings: DmsSettings | None = None,
        disk: FakeDisk | None = None,
        storage: StorageSettings = SMALL,
        budget: Account | None = None,
        ships: Ships | None = None,
    ) -> None:
        self.ships = ships
        self.budget = budget or unbounded()
        self.settings = settings or DmsSettings()
        self.storage = storage
        self.now = 0.0
        self.unix_ms = 1_700_000_000_000
        self.disk = disk or FakeDisk()
        self.peers: list[Peer] = []
        self.access: Guard | None = None
        self.open()

    def open(self) -> None:
        """Start a broker on the disk."""
        trio.run(self._open)

    def leave_free(self, free_bytes: int) -> None:
        """So many bytes are free on the disk, and the store has looked."""
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(leave_free, self.store, self.disk, free_bytes, clock=clock)

    async def _open(self) -> None:
        self.budget.account("dms").close()  # of the run before
        self.store: Store = await open_store(self.disk, self.storage, HandClock(), ships=self.ships)
        self.times = Times(lambda: self.now, lambda: self.unix_ms + int(1000 * self.now))
        self.engine: Engine = await open_engine(
            Context(self.store, LOG, budget=self.budget.account("dms")), self.settings, self.times
        )
        self.refusals = Refusals(self.engine.counts, LOG)
        self.settle()

    def connect(self, *, handshake: bool = True, bound: int = 1 << 20, user: str = ANONYMOUS) -> "Peer":
        peer = Peer(self, MemoryConnection(now=self.now, bound=bound))
        peer.session.user = user
        self.peers.append(peer)
        if handshake:
            peer.send(wire.pack(Type.HANDSHAKE, 1, b"test"))
            assert [frame[0] for frame in peer.take()] == [Type.HANDSHAKE_ACK]
        return peer

    def drain(self) -> None:
        """The server stops."""
        self.engine.drain()
        for peer in self.peers:
            peer.session.drain()

    def settle(self) -> None:
        """The end of a round of the driver."""
        self.store.commit_pending()
        for peer in self.peers:
            peer.pump()

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.now + seconds
        while True:
            due = [peer.connection.deadline for peer in self.peers]
            due.append((self.times.timers.next + 1) / 1000 - self._age)
            earliest = min(due)
            if earliest > end:
                break
            self.now = max(self.now, earliest)
            self._tick()
        self.now = end
        self._tick()

    @property
    def _age(self) -> float:
        """What the engine's age is ahead of `now`."""
        return self.times.now_ms() / 1000 - self.now

    def _tick(self) -> None:
        for peer in tuple(self.peers):
            peer.connection.now = self.now
            if peer.connection.deadline <= self.now:
                peer.connection.deadline = float("inf")
                peer.session.on_deadline(self.now)
        self.times.timers.run_due()
        self.settle()

    def kill(self) -> None:
        """The process dies and starts again: connections are gone, and what was written is there."""
        for peer in tuple(self.peers):
            peer.connection.closed = True
        self.peers.clear()
        self.store.abandon()
        self.disk = self.disk.kill()
        self.now = 0.0
        self.open()

    def depths(self) -> dict[str, int]:
        return {queue.text: queue.depth for queue in self.engine.queues.values()}

    def call(self, action: str, **arguments: Any) -> Any:
        """An action of the API on a queue; messages as rows. The action `queues`: rows of all, or of one."""
        return self.call_each(action, [arguments])[0]

    def call_each(self, action: str, calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The same with several arguments, in one loop: to begin one takes longer than most actions."""
        from dms.admin import Admin

        objects, _ = Admin(self.engine, self.access).objects
        actions = {each.name: each for each in objects.actions}

        async def answer(arguments: Mapping[str, Any]) -> Any:
            if action in ("create", "import"):
                (make,) = (each for each in objects.makes if each.name == action)
                return await make.call(None, arguments, False)
            if action == "queues":
                queues = [objects.find([arguments["queue"]])] if arguments else objects.items()
                return [objects.row(queue) for queue in queues]
            own = {name: value for name, value in arguments.items() if name not in ("queue", "dry_run")}
            queue = objects.find([arguments["queue"]])
            found = await actions[action].call(queue, own, arguments.get("dry_run", False))
            return found.get("items", found)

        async def run() -> list[Any]:
            return [await answer(arguments) for arguments in calls]

        return trio.run(run)


class Peer(HandPeer):
    """A client's end, driven by hand."""

    def __init__(self, world: World, connection: MemoryConnection) -> None:
        super().__init__(connection, Session(connection, world.engine, world.refusals))
        self.world = world
        self._said = b""
        self._ids = 100

    def send(self, *reads: bytes) -> None:
        """And what the disk makes of it."""
        self.connection.now = self.world.now
        super().send(*reads)
        self.world.settle()

    def pump(self) -> None:
        while self.wake_if_due() or self.read_on():
            self.world.store.commit_pending()

    def take(self) -> list[Frame]:
        """Everything that was said since."""
        self._said += self.connection.taken()
        self.pump()
        self._said += self.connection.taken()
        frames, end = wire.decode(self._said)
        self._said = self._said[end:]
        assert not self._said, "a frame was not whole"
        return frames

    def ask(self, type_: Type, payload: bytes = b"", message_id: int | None = None) -> list[Frame]:
        """Send one frame, and take what comes."""
        self._ids += 1
        self.send(wire.pack(type_, self._ids if message_id is None else message_id, payload))
        return self.take()

    def create(self, name: str, options: bytes = b"") -> list[Frame]:
        return self.ask(Type.CREATE_QUEUE, wire.pack_name(name) + options)

    def delete(self, name: str) -> list[Frame]:
        return self.ask(Type.DELETE_QUEUE, wire.pack_name(name))

    def produce(self, name: str, *bodies: bytes) -> list[Frame]:
        self.send(
            b"".join(
                wire.pack(Type.PRODUCE, number, wire.pack_name(name) + body)
                for number, body in enumerate(bodies, 1)
            )
        )
        return self.take()

    def consume(self, name: str, count: int = 1) -> list[tuple[int, bytes]]:
        """CONSUME so many times; the deliveries that came, as id and body."""
        self.send(wire.pack(Type.CONSUME, 7, wire.pack_name(name)) * count)
        return deliveries(self.take())

    def produce_with(self, name: str, body: bytes = b"", **said: Any) -> list[Frame]:
        payload = wire.pack_name(name) + wire.pack_object(said) + body
        return self.ask(Type.PRODUCE_WITH, payload)

    def consume_with(self, name: str, count: int = 1) -> list[tuple[int, dict[str, Any], bytes]]:
        """CONSUME_WITH so many times; the deliveries that came: id, what is said of it, body."""
        self.send(wire.pack(Type.CONSUME_WITH, 7, wire.pack_name(name)) * count)
        return deliveries_with(self.take())

    def job(self, type_: Type, name: str, **said: Any) -> list[Frame]:
        """CANCEL, RESCHEDULE or GET_JOB."""
        return self.ask(type_, wire.pack_name(name) + wire.pack_object(said))

    def ack(self, *ids: int) -> list[Frame]:
        self.send(b"".join(wire.pack(Type.ACK, number) for number in ids))
        return self.take()

    def nack(self, *ids: int) -> list[Frame]:
        self.send(b"".join(wire.pack(Type.NACK, number) for number in ids))
        return self.take()

    def close_input(self) -> None:
        super().close_input()
        self.world.settle()

    def lose(self) -> None:
        if not self.connection.closed:
            self.world.peers.remove(self)
            super().lose()
            self.world.settle()


def deliveries(frames: Sequence[Frame]) -> list[tuple[int, bytes]]:
    return [(frame[3], frame[4]) for frame in frames if frame[0] == Type.DELIVER]


def deliveries_with(frames: Sequence[Frame]) -> list[tuple[int, dict[str, Any], bytes]]:
    found = []
    for frame in frames:
        if frame[0] == Type.DELIVER_WITH:
            about, body = wire.split_object(frame[4])
            found.append((frame[3], json.loads(about), body))
    return found


def statuses(frames: Sequence[Frame]) -> list[Status]:
    """Of ERRORs; of all else OK."""
    for frame in frames:
        assert (frame[0] == Type.ERROR or frame[0] == Type.HANDSHAKE_NACK) == (frame[2] != 0), frame
        assert frame[2] == 0 or frame[4], "an error without a text"
    return [Status(frame[2]) for frame in frames]


def with_queue(world: World, name: str = "orders", options: bytes = b"", user: str = ANONYMOUS) -> Peer:
    """A connection that has made a queue."""
    peer = world.connect(user=user)
    assert statuses(peer.create(name, options)) == [Status.OK]
    return peer


def waiting(queue: Queue) -> list[tuple[bytes, int]]:
    """The messages that have left the row and nobody holds, in order: body, deliveries."""
    runs = sorted((run.first, run.tries, run.bodies) for run, _ in queue.returned_runs())
    return [(body, tries) for _, tries, bodies in runs for body in bodies]
