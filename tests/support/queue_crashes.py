"""What a crash may leave of a queue with jobs: DMS's, and a durable one of AMQP.

A workload is a few requests. Each is answered before the next is sent, or the last ones are in one commit,
each in a batch of its own. The power is cut before each sync of these, and at the end, and the process killed
before each of their writes. What then stands in the queues, with all that is told of each message, is what
stood there before one of these requests or behind it, whole. A model says what that is: the bodies by queue.
What else is told of them is read behind each request from a server that was killed and has lost nothing.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from unittest.mock import patch

import attrs
import trio
from pamqp import commands

from dmp.shown_properties import read
from dms.wire import Frame, Status, Type
from shared.storage.store import Store
from tests.dmp import world as dmp_world
from tests.dmp.amqp_peer import Peer as AmqpPeer
from tests.dmp.test_admin import call
from tests.dmp.world import PERSISTENT
from tests.dms import world as dms_world
from tests.dms.world import Peer as DmsPeer
from tests.dms.world import statuses
from tests.support.commits import batches_of
from tests.support.crashes import SYNCS, WRITES, Tally
from tests.support.explore import TooManyStatesError, every_state, sampled_states
from tests.support.fake_disk import Crash, FakeDisk, Operation
from tests.support.promises import BrokenPromiseError

JOBS, DEAD = "jobs", "dead"
WINDOW_MS = 3_600_000
"""A name is known so long, and no workload takes half of it."""
RETRY_MS = 1000
DELAY_MS = 5000
LIMIT = 2
"""Failed tries, with which a message is dead."""

Shown = tuple[tuple[str, str], ...]
"""Messages: queue, and all that is told of one."""


@attrs.define(eq=False)
class Entry:
    """A message that the model has. `due`: when it may be taken; `tries`: how many have failed."""

    body: str
    key: str = ""
    name: str = ""
    due: float = 0.0
    tries: int = 0


class Subject(ABC):
    """A server on a fake disk, what is asked of it, and the model of what it has."""

    def __init__(self) -> None:
        self.jobs: list[Entry] = []
        self.dead: list[Entry] = []
        self.names: list[str] = []
        """All that were taken."""
        self.gathers = False
        """What is asked waits for the commit, and so does its answer."""
        self.now = 0.0
        self._made = 0

    # -- what is done

    def produce(self, key: str = "", *, named: bool = False, delay_ms: int = 0) -> None:
        self._made += 1
        name = f"n{self._made}" if named else ""
        entry = Entry(f"body {self._made}" + "." * 600 * named, key, name, self.now + delay_ms / 1000)
        self.send(entry, delay_ms)
        self.jobs.append(entry)
        self.names += [name] * named

    def produce_again(self) -> None:
        """Of a name that is known."""
        self.send(Entry("again", name=self.names[0]), 0)

    def settle_first(self, *, acked: bool) -> None:
        """The first that may be taken: ACK, or NACK."""
        waiting = {entry.key for entry in self.jobs if entry.tries and entry.due > self.now and entry.key}
        ready = [entry for entry in self.jobs if entry.due <= self.now and entry.key not in waiting]
        if not ready:
            assert not self.take(acked=acked)
            return
        body = self.take(acked=acked)
        (entry,) = (entry for entry in ready if entry.body == body)
        if acked:
            self.jobs.remove(entry)
            return
        entry.tries += 1
        entry.due = self.now + RETRY_MS / 1000
        if entry.tries == LIMIT:
            self.jobs.remove(entry)
            self.dead.append(entry)

    def cancel(self) -> None:
        named = [entry for entry in self.jobs if entry.name]
        if named:
            self.change(named[-1].name, None)
            self.jobs.remove(named[-1])

    def reschedule(self) -> None:
        named = [entry for entry in self.jobs if entry.name]
        if named:
            self.change(named[0].name, 2 * DELAY_MS)
            named[0].due = self.now + 2 * DELAY_MS / 1000

    def redrive(self) -> None:
        self.act(DEAD, "redrive")
        for entry in self.dead:
            entry.due, entry.tries = 0.0, 0
        self.jobs += self.dead
        self.dead = []

    def purge(self) -> None:
        self.act(JOBS, "purge")
        self.jobs = []

    def later(self) -> None:
        """What waits may be taken."""
        self.now += DELAY_MS / 1000 + 1
        self.pass_time(DELAY_MS / 1000 + 1)

    # -- what differs

    @property
    @abstractmethod
    def disk(self) -> FakeDisk: ...

    @abstractmethod
    def begin(self, disk: FakeDisk) -> None:
        """Start a server on what is on the disk; the queues are made where they are not there."""

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def send(self, entry: Entry, delay_ms: int) -> None: ...

    @abstractmethod
    def take(self, *, acked: bool) -> str:
        """The body of what was taken, and acknowledged or given back; empty: nothing came."""

    @abstractmethod
    def change(self, name: str, delay_ms: int | None) -> None:
        """RESCHEDULE, or CANCEL without a delay."""

    @abstractmethod
    def act(self, queue: str, action: str, **arguments: Any) -> Any:
        """An action of the API."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    @abstractmethod
    def tidy(self) -> None:
        """What logs do by themselves now and then: a checkpoint, a snapshot."""

    # -- what is there

    def shown(self) -> Shown:
        """All that is there, by queue and place; what is sent again of each name comes with it."""
        for name in self.names:
            self.send(Entry(f"again {name}", name=name), 0)
        found: list[tuple[str, str]] = []
        for queue in (JOBS, DEAD):
            rows = self.act(queue, "peek", limit=1000)
            for row in sorted(rows, key=lambda row: row["position"]):
                del row["time"]
                if self.gathers:  # that it was delivered may be told before it is acknowledged
                    row.get("properties", {}).pop("deliveries", None)
                found.append((queue, json.dumps(row, sort_keys=True)))
        return tuple(found)

    def check(self, shown: Shown) -> None:
        """Against the model. Raises BrokenPromiseError."""
        found = {
            queue: sorted(json.loads(row)["text"] for of, row in shown if of == queue)
            for queue in (JOBS, DEAD)
        }
        model = {
            JOBS: sorted(entry.body for entry in self.jobs),
            DEAD: sorted(entry.body for entry in self.dead),
        }
        if found != model:
            raise BrokenPromiseError(f"there is {found}, and there should be {model}")


