"""What an operator hears of clients that ask what they may not: all of it counted, a line now and then."""

import structlog
from structlog.testing import capture_logs

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import World

Line = tuple[str, str, int]


def lines(logged: "list[structlog.typing.EventDict]") -> list[Line]:
    return [(entry["log_level"], entry["status"], entry.get("count", 0)) for entry in logged]


def test_a_full_queue_is_told_once_a_second_with_how_many_it_was() -> None:
    with capture_logs() as logged:
        world = World(DmsSettings(persist=False, depth=2))
        peer = world.connect()
        peer.create("orders")
        peer.produce("orders", b"1", b"2", b"3", b"4")
        peer.produce("orders", b"5")
        world.advance(0.9)
        peer.produce("orders", b"6", b"7")
        assert lines(logged) == [("warning", "QUEUE_FULL", 2)]
        world.advance(0.2)
        peer.produce("orders", b"8")
    assert lines(logged) == [("warning", "QUEUE_FULL", 2), ("warning", "QUEUE_FULL", 4)]
    assert logged[0]["error"] == "orders holds its 2 messages"
    assert world.engine.counts.refusals == {Status.QUEUE_FULL: 6}


def test_limits_are_warnings_and_mistakes_are_not() -> None:
    settings = DmsSettings(persist=False, queues_max=1, clients_max=1, credits_max=1)
    with capture_logs() as logged:
        world = World(settings)
        peer = world.connect()
        for name in ("orders", "more"):
            peer.create(name)
        peer.consume("orders", 2)
        world.connect(handshake=False).send(wire.pack(Type.HANDSHAKE, 1))
        peer.ask(Type.CREATE_QUEUE, b"\0\3a\nb")
        peer.ask(Type.CREATE_QUEUE, bytes(wire.PAYLOAD_BYTES_MAX + 1))
    assert [line[:2] for line in lines(logged)] == [
        ("warning", "INTERNAL"),
        ("warning", "INTERNAL"),
        ("warning", "INTERNAL"),
        ("info", "PROTOCOL_ERROR"),
        ("info", "PAYLOAD_TOO_LARGE"),
    ]
    told = [entry["error"] for entry in logged]
    for limit, error in zip(("queues_max", "credits_max", "clients_max"), told, strict=False):
        assert limit in error


def test_what_closes_a_connection_is_told_with_its_peer() -> None:
    with capture_logs() as logged:
        world = World(DmsSettings(persist=False))
        world.connect(handshake=False).send(b"GET / HTTP/1.1\r\n\r\n")
        world.connect(handshake=False).send(wire.pack(Type.LIST_QUEUES, 1))
        world.connect().send(wire.pack(Type.ACK, 1, version=9))
    told = "protocol error: the connection is closed; fix the client"
    assert [entry["event"] for entry in logged] == [told] * 3
    assert [entry["status"] for entry in logged] == ["BAD_MAGIC", "PROTOCOL_ERROR", "VERSION_MISMATCH"]
    assert all(entry["peer"] == "127.0.0.1:1" for entry in logged)
    assert sum(world.engine.counts.refusals.values()) == 3
