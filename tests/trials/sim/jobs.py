"""Simulated clients of jobs of DMS: sent, put off, cancelled, repeated, delivered; what may not be is found.

An acknowledged job is delivered or told where it is. None comes before its time, after its ACK or CANCEL, or
while somebody holds it or another of its key. Of a name there is one, ever.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import attrs

from tests.support import dms_spec as dms
from tests.support.promises import BrokenPromiseError
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import ProbeClient, verifying
from tests.trials.sim.world import World

QUEUE = "jobs"
WEIGHTS = {"produce": 4, "change": 2, "consume": 6}
OPTIONS = {"per_key": 1, "dedup_ms": 3_600_000, "loss_counts": "all"}


@attrs.define(eq=False)
class Asked:
    """A request. `ended`: the tick at which its good answer was read; inf: it was not."""

    begun: int
    ended: float = math.inf
    refused: bool = False


@attrs.define(eq=False)
class Job(Asked):
    """`earliest`: the time before which it may not come."""

    name: str = ""
    body: bytes = b""
    key: str = ""
    earliest: float = 0.0
    shown: bool = False
    leaves: list[Asked] = attrs.Factory(list)
    """Its ACKs and CANCELs."""
    holder: Wire | None = None
    held_since: int = 0

    def __str__(self) -> str:
        return f"job {self.body!r} of the name {self.name}"

    @property
    def held(self) -> bool:
        holder = self.holder
        return holder is not None and not holder.left and not holder.server_done.is_set()


class JobsModel:
    """What all clients know."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.names: dict[str, list[Job]] = {}
        self.bodies: dict[bytes, Job] = {}
        self.sent = self.acknowledged = self.records_checked = 0

    def sends(self, name: str, body: bytes, key: str, delay_ms: int) -> Job:
        self.sent += 1
        job = Job(self._world.tick(), name=name, body=body, key=key)
        job.earliest = self._world.now() + delay_ms / 1000
        self.names.setdefault(name, []).append(job)
        self.bodies[body] = job
        return job

    def done(self, asked: Asked) -> None:
        asked.ended = self._world.tick()
        self.acknowledged += isinstance(asked, Job)
        self._world.on_answer()

    def of_name(self, name: str) -> list[Job]:
        return self.names[name]

    def delivered(self, body: bytes, about: dict[str, Any], wire: Wire, begun: int) -> Job:
        """Of a CONSUME that was sent at `begun`."""
        self.records_checked += 1
        job = self.bodies.get(body)
        if job is None:
            raise BrokenPromiseError(f"delivered, and nobody sent it: {body!r}")
        if self._world.now() < job.earliest:
            raise BrokenPromiseError(f"{job} comes {job.earliest - self._world.now():.4f} s early")
        if any(asked.ended < begun for asked in job.leaves):
            raise BrokenPromiseError(f"{job} was acknowledged or cancelled, and is delivered")
        if any(other is not job and other.shown for other in self.names[job.name]):
            raise BrokenPromiseError(f"{job} is delivered, and another of the name was")
        for other in self.bodies.values():
            same = other is job or (bool(job.key) and other.key == job.key)
            if same and other.held and other.held_since < begun:
                raise BrokenPromiseError(f"{job} is delivered while {other} of its key is held")
        if about.get("key", "") != job.key:
            raise BrokenPromiseError(f"{job} has the key {about.get('key')!r}, not {job.key!r}")
        if not job.shown:
            job.shown = True
            self._world.on_sight()
        job.holder, job.held_since = wire, self._world.tick()
        return job

    def saw(self, name: str, body: bytes | None) -> None:
        """Nobody is connected: the body of the job of this name; None: there is none."""
        self.records_checked += 1
        jobs = self.names[name]
        if body is None:
            for job in jobs:
                promised = job.ended < math.inf or job.shown
                if promised and not any(asked for each in jobs for asked in each.leaves if not asked.refused):
                    raise BrokenPromiseError(f"{job} is lost")
            return
        job_there = self.bodies.get(body)
        if job_there is None or job_there.name != name:
            raise BrokenPromiseError(f"of the name {name} there is {body!r}, which nobody sent")
        if any(asked.ended < math.inf for asked in job_there.leaves):
            raise BrokenPromiseError(f"{job_there} was acknowledged or cancelled, and is there")


