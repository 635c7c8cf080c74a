"""A durable queue against a list: whatever is done to it and however often the process dies."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dmp.arguments import QueueKind
from dmp.message import Message
from tests.dmp.world import PERSISTENT, World

actions = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30), st.integers(0, 30_000)),
        st.tuples(st.just("light"), st.integers(1, 5), st.just(10)),
        st.tuples(st.just("get"), st.integers(1, 20), st.just(0)),
        st.tuples(st.just("ack"), st.integers(0, 19), st.just(0)),
        st.tuples(st.just("requeue"), st.integers(0, 19), st.just(0)),
        st.tuples(st.just("purge"), st.just(0), st.just(0)),
        st.tuples(st.just("die"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(actions)
async def test_a_durable_queue_is_a_list_that_survives(steps: list[tuple[str, int, int]]) -> None:
    world = await World.open()
    world.wiring.declare_queue(b"q", QueueKind(durable=True), world.owner)
    ready: list[tuple[int, bytes, bool]] = []  # its place, its body, whether it is persistent
    held: list[tuple[tuple[int, bytes, bool], Message]] = []
    serial = 0
    for action, count, size in [*steps, ("die", 0, 0)]:
        queue = world.broker.queues[b"q"]
        if action in ("publish", "light"):
            kept = action == "publish"
            for _ in range(count):
                serial += 1
                body = b"%08d" % serial + bytes(size)
                world.publish(b"", b"q", body, properties=PERSISTENT if kept else b"\0\0")
                ready.append((serial, body, kept))
            world.settle()
        elif action == "get":
            for _ in range(count):
                message = queue.get(no_ack=False)
                assert (message is None) == (not ready)
                if message is not None:
                    assert message.body == ready[0][1]
                    held.append((ready.pop(0), message))
        elif action == "ack" and held:
            _, message = held.pop(count % len(held))
            queue.settle([message])
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
        assert [message.body for message in queue.ready] == [body for _, body, _ in ready]
    bodies = sum(len(body) for _, body, _ in ready)
    log = world.broker.queues[b"q"].log
    assert log is not None
    assert log.log.end - log.log.first <= 3 * bodies + 1_000_000
