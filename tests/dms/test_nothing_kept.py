"""Clients and queues that come and go leave nothing behind: objects are counted, memory rests on more."""

import gc
import subprocess
import sys
from collections import Counter

from tests.dms.world import MEMORY, World


def objects() -> Counter[str]:
    """Of each class of ours, those in use. (Whoever is kept, if only by a list, keeps some of these.)"""
    gc.collect()
    classes = map(type, gc.get_objects())
    return Counter(each.__qualname__ for each in classes if each.__module__.startswith(("dms.", "shared.")))


def churn(world: World, first: int, count: int) -> None:
    """Clients with queues of their own and one that all share; some leave in order, some hold messages."""
    for number in range(first, first + count):
        name = f"queue {number}"
        peer = world.connect()
        peer.create(name)
        peer.create("shared")
        peer.produce(name, b"a", b"b")
        peer.produce("shared", b"c", b"d")
        peer.ack(*(delivery for delivery, _ in peer.consume("shared", 4)))
        peer.consume(name)
        peer.consume("missing")
        peer.nack(1)  # not held: refused
        if number % 2:
            peer.delete(name)
        peer.lose()
        if not number % 2:
            other = world.connect()
            assert other.consume(name, 2)
            other.delete(name)
            other.lose()
        world.advance(60)


def more_than_before() -> dict[str, int]:
    """Of which classes there are more objects after 80 more clients."""
    world = World(MEMORY)
    churn(world, 0, 40)
    before = objects()
    churn(world, 40, 80)
    return {name: count for name, count in (objects() - before).items() if count >= 20}


def test_clients_and_queues_that_have_gone_leave_no_object_behind() -> None:
    # In a process of its own: other tests' servers end, and their logs are read, whenever they like.
    count = "from tests.dms.test_nothing_kept import more_than_before; print(more_than_before())"
    done = subprocess.run(
        [sys.executable, "-c", count], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["{}"], 0), done.stdout + done.stderr
