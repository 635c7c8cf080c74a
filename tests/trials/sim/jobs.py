"""Simulated clients of jobs of DMS: sent, put off, cancelled, repeated, delivered; what may not be is found.

An acknowledged job is delivered or told where it is. None comes before its time, after its ACK, its CANCEL or
its life, or while somebody holds it or another of its key. Of a name there is one, ever. The highest priority
comes first, and of it a key's jobs in their order; where keys take turns none has two while another waits. A
delivery is its holder's until its deadline, which TOUCH begins anew, and no longer.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from tests.support import dms_spec as dms
from tests.support.dms_model import Ages
from tests.support.promises import BrokenPromiseError
from tests.trials.sim import schedules
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import ProbeClient, verifying
from tests.trials.sim.schedules import CLOCK, LATE_MS, SchedulesModel
from tests.trials.sim.world import World

BY_KEY, BY_TURNS, BY_RANK = "jobs", "fair", "ranks"
"""Queues: with one of a key at a time, with keys that take turns, and where keys say nothing (AMQP's)."""
WEIGHTS = {"produce": 4, "change": 2, "consume": 6}
WINDOW_MS = 3_600_000
PRIORITY_MAX = 2
ACK_MS = 40
"""Deadline of deliveries of `BY_KEY`."""
TOUCHES_MS, OVERDUE_MS = 20, ACK_MS + 30
"""Between TOUCHes; and after so long a delivery is overdue for certain."""
_ALL = {"dedup_ms": WINDOW_MS, "loss_counts": "all", "priorities": PRIORITY_MAX + 1}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    BY_KEY: {"per_key": 1, "ack_ms": ACK_MS, **_ALL},
    BY_TURNS: {"fair": True, **_ALL},
    CLOCK: schedules.OPTIONS,
}


@attrs.define(eq=False)
class Asked:
    """A request. `ended`: the tick at which its good answer was read; inf: it was not."""

    begun: int
    ended: float = math.inf
    refused: bool = False


@attrs.define(eq=False)
class Timed(Asked):
    """A PRODUCE_WITH or RESCHEDULE, and the time before which the job may not come."""

    delay_ms: int = 0
    earliest: float = 0.0
    at_ms: int = 0
    """The time of the wall clock before which it may not come."""


@attrs.define(eq=False)
class Job(Timed):
    queue: str = ""
    name: str = ""
    body: bytes = b""
    key: str = ""
    priority: int = 0
    ttl_ms: int = 0
    life_ms: int = 0
    """Its life is over after so long for certain; 0: never."""
    moved: bool = False
    """It waits for a next try, or nobody knows whether it is this one of its name."""
    moves: list[Timed] = attrs.Factory(list)
    """Its RESCHEDULEs."""
    shown: bool = False
    leaves: list[Asked] = attrs.Factory(list)
    """Its ACKs and CANCELs."""
    holder: Wire | None = None
    held_since: int = 0
    held_until: float = math.inf
    """When the holder's deadline is not over yet."""

    def __str__(self) -> str:
        return f"job {self.body!r} of the name {self.name}"

    def held(self, now: float) -> bool:
        """Whether somebody does for certain."""
        holder = self.holder
        mine = holder is not None and not holder.left and not holder.server_done.is_set()
        return mine and now < self.held_until

    def times(self, until: float = math.inf) -> list[Timed]:
        """Those of which one counts at this tick."""
        moves = [each for each in self.moves if not each.refused]
        sure = [each.begun for each in moves if each.ended < until]
        return [each for each in (self, *moves) if not any(each.ended < begun for begun in sure)]

    def of(self, other: "Job") -> bool:
        """Whether it has the key of the other, in its queue, or that has no keys."""
        in_line = self.queue == BY_RANK or (bool(self.key) and self.key == other.key)
        return in_line and self.queue == other.queue

    @property
    def priority_asked(self) -> int:
        """What is above the highest counts as that."""
        return 9 if self.priority == PRIORITY_MAX else self.priority

    @property
    def stays(self) -> bool:
        """Whether it is there for certain, for a time that it was sent with."""
        return self.ended < math.inf and not (self.leaves or self.moved or self.ttl_ms)

    @property
    def plain(self) -> bool:
        """Whether it never waits for a time."""
        return not (self.moved or self.moves or self.delay_ms)

    def ready(self, since_ms: int) -> bool:
        """Whether it is, at this time of the wall clock."""
        times = self.times()
        return len(times) == 1 and (not times[0].delay_ms or 0 < times[0].at_ms <= since_ms)

    def passes(self, other: "Job", begun: float) -> bool:
        """Whether the other has this one's key, may not be passed, since it is older or has more priority
        (and was there at this tick), and nothing takes it away."""
        before = self.begun if other.priority == self.priority else begun
        goes_first = other.priority >= self.priority and other.ended < before
        return other is not self and other.of(self) and goes_first and other.plain and other.stays


