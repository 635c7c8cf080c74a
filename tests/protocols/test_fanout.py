"""Protocols that hand each message to whoever has subscribed, over `shared/fanout.py`."""

from collections.abc import Callable
from typing import Any

import pytest

from kqmsgq.wire import message, subscribe
from pubsub.wire import Command, encode_command
from shared.budget import CACHES_STEP_BYTES, Account
from tests.kqmsgq.world import World as Kqmsgq
from tests.pubsub.world import World as Pubsub

Subscribe = Callable[[list[bytes]], Any]
"""Somebody who is subscribed to these names."""
Publish = Callable[[bytes], object]


def kqmsgq(budget: Account) -> tuple[Subscribe, Publish]:
    world = Kqmsgq(budget=budget)
    producer = world.producer()
    return (
        lambda names: world.consumer(b"".join(map(subscribe, names))),
        lambda name: producer.send(message(name, name)),
    )


def pubsub(budget: Account) -> tuple[Subscribe, Publish]:
    world = Pubsub(budget=budget)

    def subscriber(names: list[bytes]) -> Any:
        peer = world.subscriber(b"c%d" % world.peers)
        peer.send(*(encode_command(Command.SUBSCRIBE, name) for name in names))
        return peer

    return subscriber, world.publish


@pytest.mark.parametrize("open_world", [kqmsgq, pubsub])
def test_what_is_remembered_of_who_gets_what_stays_in_the_budget_and_everybody_gets_all(
    open_world: Callable[[Account], tuple[Subscribe, Publish]],
) -> None:
    budget, limit = Account("process", 1 << 30), 200_000
    routes = budget.account("caches", limit)
    subscriber, publish = open_world(budget)
    names = [b"name/%d" % number for number in range(1000)]
    peers = [subscriber([name for at, name in enumerate(names, 1) if at >> bit & 1]) for bit in range(10)]
    most = 0
    for number, name in enumerate(names, 1):
        publish(name)
        most = max(most, routes.used_bytes)
        assert [len(peer.messages()) for peer in peers] == [number >> bit & 1 for bit in range(10)]
    assert limit // 2 < most <= limit + CACHES_STEP_BYTES