def named(said: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(said).encode()
    return dms.name(QUEUE, len(text).to_bytes(2, "big") + text + body)


@attrs.define(eq=False)
class JobClient(ProbeClient):
    """One client of jobs."""

    port = "dms"
    _model: JobsModel
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
                name = f"{self._number}.{self._made}"
                if model.names and chance.random() < 0.2:
                    name = chance.choice([*model.names])
                body = f"{self._number}.{self._made}".encode() + b"=" * chance.choice((0, 3, 60, 400))
                delay_ms, key = chance.choice((0, 0, 5, 30, 200)), chance.choice(("", "a", "b", "c"))
                said = {"dedup": name, "delay_ms": delay_ms, "headers": {"n": self._made}}
                self._ids += 1
                jobs.append((self._ids, model.sends(name, body, key, delay_ms)))
                said |= {"key": key} if key else {}
                requests.append(dms.frame(dms.PRODUCE_WITH, self._ids, named(said, body)))
            await dialog.send_all(requests, chance, "PRODUCE_WITH")
            for message_id, job in jobs:
                await self._answered(dialog, dms.PRODUCE_WITH, message_id, job)

    async def _change(self, dialog: DmsDialog) -> None:
        chance, model = self._chance, self._model
        for _ in range(chance.randint(1, 4)):
            if not model.names:
                return
            name = chance.choice([*model.names])
            asked = Asked(self._world.tick())
            if chance.random() < 0.5:
                for job in model.of_name(name):
                    job.leaves.append(asked)
                await self._ask(dialog, dms.CANCEL, named({"dedup": name}), asked)
                continue
            delay_ms = chance.choice((0, 5, 50))
            due = self._world.now() + delay_ms / 1000
            for job in model.of_name(name):
                job.earliest = min(job.earliest, due)
            said = {"dedup": name, "delay_ms": delay_ms}
            await self._ask(dialog, dms.RESCHEDULE, named(said), asked)

    async def _consume(self, dialog: DmsDialog) -> None:
        chance, model = self._chance, self._model
        for _ in range(chance.choice((1, 3, 10))):
            self._ids += 1
            begun = self._world.tick()
            await dialog.send(dms.frame(dms.CONSUME_WITH, self._ids, dms.name(QUEUE)), "CONSUME_WITH")
            type_, status, delivery_id, payload = await dialog.frame()
            if type_ == dms.ERROR and status == dms.TIMEOUT:
                continue
            if type_ != dms.DELIVER_WITH:
                raise BrokenPromiseError(f"{self.name} was refused: {status} {payload!r}")
            size = 2 + int.from_bytes(payload[:2], "big")
            job = model.delivered(payload[size:], json.loads(payload[2:size]), dialog.wire, begun)
            draw = chance.random()
            if draw < 0.2:
                continue  # it is held until we leave
            job.holder = None
            asked = Asked(self._world.tick())
            if draw < 0.7:
                job.leaves.append(asked)
                await dialog.send(dms.frame(dms.ACK, delivery_id), f"ACK {job}")
                await self._answered(dialog, dms.ACK, delivery_id, asked)
            else:
                rest = dms.name("", chance.choice((0, 0, 20)).to_bytes(4, "big") + b"no")
                await dialog.send(dms.frame(dms.NACK, delivery_id, rest), f"NACK {job}")
                await self._answered(dialog, dms.NACK, delivery_id, asked)


@attrs.define(eq=False)
class JobsVerifier:
    """After each start each job is asked for by its name, which takes nothing."""

    _world: World
    _network: Network
    _model: JobsModel

    async def verify(self, accept: Callable[[Wire], None]) -> None:
        async with verifying(DmsDialog, self._world, self._network, accept, "dms", "verifier") as dialog:
            await dialog.shake_hands()
            await dialog.send(dms.frame(dms.LIST, 2), "LIST_QUEUES")
            _, payload = await dialog.answer(dms.LIST, 2)
            depths = dict(dms.listed(payload)[1])
            found = 0
            for number, name in enumerate([*self._model.names], 3):
                await dialog.send(dms.frame(dms.GET_JOB, number, named({"dedup": name})), f"GET_JOB {name}")
                status, payload = await dialog.answer(dms.GET_JOB, number)
                self._model.saw(name, None if status else payload[2 + int.from_bytes(payload[:2], "big") :])
                found += not status
            if found != depths.get(QUEUE, 0):
                raise BrokenPromiseError(f"{found} jobs have names, and {depths.get(QUEUE)} are in the queue")
            if QUEUE not in depths:
                options = json.dumps(OPTIONS).encode()
                await dialog.send(dms.frame(dms.CREATE, 2, dms.name(QUEUE, options)), "CREATE")
                await dialog.answer(dms.CREATE, 2)
