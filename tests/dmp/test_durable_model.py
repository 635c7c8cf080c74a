"""A durable queue against a list: whatever is done to it and however often the process dies."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmp import queue_log, row
from dmp.settings import DmpSettings
from shared.queues import copying
from shared.queues.runs import Run
from tests.dmp.world import PERSISTENT, World, singles

actions = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30), st.integers(0, 300)),
        st.tuples(st.just("publish"), st.integers(1, 30), st.integers(0, 300)),
        st.tuples(st.sampled_from(["light", "mixed"]), st.integers(1, 9), st.just(30)),
        st.tuples(st.just("get"), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("ack"), st.integers(0, 19), st.just(0)),
        st.tuples(st.just("ack all"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("requeue"), st.integers(0, 19), st.just(0)),
        st.tuples(st.sampled_from(["purge", "die", "die", "die"]), st.just(0), st.just(0)),
    ),
    min_size=20,
    max_size=60,
)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """So that little data goes through everything that much data does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_log, "SLACK_BYTES", 1000)
        patch.setattr(queue_log, "COPIES", 5)
        patch.setattr(copying, "COPIES", 5)
        patch.setattr(queue_log, "READ_BYTES", 1500)
        patch.setattr(row, "HOT_LEAST_BYTES", 1000)
        yield


@given(actions, st.sampled_from([0, 5_000, 1 << 27]), st.sampled_from([150, 1000]))
async def test_a_durable_queue_is_a_list_that_survives(
    steps: list[tuple[str, int, int]], hot_bytes: int, message_bytes_max: int
) -> None:
    """In memory, or for the most part on disk alone; bodies in logs of their own, some or none."""
    world = await World.open(DmpSettings(hot_bytes=hot_bytes, message_bytes_max=message_bytes_max))
    world.queue(durable=True)
    ready: list[tuple[int, bytes, bool]] = []  # its place, its body, whether it is persistent
    held: list[tuple[tuple[int, bytes, bool], Run]] = []
    serial = 0
    for action, count, size in [*steps, ("die", 0, 0)]:
        queue = world.broker.queues[b"q"]
        if action in ("publish", "light", "mixed"):
            for _ in range(count):
                serial += 1
                kept = action == "publish" or (action == "mixed" and serial % 3 > 0)
                body = b"%08d" % serial + bytes(size)
                world.publish(b"", b"q", body, properties=PERSISTENT if kept else b"\0\0")
                ready.append((serial, body, kept))
        elif action == "get":
            for _ in range(count):
                message = queue.get(no_ack=False)
                assert (message is None) == (not ready)
                if message is not None:
                    assert world.body(message) == ready[0][1]
                    held.append((ready.pop(0), message))
        elif action == "ack" and held:
            _, message = held.pop(count % len(held))
            queue.settle([message])
        elif action == "ack all":
            left = held[:count]  # the oldest stay, and must not pin the log
            queue.settle([message for _, message in held[count:]])
            held = left
        elif action == "requeue" and held:
            row, message = held.pop(count % len(held))
            queue.requeue([message])
            ready = sorted([*ready, row])
        elif action == "purge":
            assert queue.purge() == len(ready)
            ready = []
        elif action == "die":
            world.settle()
            world = await world.again()
            queue = world.broker.queues[b"q"]
            ready = sorted(row for row in [*ready, *(row for row, _ in held)] if row[2])
            held = []
        world.settle()
        hot = [world.body(message) for message in singles(queue)]
        assert hot == [body for _, body, _ in ready[: len(hot)]]
        assert (queue.depth, queue.row.all_body_bytes) == (len(ready), sum(len(body) for _, body, _ in ready))
        assert world.broker.counts.crashes == 0
    while (message := queue.get(no_ack=False)) is not None:
        assert world.body(message) == ready.pop(0)[1]
        queue.settle([message])
    assert not ready
    assert world.broker.memory.total_bytes == 0
    world.settle()
    world.settle()
    assert (len(world.broker.bodies), world.body_logs, world.broker.bodies.unclaimed) == (0, [], 0)
    world.publish(b"", b"q", b"last", properties=PERSISTENT)
    world.settle()
    assert queue.get(no_ack=True) is not None
    world.settle()
    log = world.broker.queues[b"q"].log
    assert log is not None
    assert log.log.end - log.log.first <= 5_000