class JobsModel:
    """What all clients know. `queues`: where jobs are sent."""

    def __init__(self, world: World, ages: Ages, queues: Sequence[str] = (BY_KEY, BY_TURNS)) -> None:
        self._world = world
        self._queues = queues
        self.ages = ages
        self.names: dict[str, list[Job]] = {}
        """By name; all of one are in one queue."""
        self.bodies: dict[bytes, Job] = {}
        self.sent = self.acknowledged = self.records_checked = 0

    def draws(self, chance: random.Random, name: str) -> Job:
        """A job that is sent next, perhaps of a name that there is. `name`: nobody has used it."""
        self.sent += 1
        body = name.encode() + b"=" * chance.choice((0, 3, 60, 400))
        job = Job(self._world.tick(), queue=chance.choice(self._queues), name=name, body=body)
        if self.names and chance.random() < 0.2:
            job.name = chance.choice([*self.names])
            job.queue = self.names[job.name][0].queue
        job.delay_ms, job.key = chance.choice((0, 0, 5, 30, 200)), chance.choice(("", "a", "b", "c"))
        job.priority, job.ttl_ms = chance.choice((0, 0, 1, PRIORITY_MAX)), chance.choice((0, 0, 0, 20, 250))
        job.earliest = self._world.now() + job.delay_ms / 1000
        jobs = self.names.setdefault(job.name, [])
        jobs.append(job)
        for each in jobs:
            each.moved |= len(jobs) > 1
        self.bodies[body] = job
        return job

    def moves(self, name: str, delay_ms: int, *, by_clock: bool) -> Timed:
        """A RESCHEDULE is sent."""
        asked = Timed(self._world.tick(), delay_ms=delay_ms)
        if by_clock:
            asked.at_ms = self._world.wall_ms() + delay_ms
        else:
            asked.earliest = self._world.now() + delay_ms / 1000
        for job in self.names[name]:
            job.moves.append(asked)
        return asked

    def leaves(self, jobs: Sequence[Job]) -> Asked:
        """An ACK or a CANCEL is sent."""
        asked = Asked(self._world.tick())
        for job in jobs:
            job.leaves.append(asked)
        return asked

    def done(self, asked: Asked) -> None:
        asked.ended = self._world.tick()
        self.acknowledged += isinstance(asked, Job)
        self._world.on_answer()

    def delivered(self, queue: str, body: bytes, key: str, wire: Wire, begun: int) -> Job:
        """The server had cause to send it from `begun` on."""
        self.records_checked += 1
        job = self.bodies.get(body)
        if job is None or job.queue != queue:
            raise BrokenPromiseError(f"delivered from {queue}, and nobody sent it there: {body!r}")
        now, wall_ms, times = self._world.now(), self._world.wall_peak_ms, job.times(begun)
        if all(now < time.earliest or wall_ms < time.at_ms for time in times):
            due = [(time.earliest, time.at_ms) for time in times]
            raise BrokenPromiseError(f"{job} comes at {now:.4f} and {wall_ms}, before its time: {due}")
        if job.ended < math.inf and 0 < job.life_ms < 1000 * self._lived_at_least(job, begun):
            raise BrokenPromiseError(f"{job} is delivered after its life of {job.life_ms} ms")
        if any(asked.ended < begun for asked in job.leaves):
            raise BrokenPromiseError(f"{job} was acknowledged or cancelled, and is delivered")
        if any(other is not job and other.shown for other in self.names[job.name]):
            raise BrokenPromiseError(f"{job} is delivered, and another of the name was")
        if key != job.key:
            raise BrokenPromiseError(f"{job} has the key {key!r}, not {job.key!r}")
        for other in self.bodies.values():
            alone = other is job or (queue == BY_KEY and other.of(job))
            if alone and other.held_since < begun and other.held(now):
                raise BrokenPromiseError(f"{job} is delivered while {other} of its key is held")
            if queue == BY_KEY and job.passes(other, begun):
                raise BrokenPromiseError(f"{job} is delivered before {other} of its key")
        if not job.shown:
            job.shown = True
            self._world.on_sight()
        job.holder, job.held_since = wire, self._world.tick()
        if wire.port == "dms" and "ack_ms" in OPTIONS[queue]:
            job.held_until = self._world.time_of(begun) + ACK_MS / 1000
        return job

    def _lived_at_least(self, job: Job, until: int) -> float:
        """Seconds of its life."""
        time_of = self._world.time_of
        return self.ages.least(time_of(int(job.ended)), time_of(until), ())

    def took(self, queue: str, jobs: Sequence[Job], since_ms: int) -> None:
        """What is ready of a queue, in the order in which it came to the only one who takes.

        `since_ms`: the wall clock when it was asked for.
        """
        for job in self.bodies.values():
            if job.queue == queue and job.stays and job.ready(since_ms) and job not in jobs:
                raise BrokenPromiseError(f"{job} should be ready, and does not come")
        for at, job in enumerate(jobs):
            if any(other.plain and other.priority > job.priority for other in jobs[at:]):
                raise BrokenPromiseError(f"{job} is delivered before one of a higher priority")
            behind = [other for other in jobs[at + 1 :] if other.priority == job.priority]
            if job.plain and any(job.passes(other, math.inf) for other in behind):
                raise BrokenPromiseError(f"{job} is delivered before an older one of its key")
            if queue != BY_TURNS:
                continue
            again = next((number for number, other in enumerate(behind) if other.key == job.key), len(behind))
            waited = {other.key for other in behind[again:] if other.plain} - {job.key}
            if passed := waited - {other.key for other in behind[:again]}:
                raise BrokenPromiseError(f"the key {job.key!r} has two turns while others wait: {passed}")

    def _may_be_dead(self, job: Job) -> bool:
        lived = self.ages.most(self._world.time_of(job.begun), self._world.now())
        return 0 < job.ttl_ms <= 1000 * lived

    def saw(self, name: str, body: bytes | None) -> None:
        """Nobody is connected: the body of the job of this name; None: there is none."""
        self.records_checked += 1
        jobs = self.names[name]
        if body is None:
            for job in jobs:
                promised = job.ended < math.inf or job.shown
                left = any(asked for each in jobs for asked in each.leaves if not asked.refused)
                if promised and not (left or any(map(self._may_be_dead, jobs))):
                    raise BrokenPromiseError(f"{job} is lost")
            return
        job_there = self.bodies.get(body)
        if job_there is None or job_there.name != name:
            raise BrokenPromiseError(f"of the name {name} there is {body!r}, which nobody sent")
        if any(asked.ended < math.inf for asked in job_there.leaves):
            raise BrokenPromiseError(f"{job_there} was acknowledged or cancelled, and is there")


