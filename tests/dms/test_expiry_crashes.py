"""Lifetimes, delays, retries and dead letters, while the process is killed and the power goes off.

A seeded walk: messages come, are held, acknowledged, given back; time passes; connections are lost; now and
then the machine ends, on a disk that knows every state that a power cut may leave. Whatever happens, what was
answered and not acknowledged is in one place, once: its own queue, or that of the dead.
"""

import random

import attrs
import pytest

from dms import cold, queue_log
from dms.settings import DmsSettings
from dms.wire import Status, Type
from shared.storage.settings import Durability
from tests.dms.world import Peer, World, statuses
from tests.support.explore import sampled_states
from tests.support.stores import ALWAYS, INTERVAL, NONE

DEAD = "dead"
OPTIONS = {
    DEAD: b"",
    "plain": b"",
    "mortal": b'{"ttl_ms":3000,"dead_letter":"dead"}',
    "tries": b'{"max_deliveries":2,"dead_letter":"dead"}',
    "late": b'{"delay_ms":2000}',
    "patient": b'{"retry_ms":500,"retry_max_ms":2000,"max_deliveries":4,"dead_letter":"dead"}',
}
MAY_DIE = {"mortal", "tries", "patient"}
STEPS = 150


@attrs.define(eq=False, slots=False)
class Walk:
    """`of`: the queue that a message was sent to; `gone`: acknowledged; `seen`: delivered before."""

    chance: random.Random
    mode: Durability
    power: bool
    of: dict[str, str] = attrs.Factory(dict)
    gone: set[str] = attrs.Factory(set)
    seen: set[str] = attrs.Factory(set)
    newest: dict[str, str] = attrs.Factory(dict)
    held: list[tuple[Peer, int, str]] = attrs.Factory(list)
    crashes: int = 0

    def __attrs_post_init__(self) -> None:
        self.world = World(DmsSettings(durability=self.mode))
        self.peers = [self.world.connect() for _ in range(3)]
        for queue, options in OPTIONS.items():
            assert statuses(self.peers[0].create(queue, options)) == [Status.OK]

    def step(self) -> None:
        kinds = (self.produce, self.consume, self.settle, self.lose, self.wait, self.crash)
        (kind,) = self.chance.choices(kinds, (5, 6, 6, 1, 4, 1))
        kind()

    def produce(self) -> None:
        queue = self.chance.choice([name for name in OPTIONS if name != DEAD])
        bodies = [f"{len(self.of) + n:06d}" for n in range(self.chance.randint(1, 4))]
        answers = self.chance.choice(self.peers).produce(queue, *(body.encode() for body in bodies))
        assert [frame[0] for frame in answers] == [Type.PRODUCE_OK] * len(bodies)
        self.of |= dict.fromkeys(bodies, queue)

    def consume(self) -> None:
        queue = self.chance.choice(list(OPTIONS))
        peer = self.chance.choice(self.peers)
        ready = next(row["ready"] for row in self.world.call("queues") if row["queue"] == queue)
        asked = min(ready, 3)
        came = peer.consume(queue, asked) if asked else []
        for held, body in came:
            self.take(peer, queue, held, body.decode())
        if len(came) < asked:  # some were past their time: nobody is to wait for others, which come unasked
            self.drop(peer)

    def take(self, peer: Peer, queue: str, held: int, body: str) -> None:
        assert body not in self.gone, "acknowledged, and delivered"
        assert body not in [other for _, _, other in self.held], "delivered while it is held"
        assert queue == self.of[body] or (queue == DEAD and self.of[body] in MAY_DIE)
        if queue != DEAD and body not in self.seen:
            assert self.newest.get(queue, "") < body, "first deliveries are in order"
            self.newest[queue] = body
        self.seen.add(body)
        self.held.append((peer, held, body))

    def settle(self) -> None:
        if self.held:
            peer, held, body = self.held.pop(self.chance.randrange(len(self.held)))
            if self.chance.random() < 0.4:
                assert statuses(peer.ack(held)) == [Status.OK]
                self.gone.add(body)
            else:
                assert statuses(peer.nack(held)) == [Status.OK]

    def lose(self) -> None:
        self.drop(self.chance.choice(self.peers))

    def drop(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.held = [each for each in self.held if each[0] is not peer]
        peer.lose()
        self.peers.append(self.world.connect())

    def wait(self) -> None:
        self.world.advance(self.chance.choice((0.05, 0.3, 1.0, 4.0)))

    def crash(self) -> None:
        self.crashes += 1
        self.held.clear()
        if self.power and self.chance.random() < 0.7:
            (disk,) = sampled_states(self.world.disk.power_cut(), self.chance.getrandbits(32), 1)
            self.world = World(self.world.settings, disk)
        else:
            self.world.kill()
        self.peers = [self.world.connect() for _ in range(3)]
        self.look()

    def look(self) -> None:
        """Nobody holds anything: all that is to be there is in one place, and nothing else."""
        places = [(body, queue) for queue in OPTIONS for body in self.there(queue)]
        left = self.of.keys() - self.gone
        assert sorted(body for body, _ in places) == sorted(left)
        for body, queue in places:
            assert queue == self.of[body] or (queue == DEAD and self.of[body] in MAY_DIE)

    def there(self, queue: str) -> list[str]:
        waiting = self.world.call("peek", queue=queue, limit=1000)
        later = self.world.engine.queues[queue.encode()].expiry
        bodies = [row["body"] for row in waiting]
        assert len(bodies) == len(set(bodies)) == self.world.depths()[queue], (queue, later)
        return bodies


@pytest.mark.parametrize(("mode", "power"), [(ALWAYS, True), (INTERVAL, False), (NONE, False)])
@pytest.mark.parametrize("seed", range(4))
def test_a_message_is_in_one_place_whatever_ends_the_machine(
    seed: int, mode: Durability, power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "SNAPSHOT_BYTES", 2000)
    monkeypatch.setattr(cold, "POSITION_BYTES", 200)
    walk = Walk(random.Random(seed), mode, power)
    for _ in range(STEPS):
        walk.step()
    walk.crash()
    assert walk.crashes > 1
    dead = {body: walk.of[body] for body in walk.there(DEAD)}
    walk.world.call("redrive", queue=DEAD)
    assert walk.there(DEAD) == []
    for queue in MAY_DIE:
        assert {body for body, of in dead.items() if of == queue} <= set(walk.there(queue)), "its origin"
    walk.look()
    walk.world.advance(60)
    assert walk.there("mortal") == []
    assert walk.world.depths()[DEAD] > 0
    while any(walk.world.depths().values()):
        before = sum(walk.world.depths().values())
        for queue in OPTIONS:
            for held, body in walk.peers[0].consume(queue, walk.world.depths()[queue]):
                walk.take(walk.peers[0], queue, held, body.decode())
        while walk.held:
            peer, held, body = walk.held.pop()
            assert statuses(peer.ack(held)) == [Status.OK]
            walk.gone.add(body)
        assert sum(walk.world.depths().values()) < before
    assert walk.gone == set(walk.of)
