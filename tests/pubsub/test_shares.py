"""Sessions and subscriptions by user: one leaves others room."""

from collections.abc import Callable

import pytest

from pubsub.sessions import SESSION_BYTES, ClientSession
from pubsub.settings import PubsubSettings
from shared.budget import Account
from shared.errors import RemoteProtocolError
from tests.pubsub.world import World
from tests.support.connections import MemoryConnection


def world(limit_bytes: int = 1 << 30, **settings: int) -> World:
    process = Account("process", limit_bytes)
    process.percent_of = lambda user: 50
    return World(PubsubSettings(**settings), process.account("pubsub"))


def join(served: World, client_id: str, user: str) -> ClientSession:
    return served.sessions.join(client_id.encode(), MemoryConnection(peer="127.0.0.1:1"), user)


def refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        call()


def test_a_user_has_his_share_of_sessions_and_gets_it_back() -> None:
    served = world(sessions_max=4)
    mine = [join(served, f"m{n}", "mal") for n in range(2)]
    refused(lambda: join(served, "m2", "mal"), "mal has his share of sessions_max")
    join(served, "a", "ann")
    served.sessions.leave(mine[0])
    join(served, "m2", "mal")


def test_a_user_has_his_share_of_subscriptions_over_all_his_sessions() -> None:
    served = world(subscriptions_total_max=6, wild_subscriptions_total_max=2)
    sessions = served.sessions
    one, two = join(served, "m1", "mal"), join(served, "m2", "mal")
    sessions.subscribe(one, b"*/+/+/+/a", keeps=False)
    refused(lambda: sessions.subscribe(two, b"+/+/+/+/b", keeps=False), "share of wild_sub")
    sessions.subscribe(one, b"a", keeps=True)
    sessions.subscribe(two, b"a", keeps=False)
    refused(lambda: sessions.subscribe(two, b"b", keeps=False), "share of subscriptions_total_max")
    other = join(served, "a1", "ann")
    sessions.subscribe(other, b"*/+/+/+/a", keeps=False)
    sessions.unsubscribe(one, b"*/+/+/+/a")
    sessions.subscribe(two, b"+/+/+/+/b", keeps=False)


def test_a_session_counts_for_who_owns_it() -> None:
    served = world(sessions_max=4, subscriptions_total_max=4)
    mine = join(served, "m", "anonymous")
    served.sessions.subscribe(mine, b"a", keeps=True)
    served.sessions.own(mine, "mal")
    join(served, "m2", "mal")
    refused(lambda: join(served, "m3", "mal"), "share")
    for n in range(2):
        join(served, f"x{n}", "anonymous")


def test_above_his_share_a_user_s_own_clients_lose_what_is_kept() -> None:
    served = world(kept_bytes_total_max=1000)
    for client_id, user in (("a", "ann"), ("m1", "mal"), ("m2", "mal")):
        client = join(served, client_id, user)
        served.sessions.subscribe(client, client_id.encode(), keeps=True)
        served.sessions.leave(client)
    kept = served.sessions.kept
    kept.add([b"a"], b"a" * 400)
    for letter in (b"b", b"c", b"d"):
        kept.add([b"m1"], letter * 200)
        kept.add([b"m2"], letter * 100)
    assert kept.held(b"a") == (1, 400)
    assert kept.held(b"m1")[1] + kept.held(b"m2")[1] <= 500
    assert [each.frame for each in kept.hand_over(b"m2")][-1] == b"d" * 100
    kept.forget(b"m2")
    kept.add([b"m1"], b"e" * 100)
    assert kept.held(b"m1")[1] > 100


def test_a_user_has_his_share_of_the_memory_of_what_is_kept() -> None:
    served = world(limit_bytes=64 << 10)
    for client_id, user in (("a", "ann"), ("m", "mal")):
        client = join(served, client_id, user)
        served.sessions.subscribe(client, client_id.encode(), keeps=True)
        served.sessions.leave(client)
    for _ in range(100):
        served.sessions.kept.add([b"m"], b"m" * 400)
    assert served.sessions.kept.held(b"m")[1] <= 32 << 10
    served.sessions.kept.add([b"a"], b"a" * 400)
    assert served.sessions.kept.held(b"a") == (1, 400)


def test_a_user_has_his_share_of_memory() -> None:
    served = world(limit_bytes=4 * SESSION_BYTES)
    for n in range(2):
        join(served, f"m{n}", "mal")
    refused(lambda: join(served, "m2", "mal"), "mal's share of pubsub/names")
    join(served, "a", "ann")
