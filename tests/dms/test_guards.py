"""A bug in one session, on the store's time or another session's, costs that session and nobody else."""

from collections.abc import Callable
from typing import Any

import pytest

from dms import wire
from dms.session import Session
from dms.settings import DmsSettings
from dms.wire import Type
from tests.dms.world import Peer, World, deliveries
from tests.support.connections import MemoryConnection

NAME = wire.pack_name("q")


class Crashed(Exception):
    """What the test has a session raise."""


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> list[MemoryConnection]:
    """The connections that were told of a crash; the driver closes such a one, and counts it."""
    told: list[MemoryConnection] = []

    def crashed(self: MemoryConnection, error: Exception) -> None:
        assert isinstance(error, Crashed)
        told.append(self)
        self.closed = self._mute = True

    monkeypatch.setattr(MemoryConnection, "fail", crashed)
    return told


def breaks(monkeypatch: pytest.MonkeyPatch, peer: Peer, *names: str) -> None:
    for name in names:
        sound: Callable[..., Any] = getattr(Session, name)

        def broken(self: Session, *arguments: Any, sound: Callable[..., Any] = sound) -> Any:
            if self is peer.session:
                raise Crashed
            return sound(self, *arguments)

        monkeypatch.setattr(Session, name, broken)


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
def test_a_delivery_that_crashes_costs_its_receiver_and_the_next_in_line_is_served(
    monkeypatch: pytest.MonkeyPatch, crashes: list[MemoryConnection], persist: bool
) -> None:
    world = World(DmsSettings(persist=persist))
    bad, good, producer = (world.connect() for _ in range(3))
    producer.create("q")
    for peer in (bad, good):
        assert peer.consume("q") == []
    breaks(monkeypatch, bad, "deliver")
    frames = producer.produce("q", b"a", b"b")
    assert [frame[0] for frame in frames] == [Type.PRODUCE_OK] * 2
    assert crashes == [bad.connection]
    assert [body for _, body in deliveries(good.take())] == [b"a"]
    bad.lose()
    assert [body for _, body in good.consume("q", 2)] == [b"b"]


def test_the_end_of_a_wait_that_crashes_leaves_the_others_to_be_told(
    monkeypatch: pytest.MonkeyPatch, crashes: list[MemoryConnection]
) -> None:
    world = World()
    bad, good, other = (world.connect() for _ in range(3))
    other.create("q")
    for peer in (bad, good):
        peer.consume("q")
    breaks(monkeypatch, bad, "end_credits")
    other.ask(Type.DELETE_QUEUE, NAME)
    assert crashes == [bad.connection]
    assert [frame[0] for frame in good.take()] == [Type.ERROR]


def test_taking_up_what_waited_for_the_disk_crashes_alone(
    monkeypatch: pytest.MonkeyPatch, crashes: list[MemoryConnection]
) -> None:
    world = World()
    bad, good = world.connect(), world.connect()
    bad.create("q")
    bad.produce("q", *[b"x"] * 20)
    for peer in (bad, good):
        for _ in range(4):  # faster than the disk: nothing settles meanwhile
            peer.session.receive(wire.pack(Type.CONSUME, 1, NAME))
            for held in tuple(peer.session.consumer.unacked):
                peer.session.receive(wire.pack(Type.ACK, int.from_bytes(held)))
        peer.session.receive(wire.pack(Type.CONSUME, 1, NAME))
        assert not peer.session.consumer.unacked
        assert peer.session.consumer.waiting == 1
    breaks(monkeypatch, bad, "_is_behind")
    world.settle()
    assert crashes == [bad.connection]
    assert len(deliveries(good.take())) == 5