class Dms(Subject):
    """Requests over a connection of DMS."""

    world: dms_world.World
    peer: DmsPeer
    options: ClassVar[Mapping[str, Any]] = {
        "per_key": 1,
        "dedup_ms": WINDOW_MS,
        "max_deliveries": LIMIT,
        "retry_ms": RETRY_MS,
        "dead_letter": DEAD,
    }

    @property
    def disk(self) -> FakeDisk:
        return self.world.disk

    def begin(self, disk: FakeDisk) -> None:
        self.world = dms_world.World(disk=disk)
        self.peer = self.world.connect()
        for queue, options in ((DEAD, {}), (JOBS, self.options)):
            if queue.encode() not in self.world.engine.queues:
                self.peer.create(queue, json.dumps(options).encode())

    @property
    def store(self) -> Store:
        return self.world.store

    def send(self, entry: Entry, delay_ms: int) -> None:
        if not (entry.key or entry.name or delay_ms):
            self.peer.produce(JOBS, entry.body.encode())
            return
        said = {"key": entry.key, "dedup": entry.name, "delay_ms": delay_ms}
        said = {name: value for name, value in said.items() if value}
        self._is_done(self.peer.produce_with(JOBS, entry.body.encode(), **said))

    def _is_done(self, frames: Sequence[Frame]) -> None:
        assert set(statuses(frames)) <= {Status.OK}

    def take(self, *, acked: bool) -> str:
        found = self.peer.consume(JOBS)
        if not found:
            self.world.advance(0)
            self.peer.lose()  # what it asked for is forgotten
            self.peer = self.world.connect()
            return ""
        ((held, body),) = found
        self.peer.ack(held) if acked else self.peer.nack(held)
        return body.decode()

    def change(self, name: str, delay_ms: int | None) -> None:
        type_, said = (Type.CANCEL, {}) if delay_ms is None else (Type.RESCHEDULE, {"delay_ms": delay_ms})
        self._is_done(self.peer.job(type_, JOBS, dedup=name, **said))

    def act(self, queue: str, action: str, **arguments: Any) -> Any:
        return self.world.call(action, queue=queue, **arguments)

    def pass_time(self, seconds: float) -> None:
        self.world.advance(seconds)

    def tidy(self) -> None:
        for queue in self.world.engine.queues.values():
            assert queue.log is not None
            queue.log.snapshot()
        self.world.settle()
        trio.run(self.store.checkpoint)


