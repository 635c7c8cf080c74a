"""A bug in one session, on the store's time or another session's, costs that session and nobody else."""

import pytest

from dms import wire
from dms.session import Session
from dms.settings import DmsSettings
from dms.wire import Type
from tests.dms.world import Peer, World, deliveries
from tests.support.connections import MemoryConnection
from tests.support.crashing import failing

NAME = wire.pack_name("q")


def breaks(monkeypatch: pytest.MonkeyPatch, peer: Peer, name: str) -> None:
    sound = getattr(Session, name)
    monkeypatch.setattr(Session, name, failing(sound, lambda session, *_: session is peer.session))


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
def test_a_delivery_that_crashes_costs_its_receiver_and_the_next_in_line_is_served(
    monkeypatch: pytest.MonkeyPatch, crashed: list[MemoryConnection], persist: bool
) -> None:
    world = World(DmsSettings(persist=persist))
    bad, good, producer = (world.connect() for _ in range(3))
    producer.create("q")
    for peer in (bad, good):
        assert peer.consume("q") == []
    breaks(monkeypatch, bad, "deliver")
    frames = producer.produce("q", b"a", b"b")
    assert [frame[0] for frame in frames] == [Type.PRODUCE_OK] * 2
    assert crashed == [bad.connection]
    assert [body for _, body in deliveries(good.take())] == [b"a"]
    bad.lose()
    assert [body for _, body in good.consume("q", 2)] == [b"b"]


def test_the_end_of_a_wait_that_crashes_leaves_the_others_to_be_told(
    monkeypatch: pytest.MonkeyPatch, crashed: list[MemoryConnection]
) -> None:
    world = World()
    bad, good, other = (world.connect() for _ in range(3))
    other.create("q")
    for peer in (bad, good):
        peer.consume("q")
    breaks(monkeypatch, bad, "end_credits")
    other.ask(Type.DELETE_QUEUE, NAME)
    assert crashed == [bad.connection]
    assert [frame[0] for frame in good.take()] == [Type.ERROR]
