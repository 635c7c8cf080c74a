"""A load of jobs over several connections: sent, put off, cancelled, repeated; delivered, settled, kept."""

import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs

from tests.support import dms_spec as spec
from tests.trials.dms_load import DmsPeer
from tests.trials.jobs_ledger import CLOCK, DEAD, QUEUES, Job, JobsBook
from tests.trials.payloads import Payloads
from tests.trials.peers import Asked, PeersLoad, RawPeer, burst

_BODY_BYTES_MAX = 3000
_HELD_MAX = 40
_DELAYS_MS = (0, 0, 5, 20, 100, 400, 2000, 60_000)


@attrs.define(eq=False)
class Producer(DmsPeer):
    """Sends jobs, and changes those that it has sent."""

    _window: int
    _book: JobsBook
    _payloads: Payloads
    _source: random.Random
    _sent: list[Job] = attrs.field(factory=list, init=False)

    def fill(self, now: float) -> None:
        for _ in range(burst(self._window, len(self._waiting))):
            draw = self._source.random()
            if draw < 0.15 and self._sent:
                self._change(self._source.choice(self._sent), now)
            elif draw < 0.2 and self._sent:
                before = self._source.choice(self._sent)
                self._send(before.queue, before.name, now)
            else:
                name = f"{self.name}.{len(self._book.jobs)}.{self._source.random()}"
                self._send(self._source.choice(QUEUES), name, now)

    def _send(self, queue: str, name: str, now: float) -> None:
        source = self._source
        delay_ms = source.choice(_DELAYS_MS)
        said: dict[str, Any] = {"dedup": name}
        job = Job(now, queue=queue, body=self._payloads.raw(self.name)[:_BODY_BYTES_MAX], name=name)
        if source.random() < 0.2:
            job.at = (at_ms := int(time.time() * 1000) + delay_ms) / 1000
            said |= {"at": at_ms}
        else:
            job.earliest = now + delay_ms / 1000
            said |= {"delay_ms": delay_ms}
        if source.random() < 0.6:
            job.key = f"k{source.randrange(8)}"
            said |= {"key": job.key}
        if source.random() < 0.1 and "at" not in said:
            job.dies = now + (delay_ms + 300) / 1000
            said |= {"ttl_ms": delay_ms + 300}
        said |= {"priority": source.randrange(5), "headers": {"n": 1, "of": self.name}}
        self._book.send(job)
        self._sent.append(job)
        self.ask(spec.PRODUCE_WITH, spec.with_object(queue, said, job.body), job, f"PRODUCE_WITH {queue}")

    def _change(self, job: Job, now: float) -> None:
        """It may be held or gone, and then this is refused; or be another's of the same name."""
        twins = self._book.names[job.queue, job.name]
        asked = Asked(now)
        if self._source.random() < 0.5:
            for twin in twins:
                twin.cancels.append(asked)
            self.ask(spec.CANCEL, spec.with_object(job.queue, {"dedup": job.name}), asked, "CANCEL")
            return
        delay_ms = self._source.choice(_DELAYS_MS)
        for twin in twins:
            twin.moves.append(asked)
            twin.earliest, twin.at = min(twin.earliest, now + delay_ms / 1000), 0.0
        said = {"dedup": job.name, "delay_ms": delay_ms}
        self.ask(spec.RESCHEDULE, spec.with_object(job.queue, said), asked, "RESCHEDULE")

    def may_refuse(self, type_: int, status: int) -> bool:
        return type_ in (spec.CANCEL, spec.RESCHEDULE) and status == spec.PROTOCOL


@attrs.define(eq=False)
class Consumer(DmsPeer):
    """Takes from one queue; acknowledges, gives back with a time and a text, or keeps."""

    bytes_max = spec.WITH_BYTES_MAX
    _credits: int
    _book: JobsBook
    _queue: str
    _source: random.Random
    _consuming: dict[int, float] = attrs.field(factory=dict, init=False)
    _held: deque[tuple[int, Job | None]] = attrs.field(factory=deque, init=False)

    def fill(self, now: float) -> None:
        while len(self._consuming) < self._credits and len(self._held) < _HELD_MAX:
            self._next_id += 1
            self._consuming[self._next_id] = now
            self._out += spec.frame(spec.CONSUME_WITH, self._next_id, spec.name(self._queue))
        if len(self._held) >= _HELD_MAX or (self._held and self._source.random() < 0.1):
            self._settle(now, *self._held.popleft())

    def not_delivered(self, status: int, message_id: int) -> bool:
        if message_id not in self._consuming:
            return False
        del self._consuming[message_id]
        if status != spec.TIMEOUT:
            self.refusals.append((time.monotonic(), f"{self.name}: CONSUME {self._queue}: {status}"))
        return True

    def delivered_with(self, now: float, delivery: int, payload: bytes) -> None:
        about, body = spec.split_object(payload)
        asked = self._consuming.pop(min(self._consuming), now)
        job, wrong = self._book.deliver(self._queue, about, body, asked, now)
        self.faults += wrong
        draw = self._source.random()
        if draw < 0.1:
            self._held.append((delivery, job))
        elif draw < 0.75:
            self._settle(now, delivery, job)
        else:
            delay_ms = self._source.choice((0, 0, 50))
            if job is not None:
                self._book.settle(self._queue, job)
                if delay_ms and all(move.answered is not None for move in job.moves):
                    job.earliest, job.at = now + delay_ms / 1000, 0.0
            rest = spec.name("", delay_ms.to_bytes(4, "big") + b"no: " + self.name.encode())
            self.ask(spec.NACK, rest, Asked(now), f"NACK in {self._queue}", delivery)

    def _settle(self, now: float, delivery: int, job: Job | None) -> None:
        asked = Asked(now)
        if job is not None:
            self._book.settle(self._queue, job)
            job.ack = asked
        self.ask(spec.ACK, b"", asked, f"ACK in {self._queue}", delivery)


class JobsLoad(PeersLoad):
    """Producers and consumers, on one server whose queues are there."""

    def __init__(self, address: tuple[str, int], book: JobsBook, source: random.Random) -> None:
        payloads = Payloads(source)
        peers: list[RawPeer] = [
            Producer(address, f"writer-{window}", window, book, payloads, source) for window in (1, 16, 64)
        ]
        queues: Sequence[str] = source.sample([*QUEUES, *QUEUES, DEAD, CLOCK], 7)
        for number, queue in enumerate((*queues, CLOCK)):
            credits_ = source.choice((1, 4, 32))
            peers.append(Consumer(address, f"reader-{number}", credits_, book, queue, source))
        super().__init__(peers)
