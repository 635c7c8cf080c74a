"""Which dead letters a redrive takes, how fast, and that the others stay where they are."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shared.actions import RATED_SECONDS
from shared.objects import BadArgument
from tests.dms.world import Peer, World


def with_letters(world: World) -> Peer:
    """Four dead letters: a, b of `orders`, which were refused; a minute later c, d of `mail`, too old."""
    peer = world.connect()
    for name, options in (
        ("dead", {}),
        ("orders", {"max_deliveries": 1, "dead_letter": "dead"}),
        ("mail", {"ttl_ms": 1000, "dead_letter": "dead"}),
    ):
        peer.create(name, json.dumps(options).encode())
    for key, body in (("ann", b"a"), ("bob", b"b")):
        peer.produce_with("orders", body, key=key)
        ((held, _, _),) = peer.consume_with("orders")
        peer.nack(held)
    world.advance(60)
    peer.produce_with("mail", b"c", key="ann")
    world.advance(2)
    peer.produce("mail", b"d")
    world.advance(10)
    assert texts(world) == ["a", "b", "c", "d"]
    return peer


def texts(world: World) -> list[str]:
    return [row["text"] for row in world.call("peek", queue="dead")]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"key": "ann"}, "bd"),
        ({"key": ""}, "abc"),
        ({"key": "none"}, "abcd"),
        ({"reason": "max_deliveries"}, "cd"),
        ({"reason": "ttl"}, "ab"),
        ({"age": "1m"}, "cd"),
        ({"age": "2h"}, "abcd"),
        ({"age": "0"}, ""),
        ({"key": "ann", "reason": "ttl", "age": "5s"}, "abd"),
        ({"key": "ann", "reason": "ttl", "age": "1m"}, "abcd"),
    ],
)
def test_those_that_fit_go_back_and_the_others_stay(world: World, said: dict[str, str], left: str) -> None:
    with_letters(world)
    found = {"moved": 4 - len(left), "left": len(left)}
    assert world.call("redrive", queue="dead", dry_run=True, **said) == found
    assert texts(world) == ["a", "b", "c", "d"]
    assert world.call("redrive", queue="dead", **said) == found
    assert texts(world) == [*left]
    if world.engine.persistent:
        world.kill()
        assert texts(world) == [*left]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"key": 1}, "key is a text"),
        ({"reason": "expired"}, "reason: 'expired' is none; there are ttl, max_deliveries"),
        ({"reason": ""}, "reason"),
        ({"age": "old"}, "age"),
        ({"age": "-1s"}, "age"),
        ({"age": "9" * 5000}, "age"),
        ({"age": 60}, "age is a text"),
        ({"rate": "fast"}, "rate is so many"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": 5}, "rate is a text"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_wrong_value_is_refused_by_name(said: dict[str, Any], named: str, *, dry_run: bool) -> None:
    world = World()
    with_letters(world)
    with pytest.raises(BadArgument, match=f"^{named}"):
        world.call("redrive", queue="dead", dry_run=dry_run, **said)
    assert texts(world) == ["a", "b", "c", "d"]


def test_one_that_does_not_fit_is_not_moved_by_its_position_either(world: World) -> None:
    with_letters(world)
    first = world.call("peek", queue="dead")[0]["position"]
    with pytest.raises(BadArgument, match="position: "):
        world.call("redrive", queue="dead", position=first, reason="ttl")
    assert world.call("redrive", queue="dead", position=first, key="ann") == {"moved": 1, "left": 3}


def test_a_rate_is_kept_and_the_request_ends_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    own = SimpleNamespace(current_time=lambda: sum(slept), sleep=sleep)  # pauses that take no time
    monkeypatch.setattr("shared.queues.sifting.trio", own)
    peer = with_letters(world)
    for number in range(100):
        peer.produce("mail", b"%d" % number)
    world.advance(2)
    assert world.call("redrive", queue="dead", rate="4/s", reason="ttl", dry_run=True)["moved"] == 102
    assert world.call("redrive", queue="dead", rate="4/s", reason="ttl") == {"moved": 84, "left": 20}
    assert sum(slept) == RATED_SECONDS
    assert texts(world)[:3] == ["a", "b", "82"]
    assert world.call("redrive", queue="dead", rate="0.01/s", reason="ttl") == {"moved": 1, "left": 19}
    before = len(slept)
    assert world.call("redrive", queue="dead", rate="1000/s") == {"moved": 19, "left": 0}
    assert len(slept) == before
    world.settle()
    assert [body for _, _, body in peer.consume_with("orders", 2)] == [b"a", b"b"]
