"""A data folder under a load of jobs: recover, compare, load, cut, and again.

Looking at a queue is asking for each of its jobs by name, which takes nothing; the dead are taken, and given
back by the end of the connection.
"""

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from tests.support import dms_spec as spec
from tests.trials.folder import Adapter, HasMode, Verification, durability
from tests.trials.jobs_ledger import CLOCK, DEAD, OPTIONS, QUEUES, TRIES, WINDOW_MS, JobsBook
from tests.trials.jobs_load import JobsLoad
from tests.trials.tally import Verdict

Shown = Mapping[str, tuple[bytes, ...]]
_TOGETHER = 500


@attrs.define(eq=False)
class JobsAdapter(Adapter):
    """Jobs with times, keys, names, priorities, lifetimes and tries, and a schedule."""

    protocol = "dms"
    book: JobsBook = attrs.field(factory=JobsBook, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """One of the modes for all queues."""
        return [
            "[dms]",
            f'durability = "{durability(source.choice(modes))}"',
            "depth = 1000000",
            "consume_seconds = 0.25",
            f"hot_bytes = {source.choice((0, 0, 64 << 20))}",  # 0: what is ready is cold, too
        ]

    def load(self) -> JobsLoad:
        self.book.mode = self.mode_set("dms")
        return JobsLoad(self.address, self.book, self.source)

    def promised_records(self, until: float) -> int:
        return self.book.promised(until)

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        book = self.book
        book.mode = self.mode_set("dms")
        book.new_life()
        until = promised_until(book)
        shown = self.look()
        if until < math.inf:
            book.ticks.clear()  # what was not promised may come again
        verdict = judge(book, shown, until)
        if not verdict.faults:
            _settle(book, shown)
        return Verification(verdict, {book.mode: verdict}, shown)

    def look(self) -> Shown:
        with spec.SpecClient(self.address, bytes_max=spec.WITH_BYTES_MAX) as client:
            depths = client.queues()
            for name, options in OPTIONS.items():
                if name not in depths:
                    asked = options if name in (DEAD, CLOCK) else {**options, "dedup_ms": WINDOW_MS}
                    client.create(name, json.dumps(asked).encode())
            shown = {queue: tuple(sorted(_named_jobs(client, self.book, queue))) for queue in QUEUES}
            shown[DEAD] = tuple(sorted(_dead(client, client.queues()[DEAD])))
            # Some may have died since they were asked for.
            shown["jobs-tries"] = tuple([body for body in shown["jobs-tries"] if body not in {*shown[DEAD]}])
        return shown

    def same(self, name: str, before: Shown, now: Shown) -> bool:
        """Time goes on meanwhile: what has a lifetime, or tries, may be among the dead."""
        there = set(before.get(name, ()))
        if name == DEAD:
            return there <= set(now[DEAD])
        left = there - set(now.get(name, ()))
        return set(now.get(name, ())) <= there and all(
            self.book.jobs[body].dies < math.inf or name == "jobs-tries" for body in left
        )


def _named_jobs(client: spec.SpecClient, book: JobsBook, queue: str) -> list[bytes]:
    """The bodies of all jobs of a queue that are there. Raises ValueError."""
    names = [name for of, name in book.names if of == queue]
    found: list[bytes] = []
    for at in range(0, len(names), _TOGETHER):
        some = names[at : at + _TOGETHER]
        client.send(
            b"".join(
                spec.frame(spec.GET_JOB, client.new_id(), spec.with_object(queue, {"dedup": name}))
                for name in some
            )
        )
        for name in some:
            type_, status, _, payload = client.reply()
            if type_ == spec.ERROR and status == spec.PROTOCOL:
                continue
            if type_ != spec.GET_JOB + 1:
                raise ValueError(f"GET_JOB {queue} {name}: {type_:#x} {status} {payload[:80]!r}")
            found.append(spec.split_object(payload)[1])
    return found


def _dead(client: spec.SpecClient, depth: int) -> list[bytes]:
    found: list[bytes] = []
    for at in range(0, depth, _TOGETHER):
        count = min(depth - at, _TOGETHER)
        for _ in range(count):
            client.send(spec.frame(spec.CONSUME_WITH, client.new_id(), spec.name(DEAD)))
        for _ in range(count):
            type_, status, _, payload = client.reply()
            if type_ != spec.DELIVER_WITH:
                raise ValueError(f"{DEAD}: of {depth} messages {len(found)} came, then {type_:#x} {status}")
            found.append(spec.split_object(payload)[1])
    return found


def judge(book: JobsBook, shown: Shown, until: float) -> Verdict:
    """What was promised by `until` is there, once; what was settled by then is not."""
    verdict, now = Verdict(), time.monotonic()
    there = {body: queue for queue, bodies in shown.items() for body in bodies}
    if len(there) < sum(map(len, shown.values())):
        verdict.faults.append("a job is in two places")
    for body, queue in there.items():
        job = book.jobs.get(body)
        if job is None:
            what = "back, which was gone" if body in book.gone else "which nobody sent"
            if until > -math.inf:
                verdict.faults.append(f"{queue}: {what}: {body[:48]!r}")
        elif queue not in (job.queue, DEAD):
            verdict.faults.append(f"{queue}: of {job.queue}: {body[:48]!r}")
        else:
            settled = job.settled_by
            if any(asked.promised(until) for asked in settled) and queue != DEAD:
                verdict.faults.append(f"{queue}: back, though acknowledged or cancelled: {body[:48]!r}")
            verdict.lost += any(asked.acknowledged for asked in settled)
            verdict.kept += job.acknowledged
            verdict.extra += job.answered is None
    for (queue, name), jobs in book.names.items():
        found = [job for job in jobs if job.body in there]
        if len(found) > 1 and book.mode == "always":
            verdict.faults.append(f"{queue}: {len(found)} of the name {name!r}")
        verdict.commits += not found and any(job.settled_by for job in jobs)
        if found or not any(job.promised(until) for job in jobs):
            continue
        if not any(job.may_have_left(now) for job in jobs):
            verdict.lost += 1
            verdict.faults.append(f"{queue}: lost, of the name {name!r}: {jobs[0].body[:48]!r}")
    return verdict


def _settle(book: JobsBook, shown: Shown) -> None:
    """Begin a new page: what was found is what stands. Names of what is gone stay known."""
    there = {body for bodies in shown.values() for body in bodies}
    for body, job in [*book.jobs.items()]:
        if body in there:
            job.ack, job.cancels = None, []
            job.answered, job.refused, job.deliveries = job.answered or 0.0, "", TRIES
        elif job.queue == "jobs-tries" and not any(asked.acknowledged for asked in job.settled_by):
            job.answered = None  # it may be on its way to the dead
        else:
            del book.jobs[body]
            book.gone.add(body)
            twins = book.names[job.queue, job.name]
            twins.remove(job)
            if not twins:
                del book.names[job.queue, job.name]
