"""What is nearly a run costs no more than a few looks, whoever sends it."""

from collections.abc import Callable
from typing import Any

import pytest

from dms import runs, wire
from dms.settings import DmsSettings
from dms.wire import HEADER_BYTES, Type
from tests.dms.world import Peer, World

A, B, NONE = (wire.pack_name(name) for name in ("a", "b", "x"))
UNKNOWN = wire.pack(Type.ACK, wire.DELIVERY_ID_BIT + 1_000_000)
FRAMES = 900  # fewer than there are in a round


def counted(monkeypatch: pytest.MonkeyPatch, home: object, name: str, cost: Callable[..., int]) -> list[int]:
    """What the calls of a function cost."""
    costs: list[int] = []
    sound = getattr(home, name)

    def counting(*arguments: Any) -> Any:
        costs.append(cost(*arguments))
        return sound(*arguments)

    monkeypatch.setattr(home, name, counting)
    return costs


def full_of(*names: str) -> Peer:
    """Two queues, of which `names` have no room; the peer has consumed from a."""
    peer = World(DmsSettings(persist=False, depth=10_000)).connect()
    for name in "ab":
        peer.create(name, b'{"depth": 1}' if name in names else b"")
        if name in names:
            peer.produce(name, b"first")
    peer.consume("a")
    peer.take()
    return peer


def produce(name: bytes, body: bytes = b"body") -> bytes:
    return wire.pack(Type.PRODUCE, 1, name + body)


TURN = UNKNOWN + wire.pack(Type.CONSUME, 2, A)


@pytest.mark.parametrize(
    ("full", "frames"),
    [
        ("b", produce(A) + produce(B)),
        ("", produce(A) + produce(NONE)),
        ("", produce(A) + produce(B) + produce(NONE)),
        ("", produce(A) * (runs.RUN_LEAST - 1) + UNKNOWN),
        ("", b"".join([produce(A), produce(B)][: runs.RUN_LEAST - 1]) + UNKNOWN),
        ("", UNKNOWN + produce(B)),
        ("", TURN * 2 + produce(B)),
    ],
    ids=["one full", "one missing", "two and a missing", "two alike", "two by turns", "no turn", "two turns"],
)
def test_what_is_not_a_run_is_not_taken_for_one_again_and_again(
    monkeypatch: pytest.MonkeyPatch, full: str, frames: bytes
) -> None:
    peer = full_of(*full)

    def turns(data: bytes, at: int, name: bytes) -> int:
        return 2 * min((len(data) - at) // (2 * HEADER_BYTES + len(name)), runs.RUN_MOST)

    def alike(data: bytes, at: int, length: int, _: int) -> int:
        return min((len(data) - at) // (HEADER_BYTES + length), runs.RUN_MOST)

    looks = counted(monkeypatch, runs, "by_turns", turns), counted(monkeypatch, runs, "produced", alike)
    each = len(wire.decode(frames)[0])
    peer.send(frames * (FRAMES // each))
    assert len(peer.take()) >= FRAMES // each
    for looked_at in map(sum, looks):
        assert looked_at <= 2 * FRAMES
