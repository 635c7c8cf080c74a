"""Subscriptions by user: one leaves others room."""

import pytest

from kqmsgq.queues import Consumer
from kqmsgq.settings import KqmsgqSettings
from shared.budget import Account
from shared.errors import RemoteProtocolError
from tests.kqmsgq.world import World
from tests.support.connections import MemoryConnection


def test_a_user_has_his_share_of_subscriptions_and_gets_it_back() -> None:
    process = Account("process", 1 << 30)
    process.percent_of = lambda user: 50
    queues = World(KqmsgqSettings(subscriptions_total_max=4), process.account("kqmsgq")).queues

    def consumer(user: str, *names: bytes) -> Consumer:
        found = queues.join(MemoryConnection(peer="127.0.0.1:1"), user)
        for name in names:
            queues.subscribe(found, name)
        return found

    first = consumer("mal", b"a", b"b")
    with pytest.raises(RemoteProtocolError, match="above mal's share of subscriptions_total_max"):
        consumer("mal", b"c")
    queues.leave(next(reversed(queues.consumers)))
    consumer("ann", b"a")
    queues.leave(first)
    consumer("mal", b"c", b"d")