@attrs.define(eq=False)
class JobClient(ProbeClient):
    """One client of jobs."""

    port = "dms"
    _model: JobsModel
    _schedules: SchedulesModel
    _number: int
    _made: int = attrs.field(default=0, init=False)
    _ids: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.episodes = {"produce": self._produce, "change": self._change, "consume": self._consume}

    async def _play(self, episode: str, wire: Wire) -> None:
        dialog = DmsDialog(self._world, wire, self.name)
        await dialog.shake_hands()
        await self.episodes[episode](dialog)

    async def _ask(self, dialog: DmsDialog, type_: int, payload: bytes, asked: Asked) -> bytes | None:
        """The answer; None: it was refused, as it may be."""
        self._ids += 1
        await dialog.send(dms.frame(type_, self._ids, payload), f"{type_:#04x} {payload[:70]!r}")
        return await self._answered(dialog, type_, self._ids, asked)

    async def _answered(self, dialog: DmsDialog, type_: int, message_id: int, asked: Asked) -> bytes | None:
        status, payload = await dialog.answer(type_, message_id)
        if status:
            if status != (dms.FULL if type_ == dms.PRODUCE_WITH else dms.PROTOCOL):
                raise BrokenPromiseError(f"{self.name}: {type_:#04x} was refused: {status} {payload!r}")
            asked.refused = True
            return None
        self._model.done(asked)
        return payload

    async def _produce(self, dialog: DmsDialog) -> None:
        chance, model = self._chance, self._model
        for _ in range(chance.randint(1, 3)):
            jobs: list[tuple[int, Job]] = []
            requests: list[bytes] = []
            for _ in range(chance.choice((1, 1, 3, 8))):
                self._made += 1
                job = model.draws(chance, f"{self._number}.{self._made}")
                said: dict[str, Any] = {"dedup": job.name, "headers": {"n": self._made}}
                said |= {"key": job.key} if job.key else {}
                said |= {"priority": job.priority_asked} if job.priority else {}
                if chance.random() < 0.2:
                    job.delay_ms = chance.choice((5, 30, 200, 50_000))
                    job.earliest, job.at_ms = 0.0, self._world.wall_ms() + job.delay_ms
                said |= {"at": job.at_ms} if job.at_ms else {"delay_ms": job.delay_ms}
                if job.at_ms or job.ttl_ms < job.delay_ms:  # the clock may be set back meanwhile
                    job.ttl_ms = 0
                job.life_ms = job.ttl_ms
                said |= {"ttl_ms": job.ttl_ms} if job.ttl_ms else {}
                self._ids += 1
                jobs.append((self._ids, job))
                requests.append(
                    dms.frame(dms.PRODUCE_WITH, self._ids, dms.with_object(job.queue, said, job.body))
                )
            await dialog.send_all(requests, chance, "PRODUCE_WITH")
            for message_id, job in jobs:
                await self._answered(dialog, dms.PRODUCE_WITH, message_id, job)

    async def _change(self, dialog: DmsDialog) -> None:
        chance, model = self._chance, self._model
        for _ in range(chance.randint(1, 4)):
            if not model.names:
                return
            name = chance.choice([*model.names])
            queue = model.names[name][0].queue
            if chance.random() < 0.5:
                asked = model.leaves(model.names[name])
                await self._ask(dialog, dms.CANCEL, dms.with_object(queue, {"dedup": name}), asked)
                continue
            time = model.moves(name, chance.choice((0, 5, 50, 3000)), by_clock=chance.random() < 0.5)
            said = {"at": time.at_ms} if time.at_ms else {"delay_ms": time.delay_ms}
            await self._ask(dialog, dms.RESCHEDULE, dms.with_object(queue, {"dedup": name, **said}), time)

    async def _consume(self, dialog: DmsDialog) -> None:
        chance, model = self._chance, self._model
        queue = chance.choice((BY_KEY, BY_KEY, BY_TURNS, CLOCK))
        for _ in range(chance.choice((1, 3, 10))):
            self._ids += 1
            begun = self._world.tick()
            await dialog.send(dms.frame(dms.CONSUME_WITH, self._ids, dms.name(queue)), "CONSUME_WITH")
            type_, status, delivery_id, payload = await dialog.frame()
            if type_ == dms.ERROR and status == dms.TIMEOUT:
                continue
            if type_ != dms.DELIVER_WITH:
                raise BrokenPromiseError(f"{self.name} was refused: {status} {payload!r}")
            about, body = dms.split_object(payload)
            jobs: list[Job] = []
            if queue == CLOCK:
                self._schedules.delivered(body, about)
            else:
                jobs.append(model.delivered(queue, body, about.get("key", ""), dialog.wire, begun))
            draw = chance.random()
            if queue == BY_KEY and draw < 0.1:
                await self._keep(dialog, delivery_id, jobs[0])
                continue
            if draw < 0.2:
                continue  # it is held until we leave
            for job in jobs:
                job.holder = None
            if draw < 0.7:
                asked = model.leaves(jobs)
                await dialog.send(dms.frame(dms.ACK, delivery_id), f"ACK {body!r}")
                await self._answered(dialog, dms.ACK, delivery_id, asked)
            else:
                delay_ms = chance.choice((0, 0, 20))
                for job in jobs:
                    job.moved |= delay_ms > 0
                rest = dms.name("", delay_ms.to_bytes(4, "big") + b"no")
                await dialog.send(dms.frame(dms.NACK, delivery_id, rest), f"NACK {body!r}")
                await self._answered(dialog, dms.NACK, delivery_id, Asked(self._world.tick()))

    async def _keep(self, dialog: DmsDialog, delivery_id: int, job: Job) -> None:
        """Touched, it is ours for so long again; then no more."""
        for touches in range(self._chance.randint(1, 3)):
            sent, asked = self._world.now(), Asked(self._world.tick())
            await dialog.send(dms.frame(dms.TOUCH, delivery_id), "TOUCH")
            await self._answered(dialog, dms.TOUCH, delivery_id, asked)
            if asked.refused and touches and self._world.now() < job.held_until:
                raise BrokenPromiseError(f"{job} was touched, and returned before its deadline")
            if asked.refused:
                return
            job.held_until = sent + ACK_MS / 1000
            await trio.sleep(TOUCHES_MS / 1000)
        await trio.sleep(OVERDUE_MS / 1000)
        acked = self._model.leaves([job])
        await dialog.send(dms.frame(dms.ACK, delivery_id), "ACK of what is overdue")
        await self._answered(dialog, dms.ACK, delivery_id, acked)
        if not acked.refused:
            raise BrokenPromiseError(f"{job} was acknowledged behind its deadline")


