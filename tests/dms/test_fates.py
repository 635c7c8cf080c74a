"""Any order of operations, restarts included, in queues whose messages time and tries act on.

Real sessions, queues and logs are told to the same model as the simulation's. Nothing is at once here, so it
knows what everybody holds, and a delay, a lifetime or a retry to some hundredths of a second.
"""

import math
import random
from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dms import expiry, wire
from dms.settings import DmsSettings
from dms.wire import Frame, Status, Type
from tests.dms.world import Peer, World, statuses
from tests.support.dms_model import DEAD, FATES, Consumer, DmsModel, Fate, Message

PLAIN = "plain"
QUEUES = (PLAIN, *FATES)
CLIENTS = 3
STEP_SECONDS = 0.005
"""What comes is looked at so often, and by then it may be so old."""


@attrs.define(eq=False)
class Line:
    """A connection to the server, as the model knows connections."""

    over: float = math.inf
    left: bool = False
    server_done: trio.Event = attrs.field(factory=trio.Event)

    def excused(self) -> bool:
        return False


@attrs.define(eq=False)
class Client:
    """Who is connected, and consumes from one queue at most."""

    peer: Peer
    line: Line = attrs.field(factory=Line)
    consumer: Consumer | None = None
    queue: str = ""
    asked: dict[int, int] = attrs.field(factory=dict)
    """CONSUMEs that are not answered: message id, and the tick at which it was sent."""
    held: dict[int, Message] = attrs.field(factory=dict)


class Fates(RuleBasedStateMachine):
    """Its own surroundings: `now` is the time that has passed, whichever process it was in."""

    config = DmsSettings()

    def __init__(self) -> None:
        super().__init__()
        self.on_answer = self.on_sight = lambda: None
        self.world = World(self.config)
        self.before = 0.0
        self.times = [0.0]
        self.ids = 1000
        self.bodies = 0
        self.model = DmsModel(self, [*QUEUES, DEAD])
        self.serve()

    # -- what the model asks

    def tick(self) -> int:
        self.times.append(self.now())
        return len(self.times) - 1

    def time_of(self, tick: int) -> float:
        return self.times[tick]

    def now(self) -> float:
        return self.before + self.world.now

    # -- clients

    def serve(self) -> None:
        self.model.ages.begins(self.now())
        self.model.ages.serves(self.now())
        self.clients = [Client(self.world.connect()) for _ in range(CLIENTS)]

    @initialize()
    def create_all(self) -> None:
        client = self.clients[0]
        for name in (*QUEUES, DEAD):
            request = self.model.creates(name, client.line)
            options = FATES.get(name, Fate()).json
            assert statuses(client.peer.create(name, options)) == [Status.OK]
            self.model.done(request)

    def take(self) -> None:
        """Tell the model what everybody was sent."""
        for client in self.clients:
            for frame in client.peer.take():
                self.heard(client, frame)

    def heard(self, client: Client, frame: Frame) -> None:
        """What comes unasked, or to a CONSUME."""
        type_, _, status, number, payload = frame
        if type_ == Type.DELIVER:
            begun = client.asked.pop(next(iter(client.asked)))
            assert client.consumer is not None
            client.held[number] = self.model.delivered(client.queue, payload, client.consumer, begun)
        else:
            assert (type_, status) == (Type.ERROR, Status.TIMEOUT)
            del client.asked[number]
            self.model.was_not_delivered(client.queue)

    @rule(name=st.sampled_from(QUEUES), client=st.integers(0, CLIENTS - 1), count=st.integers(1, 6))
    def produce(self, name: str, client: int, count: int) -> None:
        who = self.clients[client]
        sent = []
        for _ in range(count):
            self.bodies += 1
            body = b"%06d" % self.bodies + b"." * (self.bodies % 3 * 200)
            sent.append(self.model.sends(name, body, who.line))
        for frame in who.peer.produce(name, *(message.body for message in sent)):
            if frame[0] != Type.PRODUCE_OK:
                self.heard(who, frame)
                continue
            self.model.done(sent[frame[3] - 1])
        assert all(message.acknowledged for message in sent)
        self.take()

    @rule(name=st.sampled_from((*QUEUES, DEAD)), client=st.integers(0, CLIENTS - 1), count=st.integers(1, 5))
    def consume(self, name: str, client: int, count: int) -> None:
        who = self.clients[client]
        if who.queue != name:
            if who.asked:
                return
            who.queue, who.consumer = name, self.model.consumer(name, who.line)
        begun = self.model.asks(name, count)
        for _ in range(count):
            self.ids += 1
            who.asked[self.ids] = begun
        frames = (
            wire.pack(Type.CONSUME, number, wire.pack_name(name)) for number in list(who.asked)[-count:]
        )
        who.peer.send(b"".join(frames))
        self.take()

    @precondition(lambda self: any(client.held for client in self.clients))
    @rule(seed=st.integers(0, 1 << 32), back=st.booleans(), count=st.integers(1, 5))
    def settle_some(self, seed: int, back: bool, count: int) -> None:
        pick = random.Random(seed)
        who = pick.choice([client for client in self.clients if client.held])
        some = {
            number: who.held.pop(number) for number in pick.sample(list(who.held), min(count, len(who.held)))
        }
        consumer = who.consumer
        assert consumer is not None
        if back:
            for number, message in some.items():
                self.model.gives_back(message, consumer, number)
        else:
            acks = {number: self.model.acks(message, who.line) for number, message in some.items()}
        answered = []
        for frame in who.peer.nack(*some) if back else who.peer.ack(*some):
            if frame[0] not in (Type.NACK_OK, Type.ACK_OK):
                self.heard(who, frame)
                continue
            answered.append(frame[3])
            if back:
                self.model.gave_back(some[frame[3]], consumer, frame[3])
            else:
                self.model.done(acks[frame[3]])
        assert answered == list(some)
        self.take()

    @rule(client=st.integers(0, CLIENTS - 1))
    def lose(self, client: int) -> None:
        who = self.clients[client]
        who.line.left = True
        who.peer.lose()
        self.world.advance(0)  # what it held in many pieces goes back in turns
        self.ended(who)
        self.clients[client] = Client(self.world.connect())
        self.take()

    def ended(self, who: Client) -> None:
        """The server is through with it, and all that it was sent was read."""
        who.line.over = self.tick()
        who.line.server_done.set()
        for _ in who.asked:
            self.model.was_not_delivered(who.queue)

    # -- time

    @rule(steps=st.integers(1, 40))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.world.advance(STEP_SECONDS)
            self.take()

    @rule()
    def time_out(self) -> None:
        """All that wait for a message give up; what is due is over."""
        self.pass_time(40)
        self.world.advance(31)
        self.take()
        assert not any(client.asked for client in self.clients)

    @precondition(lambda self: self.config.persist)
    @rule()
    def restart(self) -> None:
        for client in self.clients:
            client.line.left = True
        self.model.ages.ends(self.now())
        self.before += self.world.now
        self.world.kill()
        for client in self.clients:
            self.ended(client)
        self.serve()
        self.look(self.clients[0])

    def look(self, who: Client) -> None:
        """At all messages of all queues, of which nobody holds any."""
        begun = self.tick()
        places = self.rows(DEAD, *QUEUES)
        dead = places.pop(DEAD)
        self.model.saw_places(dead, places, dead, begun, who.line)

    def rows(self, *names: str) -> dict[str, list[dict[str, Any]]]:
        calls = [{"queue": name, "limit": 1000} for name in names]
        return dict(zip(names, self.world.call_each("peek", calls), strict=True))

    @rule()
    def look_at_what_nobody_holds(self) -> None:
        """Each knows how often it was delivered."""
        for name, rows in self.rows(*QUEUES).items():
            for row in rows:
                self.model.shows(self.model.find(name, row["text"].encode()), row["properties"])

    def teardown(self) -> None:
        """Whatever has come to pass: what is left can all be had, each from its place."""
        for client in range(CLIENTS):
            self.lose(client)
        self.world.advance(1)
        self.take()
        self.look(self.clients[0])
        for client, name in enumerate((*QUEUES, DEAD)):
            self.lose(client % CLIENTS)
            if count := len(self.rows(name)[name]):
                self.consume(name, client % CLIENTS, count)
            assert not self.clients[client % CLIENTS].asked, f"{name} keeps some to itself"


