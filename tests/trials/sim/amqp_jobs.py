"""Simulated clients of keys, names and delays of AMQP; `jobs.py` has the model and what may not be.

Nothing is answered to an acknowledgement. So a consumer publishes a mark behind some on its channel: the
confirm says that they were taken.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import trio
from pamqp import base, body, commands, frame, header, heartbeat

from tests.support.dms_model import Ages
from tests.support.promises import BrokenPromiseError
from tests.trials.sim.jobs import BY_KEY, BY_RANK, BY_TURNS, PRIORITY_MAX, WINDOW_MS, Asked, Job, JobsModel
from tests.trials.sim.machine import Machine
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import Gone, ProbeClient, Talk, verifying
from tests.trials.sim.world import World

WEIGHTS = {"produce": 4, "consume": 6}
MARKS = "marks"
QUEUES = BY_KEY, BY_TURNS, BY_RANK
TIMEOUT_MS, OVERDUE_MS = 100, 200
"""Who has not acknowledged in time is closed; and after so long he is for certain."""
_ALL = {"x-message-deduplication": True, "x-cache-ttl": WINDOW_MS, "x-max-priority": PRIORITY_MAX}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    BY_KEY: {"x-per-key": 1, "x-consumer-timeout": TIMEOUT_MS, **_ALL},
    BY_TURNS: {"x-fair": True, **_ALL},
    BY_RANK: _ALL,
    MARKS: {},
}
_PEEKED_MAX = 1000
_STOPPING = 320
"""The code with which a server that stops closes connections."""


class WallAges(Ages):
    """Messages age while no server runs, too. Their log says to a tenth of a second when they came, a start
    to a millisecond when it looks."""

    def most(self, since: float, until: float) -> float:
        return until - since

    def least(self, since: float, until: float, kept: Sequence[float]) -> float:
        return until - since - 0.101


@attrs.define(eq=False)
class AmqpDialog(Talk):
    """Methods and messages over a wire, on channel 1. Raises Gone when the connection ends."""

    _published: int = attrs.field(default=0, init=False)
    unconfirmed: dict[int, list[Asked]] = attrs.field(factory=dict, init=False)
    """By publish: what its confirm says was done."""

    async def log_in(self) -> None:
        """As far as an open channel with confirms."""
        start = commands.Connection.StartOk({}, "PLAIN", "\0sim\0sim", "en_US")
        opening = (start, commands.Connection.TuneOk(0, 0, 0), commands.Connection.Open("/"))
        data = b"AMQP\0\0\x09\x01" + b"".join(frame.marshal(method, 0) for method in opening)
        data += frame.marshal(commands.Channel.Open(), 1) + frame.marshal(commands.Confirm.Select(), 1)
        await self.send(data, "log in")
        for name in ("Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"):
            await self.expect(name)
        await self.expect("Confirm.SelectOk")

    async def method(self, method: base.Frame) -> None:
        await self.send(frame.marshal(method, 1), f"{method.name} {dict(method)}")

    async def expect(self, name: str) -> Any:
        found = await self.value()
        if found.name != name:
            raise BrokenPromiseError(f"{self._who} expected {name}: {found.name} {dict(found)}")
        return found

    async def value(self) -> Any:
        """The next frame's. Who is cancelled while waiting for it has taken nothing of it."""
        while True:
            size = 8 + int.from_bytes(self._buffer[3:7], "big")
            if len(self._buffer) < max(size, 8):
                await self._more()
                continue
            _, _, value = frame.unmarshal(bytes(self._buffer[:size]))
            del self._buffer[:size]
            if isinstance(value, commands.Connection.Close) and value.reply_code == _STOPPING:
                raise Gone
            if not isinstance(value, heartbeat.Heartbeat):
                shown = value.value[:40] if isinstance(value, body.ContentBody) else ""
                self._world.say(f"{self._who} < {value.name} {shown!r}")
                return value

    async def message(self) -> tuple[str, bytes]:
        """The rest of a delivery: its key, and the body."""
        head = await self.expect("ContentHeader")
        data = b""
        while len(data) < head.body_size:
            data += (await self.expect("ContentBody")).value
        return (head.properties.headers or {}).get("x-key", ""), data

    def published(
        self, queue: str, data: bytes, headers: dict[str, Any], done: list[Asked], **said: Any
    ) -> bytes:
        """What a publish is on the wire; `said`: more of its properties."""
        self._published += 1
        self.unconfirmed[self._published] = done
        properties = commands.Basic.Properties(headers=headers, delivery_mode=2, **said)
        method = commands.Basic.Publish(0, "", queue)
        parts: list[Any] = [method, header.ContentHeader(0, len(data), properties), body.ContentBody(data)]
        return b"".join(frame.marshal(part, 1) for part in parts)

    def confirmed(self, value: Any, model: JobsModel) -> bool:
        """Whether the frame is a confirm; what it confirms is done."""
        if value.name == "Basic.Nack":
            raise BrokenPromiseError(f"{self._who} was refused without cause: {dict(value)}")
        if value.name != "Basic.Ack":
            return False
        first = min(self.unconfirmed, default=0) if value.multiple else value.delivery_tag
        for number in range(first, value.delivery_tag + 1):
            for asked in self.unconfirmed.pop(number, []):
                model.done(asked)
        return True

    async def confirms(self, model: JobsModel) -> None:
        """All that is still to come."""
        while self.unconfirmed:
            value = await self.value()
            if not self.confirmed(value, model):
                raise BrokenPromiseError(f"{self._who} expected a confirm: {value.name}")

    async def declare(self) -> None:
        for queue, arguments in ARGUMENTS.items():
            await self.method(commands.Queue.Declare(queue=queue, durable=True, arguments=dict(arguments)))
            await self.expect("Queue.DeclareOk")


