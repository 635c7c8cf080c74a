"""Any order of operations, restarts included: real sessions, queues and logs against a plain Python queue.

That says who is served what, and at once, in queues without options. What is promised of all queues, options
included, is judged by the model of the simulation.
"""

import random
from collections import deque
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import Peer, World, deliveries, statuses

NAMES = ("a", "b")
CLIENTS = 3
ADMINISTRATION = ("peek", "snapshot", "purge", "peek", "snapshot")
DEPTH = 12


@attrs.define
class Model:
    """What a queue is: numbers in order, some held by somebody; and who waits, in order."""

    ready: list[int] = attrs.field(factory=list)
    held: dict[int, tuple[int, int]] = attrs.field(factory=dict)  # delivery id -> client, number
    waiting: deque[int] = attrs.field(factory=deque)

    @property
    def depth(self) -> int:
        return len(self.ready) + len(self.held)


class Machine(RuleBasedStateMachine):
    """Bodies are numbers that count up, so that places can be compared."""

    config = DmsSettings(depth=DEPTH)
    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.config)
        self.model: dict[str, Model] = {}
        self.peers: list[Peer] = [self.world.connect() for _ in range(CLIENTS)]
        self.next = 0

    @initialize()
    def create_all(self) -> None:
        for name in NAMES:
            self.create(name, 0)

    def create(self, name: str, client: int) -> None:
        expected = Status.QUEUE_EXISTS if name in self.model else Status.OK
        assert statuses(self.peers[client].create(name)) == [expected]
        self.model.setdefault(name, Model())

    @rule(name=st.sampled_from(NAMES), client=st.integers(0, CLIENTS - 1))
    def delete_and_make(self, name: str, client: int) -> None:
        """A queue goes, is not there, and another comes by its name, which may be told that it is there."""
        self.delete(name, client)
        if name == NAMES[0]:
            self.delete(name, client)
            self.produce(name, client, 2, 0)
            self.consume(name, client, 1)
        self.create(name, client)
        self.create(name, client)

    def delete(self, name: str, client: int) -> None:
        model = self.model.pop(name, None)
        frames = self.peers[client].ask(Type.DELETE_QUEUE, wire.pack_name(name))
        waited = 0 if model is None else sum(who == client for who in model.waiting)
        missing = [Status.QUEUE_NOT_FOUND]
        assert sorted(statuses(frames)) == sorted(
            missing * (waited + (model is None)) + [Status.OK] * (model is not None)
        )
        for who, peer in enumerate(self.peers):
            if who != client and model is not None:
                assert statuses(peer.take()) == missing * model.waiting.count(who)

    @rule(
        name=st.sampled_from(NAMES),
        client=st.integers(0, CLIENTS - 1),
        count=st.integers(1, 9),
        size=st.integers(0, 2),
    )
    def produce(self, name: str, client: int, count: int, size: int) -> None:
        numbers = range(self.next, self.next + count)
        self.next += count
        bodies = [b"%06d" % number + b"." * (size * (number % 2) * 300) for number in numbers]
        frames = self.peers[client].produce(name, *bodies)
        answers = [frame for frame in frames if frame[0] != Type.DELIVER]
        model = self.model.get(name)
        if model is None:
            assert statuses(answers) == [Status.QUEUE_NOT_FOUND] * count
            return
        fit = min(count, DEPTH - model.depth)
        assert statuses(answers) == [Status.OK] * fit + [Status.QUEUE_FULL] * (count - fit)
        assert [frame[3] for frame in answers] == list(range(1, count + 1))
        model.ready += numbers[:fit]
        self._check_served(name, client, frames)

    @rule(name=st.sampled_from(NAMES), client=st.integers(0, CLIENTS - 1), count=st.integers(1, 6))
    def consume(self, name: str, client: int, count: int) -> None:
        peer = self.peers[client]
        peer.send(wire.pack(Type.CONSUME, 7, wire.pack_name(name)) * count)
        frames = peer.take()
        model = self.model.get(name)
        if any(client in other.waiting for queue, other in self.model.items() if queue != name):
            assert statuses(frames) == [Status.PROTOCOL_ERROR] * count
            return
        if model is None:
            assert statuses(frames) == [Status.QUEUE_NOT_FOUND] * count
            return
        model.waiting.extend([client] * count)
        self._check_served(name, client, frames)

    @precondition(lambda self: any(model.held for model in self.model.values()))
    @rule(seed=st.integers(0, 1 << 32), back=st.booleans(), count=st.integers(1, 5))
    def settle_some(self, seed: int, back: bool, count: int) -> None:
        pick = random.Random(seed)
        model = pick.choice([model for model in self.model.values() if model.held])
        client = pick.choice(sorted({who for who, _ in model.held.values()}))
        ids = [held for held, (who, _) in model.held.items() if who == client]
        if seed % 3:
            pick.shuffle(ids)
        ids = ids[:count]
        peer = self.peers[client]
        frames = peer.nack(*ids) if back else peer.ack(*ids)
        reply = Type.NACK_OK if back else Type.ACK_OK
        assert [(f[0], f[3]) for f in frames if f[0] != Type.DELIVER] == [(reply, held) for held in ids]
        if not back:
            for held in ids:
                del model.held[held]
            assert not deliveries(frames)
            return
        got = {
            who: deque(deliveries(frames if who == client else other.take()))
            for who, other in enumerate(self.peers)
        }
        for held in ids:  # one by one: each may be served before the next comes back
            model.ready.append(model.held.pop(held)[1])
            model.ready.sort()
            self._serve(model, got)
        assert not any(got.values())

    @rule(name=st.sampled_from(NAMES), client=st.integers(0, CLIENTS - 1), count=st.integers(1, 6))
    def flow(self, name: str, client: int, count: int) -> None:
        """What there is most of."""
        self.produce(name, client, count, 1)
        self.consume(name, (client + 1) % CLIENTS, count - 1 or 1)

    @rule(client=st.integers(0, CLIENTS - 1), name=st.sampled_from(NAMES))
    def wrong_ack(self, client: int, name: str) -> None:
        foreign = [
            held for model in self.model.values() for held, (who, _) in model.held.items() if who != client
        ]
        peer = self.peers[client]
        for held in [*foreign[:2], 5]:
            assert statuses(peer.ack(held)) == [Status.PROTOCOL_ERROR]

    @rule(client=st.integers(0, CLIENTS - 1))
    def lose(self, client: int) -> None:
        self.peers[client].lose()
        while self.world.engine.long_work.busy:  # what it held in many pieces goes back in turns
            self.world.advance(0)
        self.peers[client] = self.world.connect()
        for model in self.model.values():
            model.waiting = deque(who for who in model.waiting if who != client)
        got = {who: deque(deliveries(peer.take())) for who, peer in enumerate(self.peers)}
        for model in self.model.values():
            mine = [held for held, (who, _) in model.held.items() if who == client]
            model.ready += [model.held.pop(held)[1] for held in mine]
            model.ready.sort()
            self._serve(model, got)
        assert not any(got.values())

    @rule()
    def time_out(self) -> None:
        self.world.advance(31)
        for who, peer in enumerate(self.peers):
            waited = sum(model.waiting.count(who) for model in self.model.values())
            assert statuses(peer.take()) == [Status.TIMEOUT] * waited
        for model in self.model.values():
            model.waiting.clear()

    @rule()
    def restart(self) -> None:
        self.world.kill()
        self.peers = [self.world.connect() for _ in range(CLIENTS)]
        if not self.durable:
            self.model.clear()
            self.create_all()
        for model in self.model.values():
            model.ready = sorted([*model.ready, *(number for _, number in model.held.values())])
            model.held.clear()
            model.waiting.clear()

    @rule(
        name=st.sampled_from(NAMES), what=st.sampled_from(["peek", "snapshot", "purge", "peek", "snapshot"])
    )
    def administrate(self, name: str, what: str) -> None:
        model = self.model[name]
        if what == "purge":
            assert self.world.call("purge", queue=name)["purged"] == len(model.ready)
            model.ready.clear()
        elif what == "peek":
            rows = self.world.call("peek", queue=name, limit=100)
            assert [int(row["text"][:6]) for row in rows] == model.ready
        elif self.durable:
            for queue in self.world.engine.queues.values():
                assert queue.log is not None
                queue.log.snapshot()
            self.world.settle()

    @invariant()
    def depths_agree(self) -> None:
        assert self.world.depths() == {name: model.depth for name, model in self.model.items()}

    def _check_served(self, name: str, client: int, frames: list[Any]) -> None:
        """What `client` was sent, and what the others have got, is what the model gives."""
        got = self._got(client, frames)
        self._serve(self.model[name], got)
        assert not any(got.values()), "more was delivered than was due"

    def _got(self, client: int, frames: list[Any]) -> dict[int, deque[tuple[int, bytes]]]:
        """What each client was sent; `frames` are what `client` was."""
        return {
            who: deque(deliveries(frames if who == client else peer.take()))
            for who, peer in enumerate(self.peers)
        }

    def _serve(self, model: Model, got: dict[int, deque[tuple[int, bytes]]]) -> None:
        while model.waiting and model.ready:
            who, number = model.waiting.popleft(), model.ready.pop(0)
            assert got[who], f"client {who} waits for {number}"
            held, body = got[who].popleft()
            assert int(body[:6]) == number
            assert held not in model.held
            model.held[held] = who, number