class MemoryFates(Fates):
    config = DmsSettings(persist=False)


class ColdFates(Fates):
    """Nothing stays in memory, and snapshots are frequent: all goes through the log."""

    config = DmsSettings(hot_bytes=0)


pytestmark = pytest.mark.usefixtures("few_are_many")
MACHINES = [Fates, MemoryFates, ColdFates]


@pytest.fixture(autouse=True)
def _few_are_back_or_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "RETURNED_MAX", 12)
    monkeypatch.setattr(expiry, "RUN_MOST", 5)


@pytest.mark.parametrize("machine", MACHINES)
def test_any_order_of_operations_keeps_what_is_promised_of_time_and_tries(machine: type[Fates]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=12, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(2))
def test_so_does_a_long_walk(machine: type[Fates], seed: int) -> None:
    """Hypothesis likes short stories; these are long, and mostly about few queues."""
    pick = random.Random(seed)
    walk = machine()
    walk.create_all()
    for _ in range(200):
        name, client, count = pick.choice(QUEUES), pick.randrange(CLIENTS), pick.randint(1, 5)
        match pick.choices(range(7), (20, 25, 30, 15, 3, 1, 2))[0]:
            case 0:
                walk.produce(name, client, count)
            case 1:
                walk.consume(pick.choice((name, name, DEAD)), client, count)
            case 2 if any(who.held for who in walk.clients):
                walk.settle_some(pick.randrange(1 << 32), pick.random() < 0.6, count)
            case 3:
                walk.pass_time(pick.randint(1, 10))
            case 4:
                walk.lose(client)
            case 5:
                walk.time_out()
            case 6 if walk.config.persist:
                walk.restart()
        walk.look_at_what_nobody_holds()
    walk.teardown()
