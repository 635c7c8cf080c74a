"""Jobs over restarts beside a plain model: delays, failed tries, retries, keys, and what is taken once."""

import math
import random
from typing import Any

import attrs
import pytest
import trio.testing
from pamqp import commands

from dmp import queue_log, row
from dmp.queues import Queue
from dmp.shown_properties import read
from shared.objects import BadArgument, ObjectMissing
from shared.queues.runs import Run
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.world import World

LIMIT, RETRY_MS, WINDOW_MS = 2, 1000, 4000
STEPS = 150
HEADER = "x-deduplication-header"
ARGUMENTS = {
    "x-delivery-limit": LIMIT,
    "x-retry-ms": RETRY_MS,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
}


@attrs.define
class Job:
    due: float
    key: str
    number: int
    tries: int = 0
    held: Run | None = None


@attrs.define
class Jobs:
    """What must be in the queue, by body; and which jobs are dead."""

    world: World
    per_key: bool
    hot_bytes: int
    there: dict[bytes, Job] = attrs.Factory(dict)
    dead: list[bytes] = attrs.Factory(list)
    seen: dict[bytes, float] = attrs.Factory(dict)
    """When each body came."""
    window: float = 0.0
    now: float = 0.0

    @property
    def queue(self) -> Queue:
        return self.world.broker.queues[b"q"]

    @property
    def taken(self) -> set[str]:
        """Keys of which one is held, or was tried and waits for its next try."""
        jobs = self.there.values()
        return {job.key for job in jobs if job.held or (job.tries and job.due > self.now + 1e-6)}

    def bound(self) -> None:
        self.world.broker.memory.take_bounds(1 << 30, self.hot_bytes)

    def publish(self, body: bytes, key: str, delay_ms: int) -> None:
        headers = {"x-key": key, HEADER: body.decode()} | ({"x-delay": delay_ms} if delay_ms else {})
        self.world.publish(
            b"", b"q", body, properties=read({"properties": {"headers": headers}}, persistent=True)
        )
        self.world.settle()
        known = body in self.there or self.seen.get(body, -math.inf) + self.window > self.now + 1e-6
        if not known:
            self.there[body] = Job(self.now + delay_ms / 1000, key, self.queue.numbered - 1)
            self.seen[body] = self.now

    async def get(self) -> None:
        self.world.advance(0)  # what was rescheduled for now is read back
        run = self.queue.get(no_ack=False)
        for _ in range(20):
            if run is not None or not self.queue.row.has_cold:
                break
            await trio.testing.wait_all_tasks_blocked()  # the front is on its way
            run = self.queue.get(no_ack=False)
        takable = {
            body
            for body, job in self.there.items()
            if job.held is None
            and job.due <= self.now + 1e-6
            and not (self.per_key and job.key in self.taken)
        }
        if run is None:
            assert not takable
            return
        (body,) = run.bodies
        assert body in takable
        job = self.there[body]
        assert run.head.tries == job.tries
        assert run.head.headers.get("x-delivery-count") == (job.tries or None)
        if self.per_key:
            assert body == min(each for each in takable if self.there[each].key == job.key)
        job.held = run

    def settle(self, body: bytes, *, acked: bool) -> None:
        job = self.there[body]
        assert job.held is not None
        run, job.held = job.held, None
        if acked:
            self.queue.settle([run])
            del self.there[body]
        else:
            self.queue.requeue([run])
            job.tries += 1
            job.due = self.now + RETRY_MS / 1000
            if job.tries > LIMIT:
                self.dead.append(body)
                del self.there[body]
        self.world.settle()

    def name(self, body: bytes) -> dict[str, Any]:
        by_name = self.queue.once is not None
        return {"dedup": body.decode()} if by_name else {"position": self.there[body].number}

    async def cancel(self, body: bytes) -> None:
        held = self.there[body].held is not None
        try:
            await call(self.world, self.queue, "cancel", **self.name(body))
        except (BadArgument, ObjectMissing):
            assert held
        else:
            assert not held
            del self.there[body]

    async def reschedule(self, body: bytes, delay_ms: int) -> None:
        job = self.there[body]
        held = job.held is not None
        try:
            await call(self.world, self.queue, "reschedule", **self.name(body), delay=f"{delay_ms}ms")
        except (BadArgument, ObjectMissing):
            assert held
        else:
            assert not held
            job.due = self.now + delay_ms / 1000

    def purge(self) -> None:
        self.queue.purge()
        self.world.settle()
        self.there = {body: job for body, job in self.there.items() if job.held is not None}

    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.now += seconds

    async def kill(self) -> None:
        seconds = random.Random(self.now).choice([0.0, 0.5, 3.0])
        self.world.settle()
        self.world = await self.world.again(later_seconds=seconds)
        self.now += seconds
        self.bound()
        for job in self.there.values():
            job.held = None


@pytest.mark.parametrize("kind", ["once", "once by key", "window", "cold"])
@pytest.mark.parametrize("seed", range(6))
async def test_no_job_is_lost_doubled_early_or_tried_more_often(
    world: World, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    peer = Peer(world).login()
    per_key = kind == "once by key"
    arguments = ARGUMENTS | ({"x-per-key": 1} if per_key else {})
    if kind == "cold":
        monkeypatch.setattr(row, "HOT_LEAST_BYTES", 1000)
        monkeypatch.setattr(queue_log, "READ_BYTES", 1000)
    else:
        arguments["x-message-deduplication"] = True
    if kind == "window":
        arguments["x-cache-ttl"] = WINDOW_MS
    for name, table in (("q", arguments), ("dead", {})):
        assert (
            peer.ask(commands.Queue.Declare(queue=name, durable=True, arguments=table)).name
            == "Queue.DeclareOk"
        )
    jobs = Jobs(world, per_key, hot_bytes=0 if kind == "cold" else 1 << 30)
    jobs.window = WINDOW_MS / 1000 if kind == "window" else 0.0
    jobs.bound()
    for number in range(STEPS):
        held = [body for body, job in jobs.there.items() if job.held is not None]
        what = chance.random()
        if what < 0.35:
            again = jobs.there and kind != "cold" and chance.random() < 0.2
            body = chance.choice([*(jobs.seen if jobs.window else jobs.there)]) if again else b"%04d" % number
            if body not in jobs.dead or jobs.window:
                jobs.publish(body, chance.choice("abc"), chance.choice([0, 0, 500, 5000]))
        elif what < 0.6:
            await jobs.get()
        elif what < 0.85 and held:
            jobs.settle(chance.choice(held), acked=chance.random() < 0.4)
        elif what < 0.88 and jobs.there:
            await jobs.cancel(chance.choice([*jobs.there]))
        elif what < 0.91 and jobs.there:
            await jobs.reschedule(chance.choice([*jobs.there]), chance.choice([0, 700, 3000]))
        elif what < 0.92:
            jobs.purge()
        elif what < 0.97:
            jobs.advance(chance.choice([0.1, 0.6, 2.0]))
        else:
            await jobs.kill()
    await jobs.kill()
    jobs.advance(20)
    while jobs.there:
        before = len(jobs.there)
        await jobs.get()
        for body in [body for body, job in jobs.there.items() if job.held is not None]:
            jobs.settle(body, acked=True)
        assert len(jobs.there) < before
    await jobs.get()
    dead = [run.bodies for run in jobs.world.broker.queues[b"dead"].ready]
    assert sorted(body for bodies in dead for body in bodies) == sorted(jobs.dead)
    assert (jobs.queue.depth, jobs.queue.later.count, jobs.queue.held) == (0, 0, 0)
