"""Queues that are each other's dead-letter queues: what only time moves goes round once."""

import json

import pytest

from tests.dms.world import Peer, World


def circle(world: World, *names: str, **options: int) -> Peer:
    """Queues with a lifetime of 100 ms, each the dead-letter queue of the one before it."""
    peer = world.connect()
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        asked = {"ttl_ms": 100, "dead_letter": following, **options}
        peer.create(name, json.dumps(asked).encode())
    return peer


@pytest.mark.parametrize("size", [2, 3])
def test_a_message_that_nobody_takes_goes_round_once_and_is_dropped(world: World, size: int) -> None:
    names = ["a", "b", "c"][:size]
    peer = circle(world, *names)
    peer.produce("a", b"one", b"two")
    for number in range(size):
        assert world.depths() == {name: 2 * (name == names[number]) for name in names}
        world.advance(0.15)
    assert set(world.depths().values()) == {0}
    counts = world.engine.counts
    assert (counts.dead_lettered, counts.dropped) == (2 * (size - 1), 2)


def test_a_message_that_is_delivered_goes_round_again(world: World) -> None:
    """The usual retry by two queues: work that fails waits in the other one, and comes back."""
    peer = world.connect()
    peer.create("work", b'{"max_deliveries":1,"dead_letter":"pause"}')
    peer.create("pause", b'{"ttl_ms":100,"dead_letter":"work"}')
    peer.produce("work", b"job")
    for _ in range(5):
        ((delivery, body),) = peer.consume("work")
        assert body == b"job"
        peer.nack(delivery)
        assert world.depths() == {"pause": 1, "work": 0}
        world.advance(0.15)
        assert world.depths() == {"pause": 0, "work": 1}
    assert world.engine.counts.dropped == 0


def test_a_circle_ends_over_a_restart_too() -> None:
    world = World()
    peer = circle(world, "a", "b", "c")
    peer.produce("a", b"one")
    world.advance(0.15)
    world.advance(0.15)
    assert world.depths() == {"a": 0, "b": 0, "c": 1}
    world.kill()
    assert world.depths() == {"a": 0, "b": 0, "c": 1}
    world.advance(20)
    assert set(world.depths().values()) == {0}
    assert world.engine.counts.dropped == 1