class MemoryMachine(Machine):
    config = DmsSettings(depth=DEPTH, persist=False)
    durable = False


class ColdMachine(Machine):
    """Nothing stays in memory, and snapshots are frequent: all goes through the log."""

    config = DmsSettings(depth=DEPTH, hot_bytes=0)


pytestmark = pytest.mark.usefixtures("few_are_many")
MACHINES = [Machine, MemoryMachine, ColdMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_any_order_of_operations_is_a_queues(machine: type[Machine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=12, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_a_long_walk_is_a_queues_too(machine: type[Machine], seed: int) -> None:
    """Hypothesis likes short stories; these are long, and mostly about messages."""
    pick = random.Random(seed)
    model = machine()
    model.create_all()
    for _ in range(250):
        name, client, count = pick.choice(NAMES), pick.randrange(CLIENTS), pick.randint(1, 6)
        match pick.choices(range(9), (20, 20, 40, 5, 2, 1, 2, 4, 1))[0]:
            case 0:
                model.produce(name, client, count, pick.randrange(3))
            case 1:
                model.consume(name, client, count)
            case 2 if any(queue.held for queue in model.model.values()):
                model.settle_some(pick.randrange(1 << 32), pick.random() < 0.4, count)
            case 3:
                model.flow(name, client, count)
            case 4:
                model.lose(client)
            case 5:
                model.time_out()
            case 6:
                model.restart()
            case 7:
                model.administrate(name, pick.choice(ADMINISTRATION))
            case 8:
                model.delete_and_make(name, client)
        model.depths_agree()
