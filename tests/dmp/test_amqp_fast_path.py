"""The fast paths of AMQP, for publishes and acknowledgements, do what the plain path does."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from dmp.amqp.channel import AmqpChannels
from dmp.amqp.publishing import Publishing
from dmp.amqp.wire import encode
from dmp.properties import NO_PROPERTIES
from dmp.settings import DmpSettings
from tests.dmp.amqp_peer import Peer, bodies, publish
from tests.dmp.world import World

C = commands
PERSISTENT = b"\x10\x00\x02"  # delivery mode 2, and nothing else
BODIES = st.lists(st.sampled_from([b"one", b"two", b"longer", b""]), min_size=1, max_size=6)
READS = st.lists(
    st.one_of(
        st.builds(
            lambda exchange, key, some, properties, channel, mandatory: publish(
                exchange, key, *some, properties=properties, channel=channel, mandatory=mandatory
            ),
            st.sampled_from(["", "", "amq.fanout", "amq.fanout", "amq.fanout", "none"]),
            st.sampled_from(["kept", "kept", "short", "nowhere"]),
            BODIES,
            st.sampled_from([NO_PROPERTIES, PERSISTENT]),
            st.sampled_from([1, 1, 1, 2]),
            st.booleans(),
        ),
        st.builds(
            lambda first, count, multiple, channel: b"".join(
                encode(C.Basic.Ack(tag, multiple), channel) for tag in range(first, first + count)
            ),
            st.integers(1, 4),
            st.integers(1, 4),
            st.sampled_from([False, False, True]),
            st.sampled_from([1, 1, 1, 2]),
        ),
        st.sampled_from(
            [
                encode(C.Basic.Nack(2, False, True), 1),
                encode(C.Queue.Purge(0, "kept"), 1),
                encode(C.Channel.Close(200, "bye", 0, 0), 2),
                encode(C.Tx.Select(), 2),
                encode(C.Tx.Commit(), 2),
            ]
        ),
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=60)
@given(READS, st.booleans())
async def test_both_paths_do_the_same(reads: list[bytes], together: bool) -> None:
    parts = [b"".join(reads)] if together else reads
    assert await played(parts) == await played(parts, fast_paths=False)


async def played(reads: list[bytes], *, fast_paths: bool = True) -> object:
    with pytest.MonkeyPatch.context() as patch:
        if not fast_paths:
            plain: Callable[[Any, bytes, int], int] = lambda _self, _data, at: at  # noqa: E731
            patch.setattr(Publishing, "take_runs", plain)
            patch.setattr(AmqpChannels, "take_acks", plain)
        world = await World.open(DmpSettings())
        peer = Peer(world).login(capabilities={"publisher_confirms": True})
        peer.ask(C.Channel.Open(), 2)
        peer.ask(C.Confirm.Select())
        peer.ask(C.Queue.Declare(0, "kept", durable=True))
        short = {"x-max-length": 3, "x-overflow": "reject-publish"}
        peer.ask(C.Queue.Declare(0, "short", arguments=short))
        for queue in ("kept", "short"):
            peer.ask(C.Queue.Bind(0, queue, "amq.fanout", ""))
        peer.ask(C.Basic.Consume(0, "kept", "tag"))
        said = []
        for data in reads:
            peer.send(data)
            world.settle()
            said += peer.frames()
        peer.lose()
        queues = {name: queue.depth for name, queue in world.broker.queues.items()}
        counts = world.broker.counts
        return told(said), bodies(said), queues, world.broker.memory.total_bytes, counts.published


def told(frames: list[tuple[int, Any]]) -> object:
    """What was said, with the confirms apart: how many go into one is free."""
    confirmed, others, below = [], [], 0
    for channel, value in frames:
        if value.name in ("Basic.Ack", "Basic.Nack"):
            first = below + 1 if value.multiple else value.delivery_tag
            confirmed += [(value.name, tag) for tag in range(first, value.delivery_tag + 1)]
            below = max(below, value.delivery_tag)
        elif value.name != "ContentBody":
            others.append((channel, value.name, getattr(value, "delivery_tag", None)))
    return sorted(confirmed), others
