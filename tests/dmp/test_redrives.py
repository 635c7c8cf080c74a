"""Which dead letters a redrive takes, how fast, and that the others stay where they are."""

import pytest

from dmp.queues import Queue
from shared.objects import BadArgument
from tests.dmp.test_admin import DEAD, call
from tests.dmp.test_dead_letters import reject
from tests.dmp.world import PERSISTENT, World, ready


def with_letters(world: World) -> Queue:
    """`dead` has four dead letters: a, b, which were rejected in `one`; a minute later c, d of `one` and
    `two`, too old. In between is a message that never died."""
    dead = world.queue(b"dead", durable=True)
    queues = [world.queue(name, durable=True, ttl_ms=1000, **DEAD) for name in (b"one", b"two")]
    for body in (b"a", b"b"):
        world.publish(b"", b"one", body, properties=PERSISTENT)
        world.settle()
        reject(world, queues[0])
    world.publish(b"", b"dead", b"-", properties=PERSISTENT)
    world.advance(60)
    for key, body in ((b"one", b"c"), (b"two", b"d")):
        world.publish(b"", key, body, properties=PERSISTENT)
        world.settle()
        world.advance(2)
        world.settle()
    world.advance(10)
    assert ready(dead) == [b"a", b"b", b"-", b"c", b"d"]
    return dead


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"key": "one"}, b"-d"),
        ({"key": "dead"}, b"ab-cd"),
        ({"reason": "rejected"}, b"-cd"),
        ({"reason": "expired"}, b"ab-"),
        ({"reason": "maxlen"}, b"ab-cd"),
        ({"age": "1m"}, b"-cd"),
        ({"age": "2h"}, b"ab-cd"),
        ({"key": "one", "reason": "expired", "age": "5s"}, b"ab-d"),
    ],
)
async def test_those_that_fit_go_back_and_the_others_stay(
    world: World, said: dict[str, str], left: bytes
) -> None:
    dead = with_letters(world)
    found = {"moved": 5 - len(left), "left": len(left)}
    assert await call(world, dead, "redrive", dry_run=True, **said) == found
    assert dead.depth == 5
    assert await call(world, dead, "redrive", **said) == found
    assert b"".join(ready(dead)) == left
    again = await world.again()
    assert b"".join(ready(again.broker.queues[b"dead"])) == left


async def test_what_amqps_messages_do_not_die_of_is_refused_by_name(world: World) -> None:
    dead = with_letters(world)
    with pytest.raises(
        BadArgument, match="'ttl' is none; there are expired, rejected, maxlen, delivery_limit"
    ):
        await call(world, dead, "redrive", reason="ttl")
    assert dead.depth == 5


async def test_what_goes_back_has_no_failed_tries_of_before_in_its_headers(world: World) -> None:
    queue, dead = world.queue(b"one", durable=True, delivery_limit=1, **DEAD), world.queue(b"dead")

    def counts_seen() -> list[int]:
        counts = []
        while (held := queue.get(no_ack=False)) is not None:
            counts.append(held.head.headers.get("x-delivery-count", 0))
            queue.requeue([held])
        world.settle()
        return counts

    world.publish(b"", b"one", b"x", properties=PERSISTENT)
    world.settle()
    assert counts_seen() == [0, 1]
    (letter,) = dead.ready
    assert letter.head.headers["x-delivery-count"] == 2, "how often it was tried in all"
    assert await call(world, dead, "redrive") == {"moved": 1, "left": 0}
    world.settle()
    assert counts_seen() == [0, 1]
    assert ready(dead) == [b"x"]