class Amqp(Subject):
    """A durable queue, and requests of its broker."""

    world: dmp_world.World
    arguments: ClassVar[Mapping[str, Any]] = {
        "x-per-key": 1,
        "x-message-deduplication": True,
        "x-cache-ttl": WINDOW_MS,
        "x-delivery-limit": LIMIT - 1,
        "x-retry-ms": RETRY_MS,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
    }

    @property
    def disk(self) -> FakeDisk:
        return self.world.disk

    def begin(self, disk: FakeDisk) -> None:
        self.world = trio.run(dmp_world.World.open, None, disk)
        peer = AmqpPeer(self.world).login()
        for queue, arguments in ((DEAD, {}), (JOBS, self.arguments)):
            if queue.encode() not in self.world.broker.queues:
                peer.ask(commands.Queue.Declare(queue=queue, durable=True, arguments=dict(arguments)))

    @property
    def store(self) -> Store:
        return self.world.store

    def send(self, entry: Entry, delay_ms: int) -> None:
        said = {"x-key": entry.key, "x-deduplication-header": entry.name, "x-delay": delay_ms}
        headers = {name: value for name, value in said.items() if value}
        properties = read({"properties": {"headers": headers}}, persistent=True) if headers else PERSISTENT
        self.world.publish(b"", JOBS.encode(), entry.body.encode(), properties=properties)
        self.world.settle()

    def take(self, *, acked: bool) -> str:
        queue = self.world.broker.queues[JOBS.encode()]
        run = queue.get(no_ack=False)
        if run is None:
            return ""
        queue.settle([run]) if acked else queue.requeue([run])
        self.world.settle()
        return run.bodies[0].decode()

    def change(self, name: str, delay_ms: int | None) -> None:
        if delay_ms is None:
            self.act(JOBS, "cancel", dedup=name)
        else:
            self.act(JOBS, "reschedule", dedup=name, delay=f"{delay_ms}ms")

    def act(self, queue: str, action: str, **arguments: Any) -> Any:
        async def run() -> Any:
            return await call(self.world, self.world.broker.queues[queue.encode()], action, **arguments)

        found = trio.run(run)
        return found.get("items", found)

    def pass_time(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.world.settle()

    def tidy(self) -> None:
        trio.run(self.store.checkpoint)


Do = Callable[[Subject], None]

LIGHT: Mapping[str, Do] = {
    "produce": lambda subject: subject.produce(),
    "produce of a key": lambda subject: subject.produce("a"),
    "produce by name": lambda subject: subject.produce("b", named=True),
    "produce for later": lambda subject: subject.produce("a", named=True, delay_ms=DELAY_MS),
    "produce again": lambda subject: subject.produce_again(),
    "acknowledge": lambda subject: subject.settle_first(acked=True),
    "give back": lambda subject: subject.settle_first(acked=False),
}
"""Those of which several may be in one commit."""
OPERATIONS: Mapping[str, Do] = {
    **LIGHT,
    "cancel": lambda subject: subject.cancel(),
    "reschedule": lambda subject: subject.reschedule(),
    "redrive": lambda subject: subject.redrive(),
    "purge": lambda subject: subject.purge(),
    "time passes": lambda subject: subject.later(),
    "tidy up": lambda subject: subject.tidy(),
}
"""The alphabet of the workloads."""


def prepared(kind: type[Subject]) -> Subject:
    """What a workload finds: messages with names, with keys, with failed tries, for later, and two dead."""
    subject = kind()
    subject.begin(FakeDisk())
    for number in range(4):
        subject.produce("ab"[number % 2])
    for _ in range(LIMIT):
        subject.settle_first(acked=False)
        subject.settle_first(acked=False)
        subject.later()
    assert len(subject.dead) == LIMIT
    subject.produce("a", named=True)
    subject.tidy()
    subject.produce("a", named=True, delay_ms=DELAY_MS)
    subject.settle_first(acked=False)
    subject.produce()
    return subject


def after_a_crash(subject: Subject, disk: FakeDisk) -> Shown:
    """What a server shows that starts on that disk."""
    other = type(subject)()
    other.names = list(subject.names)
    other.begin(disk)
    other.gathers = subject.gathers
    try:
        return other.shown()
    finally:
        other.store.abandon()


def check(
    kind: type[Subject], operations: Sequence[str], together: int = 1, runs_max: int = 200, again: int = 0
) -> Tally:
    """The crashes in the last operation, or in as many as are `together` in one commit. Raises
    BrokenPromiseError.

    `runs_max`: of one cut that leaves states for more recoveries than this, so many are drawn. `again`: the
    power is cut a second time, while a server starts on so many of the states.
    """
    subject, last = prepared(kind), operations[-together:]
    for name in operations[:-together]:
        OPERATIONS[name](subject)
    stages = [subject.disk.kill()]
    subject.check(after_a_crash(subject, stages[0].kill()))
    if together > 1:  # what each would do for itself
        twin = prepared(kind)
        for name in operations[:-1]:
            OPERATIONS[name](twin)
            stages.append(twin.disk.kill())
        stages[:] = stages[:1] + stages[-together + 1 :]
        twin.store.abandon()
    cuts, kills = _watched(subject, last)
    behind = after_a_crash(subject, subject.disk.kill())
    subject.check(behind)
    allowed = [*(after_a_crash(subject, stage) for stage in stages), behind]  # to whom all names were said
    tally = Tally(kills=len(kills))
    for killed in kills:
        _same(after_a_crash(subject, killed), allowed, "killed")
    for crash in cuts:
        tally.cuts += 1
        for disk in _states(crash, runs_max, tally):
            shown = after_a_crash(subject, disk)
            _same(shown, allowed[-1:] if crash is cuts[-1] else allowed, disk.picked())
            tally.runs += 1
            tally.states += disk.states()
        for disk in sampled_states(crash, 0, again):
            _check_again(subject, disk, allowed, tally)
    subject.store.abandon()
    return tally


def _watched(subject: Subject, operations: Sequence[str]) -> tuple[list[Crash], list[FakeDisk]]:
    """Where the power may go off meanwhile, and at the end; and the machine before each write."""
    cuts: list[Crash] = []
    kills: list[FakeDisk] = []

    def watch(operation: Operation) -> None:
        if operation.kind in SYNCS:
            cuts.append(disk.power_cut())
        elif operation.kind in WRITES:
            kills.append(disk.kill())

    disk = subject.disk
    disk.before = watch
    if len(operations) > 1:
        subject.gathers = True
        with batches_of(0), patch.object(subject.store, "commit_pending"):
            for name in operations:
                OPERATIONS[name](subject)
        subject.store.commit_pending()
    else:
        OPERATIONS[operations[0]](subject)
    disk.before = None
    return [*cuts, disk.power_cut()], kills


def _check_again(subject: Subject, disk: FakeDisk, allowed: Sequence[Shown], tally: Tally) -> None:
    """Cut the power at each sync of a start, and behind it: one state of each."""
    cuts: list[Crash] = []
    disk.before = lambda operation: cuts.append(disk.power_cut()) if operation.kind in SYNCS else None
    other = type(subject)()
    other.begin(disk)
    disk.before = None
    cuts.append(disk.power_cut())
    other.store.abandon()
    for number, second in enumerate(cuts):
        for after in sampled_states(second, number, 1):
            _same(after_a_crash(subject, after), allowed, f"{disk.picked()}, and then {after.picked()}")
            tally.runs += 1


def _states(crash: Crash, runs_max: int, tally: Tally) -> Iterator[FakeDisk]:
    try:
        yield from every_state(crash, runs_max)
    except TooManyStatesError:
        tally.sampled += 1
        yield from sampled_states(crash, 0, runs_max)


def _same(shown: Shown, allowed: Sequence[Shown], how: str) -> None:
    if shown not in allowed:
        there = [row for row in shown if row not in allowed[0]]
        gone = [row for row in allowed[0] if row not in shown]
        raise BrokenPromiseError(f"{how}: more than before: {there}; less: {gone}")