@attrs.define(eq=False)
class AmqpJobClient(ProbeClient):
    """One client."""

    port = "dmp"
    _model: JobsModel
    _number: int
    _made: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.episodes = {"produce": self._produce, "consume": self._consume}

    async def _play(self, episode: str, wire: Wire) -> None:
        dialog = AmqpDialog(self._world, wire, self.name)
        await dialog.log_in()
        await self.episodes[episode](dialog)

    async def _produce(self, dialog: AmqpDialog) -> None:
        chance, model = self._chance, self._model
        for _ in range(chance.randint(1, 3)):
            requests: list[bytes] = []
            for _ in range(chance.choice((1, 1, 3, 8))):
                self._made += 1
                job = model.draws(chance, f"{self._number}.{self._made}")
                job.earliest -= 0.001  # delays are times of the wall clock, in whole milliseconds
                said = {"x-deduplication-header": job.name, "x-key": job.key, "x-delay": job.delay_ms}
                headers = {name: value for name, value in said.items() if value}
                more: dict[str, Any] = {"priority": job.priority_asked} if job.priority else {}
                if job.ttl_ms:
                    more["expiration"] = str(job.ttl_ms)
                    job.life_ms = job.delay_ms + job.ttl_ms
                requests.append(dialog.published(job.queue, job.body, headers, [job], **more))
            await dialog.send_all(requests, chance, "publish")
            if chance.random() < 0.8:
                await dialog.confirms(model)
        await dialog.confirms(model)

    async def _consume(self, dialog: AmqpDialog) -> None:
        chance, model = self._chance, self._model
        queue, prefetch = chance.choice(QUEUES), chance.choice((1, 1, 3, 20))
        await dialog.method(commands.Basic.Qos(0, prefetch, False))
        await dialog.expect("Basic.QosOk")
        begun = self._world.tick()
        await dialog.method(commands.Basic.Consume(queue=queue))
        await dialog.expect("Basic.ConsumeOk")
        credits_ = deque([begun] * prefetch)
        acked: list[Asked] = []
        left = chance.choice((1, 3, 10))
        in_time = overdue = math.inf
        while left:
            value = None
            with trio.move_on_at(overdue if overdue < math.inf else trio.current_time() + 0.02):
                value = await dialog.value()
            if value is None and overdue == math.inf:
                break
            if value is None:
                raise BrokenPromiseError(f"{self.name} is not closed, and late with what it holds")
            if value.name == "Channel.Close" and self._world.now() >= in_time:
                return
            if dialog.confirmed(value, model):
                continue
            if value.name != "Basic.Deliver" or not credits_:
                raise BrokenPromiseError(f"{self.name} did not ask for {value.name}")
            left -= 1
            key, data = await dialog.message()
            since = credits_.popleft()
            job = model.delivered(queue, data, key, dialog.wire, since)
            if queue == BY_KEY:  # what a channel holds goes back at the first that is late
                in_time = min(in_time, self._world.time_of(since) + TIMEOUT_MS / 1000)
                job.held_until = in_time
            draw = chance.random()
            if (queue == BY_KEY and draw < 0.1) or overdue < math.inf:
                left, overdue = left + 1, min(overdue, trio.current_time() + OVERDUE_MS / 1000)
                continue  # it is held until that is over
            if draw < 0.2:
                continue  # it is held until we leave
            job.holder = None
            if draw < 0.7:
                acked.append(model.leaves([job]))
                await dialog.method(commands.Basic.Ack(value.delivery_tag))
            else:
                await dialog.method(commands.Basic.Nack(value.delivery_tag, requeue=True))
            credits_.append(self._world.tick())
            if acked and chance.random() < 0.3:
                await dialog.send(dialog.published(MARKS, b"mark", {}, acked), "mark")
                acked = []


@attrs.define(eq=False)
class AmqpJobsVerifier:
    """After each start all that is there is looked at, which takes nothing. Then what is ready of `BY_RANK`
    and `BY_TURNS` is taken, behind what was given back; the end of the connection gives back the rest."""

    _world: World
    _network: Network
    _model: JobsModel

    async def verify(self, accept: Callable[[Wire], None], machine: Machine) -> None:
        model = self._model
        async with verifying(AmqpDialog, self._world, self._network, accept, "dmp", "verifier") as dialog:
            await dialog.log_in()
            await dialog.declare()
            there: dict[str, bytes] = {}
            for queue in QUEUES:
                for row in await machine.peek("dmp", queue, _PEEKED_MAX):
                    data = row["text"].encode()
                    job = model.bodies.get(data)
                    if job is None or job.queue != queue or job.name in there:
                        raise BrokenPromiseError(f"{queue} has {data!r}, which nobody sent, or twice")
                    there[job.name] = data
            for name in model.names:
                model.saw(name, there.get(name))
            for job in await self._take(dialog, BY_RANK, 2):
                job.holder = None
            await dialog.method(commands.Basic.Nack(0, multiple=True, requeue=True))
            for queue in (BY_RANK, BY_TURNS):
                model.took(queue, await self._take(dialog, queue), 0)

    async def _take(self, dialog: AmqpDialog, queue: str, most: float = math.inf) -> list[Job]:
        """What is ready."""
        jobs: list[Job] = []
        while len(jobs) < most:
            begun = self._world.tick()
            await dialog.method(commands.Basic.Get(0, queue))
            if (await dialog.value()).name == "Basic.GetEmpty":
                break
            key, data = await dialog.message()
            jobs.append(self._model.delivered(queue, data, key, dialog.wire, begun))
        return jobs
