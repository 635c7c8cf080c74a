"""What was asked of jobs of DMS, and what was answered and delivered: a book in the trial's memory.

A job is known by its body, which is never the same twice, and by its name (`dedup`), which a second one may
have, too. What may not be is judged when it is read: a job before its time; one that was cancelled; two of a
name; more of a key than may be held; a time of a schedule twice.
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tests.support import dms_spec as spec
from tests.trials.peers import Asked

DEAD = "jobs-dead"
CLOCK = "jobs-clock"
TRIES = 4
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "jobs-plain": {},
    "jobs-key": {"per_key": 1},
    "jobs-fair": {"per_key": 2, "fair": True, "priorities": 3},
    "jobs-tries": {"retry_ms": 30, "max_deliveries": TRIES, "dead_letter": DEAD, "loss_counts": "all"},
    DEAD: {},
    CLOCK: {"schedule": [{"every": "1s", "body": "tick"}]},
}
WINDOW_MS = 3_600_000
"""`dedup_ms` of all queues: no trial takes so long."""
QUEUES = tuple([name for name in OPTIONS if name not in (DEAD, CLOCK)])
"""Those that jobs are sent to."""


@attrs.define(eq=False)
class Job(Asked):
    """A PRODUCE_WITH. `earliest`: the monotonic time before which it may not come; `at`: the same of the wall
    clock. `dies`: the monotonic time from which it may be dead."""

    queue: str = ""
    body: bytes = b""
    name: str = ""
    key: str = ""
    earliest: float = 0.0
    at: float = 0.0
    dies: float = math.inf
    ack: Asked | None = None
    cancels: list[Asked] = attrs.field(factory=list, repr=False)
    moves: list[Asked] = attrs.field(factory=list, repr=False)
    """Requests that give it another time."""
    held: bool = False
    deliveries: int = 0
    shown: bool = False

    @property
    def settled_by(self) -> list[Asked]:
        """The ACK and the CANCELs that were sent for it."""
        return self.cancels if self.ack is None else [self.ack, *self.cancels]

    def may_have_left(self, now: float) -> bool:
        """Acknowledged, cancelled, or dead, where the dead are on their way or dropped."""
        tried = self.queue == "jobs-tries" and self.deliveries >= TRIES
        return tried or now >= self.dies or any(_may_have_been(asked) for asked in self.settled_by)


def _may_have_been(asked: Asked) -> bool:
    """What the disk refuses as the power goes may be on it."""
    return not asked.refused.startswith(f"status {spec.PROTOCOL}:")


@attrs.define(eq=False)
class JobsBook:
    """All jobs of one data folder. `mode`: that of all queues."""

    mode: str = "always"
    jobs: dict[bytes, Job] = attrs.field(factory=dict)
    names: dict[tuple[str, str], list[Job]] = attrs.field(factory=dict)
    """By queue and name: those that were sent."""
    gone: set[bytes] = attrs.field(factory=set)
    """Bodies of jobs that a verification has not found any more."""
    held: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """By queue and key: how many are held."""
    ticks: dict[int, int] = attrs.field(factory=dict)
    """By sequence, the time of a schedule that came with it."""

    def send(self, job: Job) -> None:
        self.jobs[job.body] = job
        self.names.setdefault((job.queue, job.name), []).append(job)

    def promised(self, until: float) -> int:
        return sum(job.promised(until) for job in self.jobs.values())

    def new_life(self) -> None:
        """The server has ended: nobody holds anything."""
        self.held.clear()
        for job in self.jobs.values():
            job.held = False

    def deliver(
        self, queue: str, about: Mapping[str, Any], body: bytes, asked: float, now: float
    ) -> tuple[Job | None, list[str]]:
        """A message was read; the CONSUME was sent at `asked`. Returns its job, and what is wrong."""
        if queue == CLOCK:
            return None, [*self._tick(about)]
        job = self.jobs.get(body)
        if job is None:
            what = "back, which was gone" if body in self.gone else "which nobody sent"
            return None, [f"{queue}: delivered, {what}: {body[:48]!r}"]
        wrong = [f"{queue}: {body[:48]!r}: {what}" for what in self._wrong(job, queue, about, asked, now)]
        job.held = job.shown = True
        job.deliveries += queue == job.queue
        self.held[queue, job.key] = self.held.get((queue, job.key), 0) + 1
        return job, wrong

    def settle(self, queue: str, job: Job) -> None:
        """It is held no more."""
        job.held = False
        self.held[queue, job.key] -= 1

    def _tick(self, about: Mapping[str, Any]) -> Iterator[str]:
        seq, scheduled = about["seq"], about["headers"]["scheduled"]
        known = self.ticks.get(seq)
        if known is None and scheduled in self.ticks.values():
            yield f"{CLOCK}: the time {scheduled} came twice"
        elif known not in (None, scheduled):
            yield f"{CLOCK}: {seq} was of {known}, and is of {scheduled}"
        if scheduled > time.time() * 1000 + 1:
            yield f"{CLOCK}: the time {scheduled} came before it was"
        self.ticks[seq] = scheduled

    def _wrong(
        self, job: Job, queue: str, about: Mapping[str, Any], asked: float, now: float
    ) -> Iterator[str]:
        if job.held:
            yield "delivered while it is held"
        if job.ack is not None and not job.ack.refused:
            yield "delivered after an ACK was sent for it"
        if any(cancel.promised(asked) for cancel in job.cancels):
            yield "delivered, though it was cancelled"
        others = [other for other in self.names[job.queue, job.name] if other is not job and other.shown]
        if others and self.mode == "always":  # else a power cut may take that it came
            yield f"delivered, and {others[0].body[:48]!r} had its name"
        if about.get("key", "") != job.key:
            yield f"it had the key {job.key!r}, and has {about.get('key')!r}"
        if queue == DEAD:
            told = about.get("dead", {})
            may_be = now >= job.dies if told.get("reason") == "ttl" else job.deliveries >= TRIES
            if not may_be and job.queue == "jobs-tries":
                yield f"dead of {told}, {job.deliveries} deliveries"
            return
        if now < job.earliest:
            yield f"delivered {job.earliest - now:.3f} s before its time"
        if time.time() < job.at - 0.001:
            yield f"delivered {job.at - time.time():.3f} s before its hour"
        most = OPTIONS[queue].get("per_key", 0)
        if job.key and 0 < most <= self.held.get((queue, job.key), 0):
            yield f"a {most + 1}. of its key {job.key!r} while {most} are held"
