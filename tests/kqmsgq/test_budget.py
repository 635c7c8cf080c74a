"""What producers remember of what they send is bounded for all of them together."""

from random import Random
from typing import cast

from kqmsgq.fanout import Producer
from kqmsgq.wire import message, subscribe
from shared.access import Guard
from shared.budget import CACHES_STEP_BYTES, Account
from tests.kqmsgq.world import World

MESSAGES = 40
ROUNDS = 3


class _Allows:
    def may(self, user: str, action: str, name: bytes) -> bool:
        return True


def pattern(random: Random) -> list[bytes]:
    """Messages with other headers than any before."""
    return [message(b"q%09d" % random.randrange(10**9), bytes(random.randrange(20))) for _ in range(MESSAGES)]


def test_patterns_of_many_producers_stay_in_the_budget_and_end_with_them() -> None:
    world = World(budget=Account("process", 1 << 20))
    consumer = world.consumer(subscribe(b""))
    caches = world.queues.caches
    random = Random(1)
    producers = [world.producer() for _ in range(10)]
    most = 0
    for producer in producers:
        for _ in range(5):
            some = pattern(random)
            producer.send(b"".join(some) * ROUNDS)
            assert consumer.taken() == b"".join(some) * ROUNDS
            most = max(most, caches.held_bytes)
    assert (1 << 20) // 8 < most <= (1 << 20) // 4 + CACHES_STEP_BYTES
    for producer in producers:
        producer.lose()
    assert caches.held_bytes == 0


def test_what_a_producer_knows_that_may_not_write_everywhere_stays_in_the_budget() -> None:
    world = World(budget=Account("process", 1 << 20))
    caches = world.queues.caches
    producers = [Producer(world.queues) for _ in range(20)]
    for number, producer in enumerate(producers):
        producer.restrict("me", cast(Guard, _Allows()), "peer")
        for at in range(0, 500, 50):
            producer.publish(b"".join(message(b"q%d-%d" % (number, at + each), b"x") for each in range(50)))
            assert caches.held_bytes <= (1 << 20) // 4 + 2 * CACHES_STEP_BYTES
    assert caches.held_bytes > (1 << 20) // 8
    for producer in producers:
        producer.end()
    assert caches.held_bytes == 0
