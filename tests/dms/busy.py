"""A DMS to which everything has happened that can happen to messages, by chance."""

import json
import random

from dms.settings import DmsSettings
from dms.wire import Type
from tests.dms.world import Peer, World

QUEUES = ("jobs", "dead", "plain")
OPTIONS = {
    "dead_letter": "dead",
    "max_deliveries": 3,
    "ttl_ms": 30_000,
    "retry_ms": 10,
    "dedup_ms": 90_000,
} | {"schedule": [{"every": "1min", "body": "each"}]}


def busy(seed: int, steps: int = 120) -> World:
    """All queues with messages in every state; the same for the same seed."""
    return _Busy(seed).run(steps)


class _Busy:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = World(DmsSettings())
        self.held: dict[int, list[int]] = {}
        self.jobs = 0
        peer = self.world.connect()
        peer.create("jobs", json.dumps(OPTIONS).encode())
        peer.create("dead", b'{"ttl_ms": 200000}')
        peer.create("plain", b'{"max_deliveries": 2}')

    def run(self, steps: int) -> World:
        moves = [self._produce, self._consume, self._ack, self._nack, self._advance]
        rare = [self._lose, self._snapshot, self._kill, self._purge, self._redrive, self._advance_far]
        for _ in range(steps):
            self.chance.choice(moves if self.chance.random() < 0.85 else rare)()
        self._advance()  # and what was noted is written
        return self.world

    def _peer(self) -> Peer:
        peers = self.world.peers
        return self.world.connect() if len(peers) < 3 else self.chance.choice(peers)

    def _queue(self) -> str:
        return self.chance.choice(("jobs", "jobs", "jobs", *QUEUES))

    def _produce(self) -> None:
        size = self.chance.choice((3, 3, 7, 0))
        alike = self.chance.random() < 0.6
        sizes = [size if alike else self.chance.randrange(9) for _ in range(self.chance.randrange(1, 12))]
        if self.chance.random() < 0.3:
            self.jobs += 1
            said = {"delay_ms": self.chance.choice((0, 3000)), "headers": {"a": "b"}, "dedup": f"{self.jobs}"}
            queue = self._queue()
            self._peer().produce_with(queue, bytes(size), **said)
            if self.chance.random() < 0.5:
                self._peer().job(Type.RESCHEDULE, queue, dedup=f"{self.jobs}", delay_ms=1000)
            if self.chance.random() < 0.1:
                self._peer().job(Type.CANCEL, queue, dedup=f"{self.jobs}")
            return
        self._peer().produce(self._queue(), *(bytes(size) for size in sizes))

    def _consume(self) -> None:
        peer = self._peer()
        # No CONSUME may wait: another one for another queue would be refused.
        name, depths = self._queue(), {row["name"]: row["ready"] for row in self.world.call("queues")}
        count = min(self.chance.randrange(1, 8), depths[name])
        if count:
            self.held.setdefault(id(peer), []).extend(number for number, _ in peer.consume(name, count))

    def _some(self) -> tuple[Peer, list[int]]:
        peer = self._peer()
        held = self.held.setdefault(id(peer), [])
        self.chance.shuffle(held)
        cut = self.chance.randrange(len(held) + 1)
        self.held[id(peer)] = held[cut:]
        return peer, held[:cut]

    def _ack(self) -> None:
        peer, those = self._some()
        peer.ack(*those)

    def _nack(self) -> None:
        peer, those = self._some()
        if self.chance.random() < 0.5:
            peer.nack(*those)
            return
        for held in those:
            peer.ask(Type.NACK, b"\0\0" + bytes(4) + b"why", held)

    def _lose(self) -> None:
        peer = self._peer()
        self.held.pop(id(peer), None)
        peer.lose()

    def _advance(self) -> None:
        self.world.advance(self.chance.choice((0.01, 0.2, 1.5)))

    def _advance_far(self) -> None:
        self.world.advance(40)

    def _snapshot(self) -> None:
        log = self.world.engine.queues[self._queue().encode()].log
        assert log is not None
        log.snapshot()
        self.world.settle()

    def _kill(self) -> None:
        self.held.clear()
        self.world.kill()

    def _purge(self) -> None:
        if self.chance.random() < 0.4:
            self.world.call("purge", queue=self._queue())
            self.world.settle()

    def _redrive(self) -> None:
        self.world.call("redrive", queue="dead")
        self.world.settle()
