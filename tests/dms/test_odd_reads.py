"""What is nearly a run costs no more than a few looks, whoever sends it."""

from collections.abc import Callable
from typing import Any

import pytest

from dms import runs, session, wire
from dms.engine import Credit, Engine, Queue
from dms.refusals import Refusals
from dms.settings import DmsSettings
from dms.wire import HEADER_BYTES, Type
from shared.queues.unacked import Unacked
from tests.dms.world import Peer, World, deliveries
from tests.support.turns import short_turns

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


def test_acks_of_what_nobody_holds_are_refused_together_and_keep_no_consume_from_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = full_of()
    peer.produce("a", *[b"x"] * 100)  # the first goes to who waits
    refusals = counted(monkeypatch, Refusals, "note", lambda *_: 1)
    consumes = counted(monkeypatch, Credit, "__init__", lambda *_: 1)
    peer.send((wire.pack(Type.CONSUME, 2, A) + UNKNOWN) * 50)
    frames = peer.take()
    assert len(deliveries(frames)) == 50
    assert [frame[2] for frame in frames if frame[0] == Type.ERROR] == [wire.Status.PROTOCOL_ERROR] * 50
    assert len(refusals) == 1
    assert len(consumes) <= 2


def test_acks_behind_a_consume_leave_a_run_that_is_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = full_of()
    peer.produce("a", *[b"x"] * 41)  # the first goes to who waits
    held = [number for number, _ in peer.consume("a", 20)]
    apart = counted(monkeypatch, Unacked, "_split", lambda *_: 1)
    peer.send(wire.pack(Type.CONSUME, 2, A) + b"".join(wire.pack(Type.ACK, number) for number in held))
    frames = peer.take()
    assert [number for type_, _, _, number, _ in frames if type_ == Type.ACK_OK] == held
    assert len(deliveries(frames)) == 1
    assert not apart


def test_runs_of_one_kind_behind_another_are_each_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = full_of()
    peer.produce("a", *[b"x"] * 41)  # the first goes to who waits
    held = [number for number, _ in peer.consume("a", 20)]
    acks = counted(monkeypatch, Engine, "ack", lambda _, __, ids: len(ids))
    adds = counted(monkeypatch, Queue, "produce", lambda _, bodies, size: len(bodies))
    consumes = counted(monkeypatch, Credit, "__init__", lambda _, consumer, queue, ids, *__: len(ids))
    runs_taken = (
        counted(monkeypatch, runs, "alike", lambda *_: 1),
        counted(monkeypatch, runs, "produced", lambda *_: 1),
    )
    acked = b"".join(wire.pack(Type.ACK, number) for number in held)
    peer.send(acked + produce(A) * 20 + wire.pack(Type.CONSUME, 2, A) * 20)
    assert [len(deliveries(peer.take())), acks, adds, consumes] == [20, [20], [20], [20]]
    assert runs_taken == ([1, 1], [1])


def test_acks_of_one_read_are_taken_in_turns_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = full_of()
    turns = counted(monkeypatch, session.Session, "yield_turn", lambda _: 1)
    short_turns(monkeypatch, 1, 100)
    peer.send(UNKNOWN * 400)
    assert len(peer.take()) == 400
    assert len(turns) >= 3


def test_a_refusal_to_many_is_what_it_is_to_each() -> None:
    refusal = wire.malformed("no")
    for ids in ([], [7], [1, 2**32 - 1, 0]):
        expected = b"".join(refusal.frame(number) for number in ids)
        assert refusal.frames([number.to_bytes(4) for number in ids]) == expected


def test_a_read_of_many_turns_stays_whole_though_its_first_delivery_is_held_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = full_of()
    peer.produce("a", b"x")
    held = [number for number, _ in deliveries(peer.take())]
    for _ in range(7):  # each by itself
        peer.produce("a", b"x")
        held += [number for number, _ in peer.consume("a")]
    consumes = counted(monkeypatch, Credit, "__init__", lambda _, consumer, queue, ids, *__: len(ids))
    peer.send(b"".join(wire.pack(Type.ACK, number) + wire.pack(Type.CONSUME, 2, A) for number in held))
    assert consumes == [len(held)]