@attrs.define(eq=False)
class JobsVerifier:
    """After each start each job is asked for by its name, which takes nothing. Then those whose keys take
    turns are taken, and what schedules sent; the end of the connection gives them back."""

    _world: World
    _network: Network
    _model: JobsModel
    _schedules: SchedulesModel

    async def verify(self, accept: Callable[[Wire], None]) -> None:
        self._schedules.serves()
        self._model.ages.serves(self._world.now())
        async with verifying(DmsDialog, self._world, self._network, accept, "dms", "verifier") as dialog:
            await dialog.shake_hands()
            depths = await self._depths(dialog)
            counts = dict.fromkeys((BY_KEY, BY_TURNS), 0)
            for number, (name, jobs) in enumerate(self._model.names.items(), 3):
                queue = jobs[0].queue
                asked = dms.frame(dms.GET_JOB, number, dms.with_object(queue, {"dedup": name}))
                await dialog.send(asked, f"GET_JOB {name}")
                status, payload = await dialog.answer(dms.GET_JOB, number)
                self._model.saw(name, None if status else dms.split_object(payload)[1])
                counts[queue] += not status
            for queue, options in OPTIONS.items():
                if queue not in depths:
                    said = json.dumps(options).encode()
                    await dialog.send(dms.frame(dms.CREATE, 2, dms.name(queue, said)), f"CREATE {queue}")
                    status, payload = await dialog.answer(dms.CREATE, 2)
                    if status:
                        raise BrokenPromiseError(f"{queue} cannot be made: {status} {payload!r}")
            self._schedules.made()
            await trio.sleep(LATE_MS / 1000)
            before, depths = depths, await self._depths(dialog)
            for queue, count in counts.items():  # some may have died meanwhile
                if not depths[queue] <= count <= before.get(queue, 0):
                    raise BrokenPromiseError(
                        f"{queue}: {count} jobs have names, and {depths[queue]} are there"
                    )
            for about, body in await self._take(dialog, CLOCK, depths[CLOCK]):
                self._schedules.delivered(body, about)
            for text in self._schedules.missing():
                raise BrokenPromiseError(text)
            begun, since_ms = self._world.tick(), self._world.wall_ms()
            found = await self._take(dialog, BY_TURNS, depths[BY_TURNS])
            keys = [(body, about.get("key", "")) for about, body in found]
            jobs = [self._model.delivered(BY_TURNS, *each, dialog.wire, begun) for each in keys]
            self._model.took(BY_TURNS, jobs, since_ms)

    async def _depths(self, dialog: DmsDialog) -> dict[str, int]:
        await dialog.send(dms.frame(dms.LIST, 2), "LIST_QUEUES")
        _, payload = await dialog.answer(dms.LIST, 2)
        return dict(dms.listed(payload)[1])

    async def _take(self, dialog: DmsDialog, queue: str, depth: int) -> list[tuple[dict[str, Any], bytes]]:
        """What is ready, without an ACK."""
        asked = dms.frame(dms.CONSUME_WITH, 3, dms.name(queue)) * depth
        await dialog.send(asked, f"CONSUME {queue} x {depth}")
        found = []
        for _ in range(depth):
            type_, status, _, payload = await dialog.frame()
            if type_ == dms.DELIVER_WITH:
                found.append(dms.split_object(payload))
            elif status != dms.TIMEOUT:
                raise BrokenPromiseError(f"{queue} was refused: {status} {payload!r}")
        return found
