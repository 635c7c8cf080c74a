"""PROTOCOL.md says what the server does, and the golden bytes are what goes over the wire."""

import re

from kqmsgq.wire import Fault, message, subscribe, unsubscribe
from tests.kqmsgq.world import World
from tests.support.documents import (
    block,
    protocol_document,
)

DOCUMENT = protocol_document("kqmsgq")
SESSION = block(DOCUMENT, "session")


def spelled(text: str) -> bytes:
    """An event as the document writes it, in bytes."""
    match = re.fullmatch(r"([*>/]) (\d+) ?(.*)", text)
    if match is None:
        return text.encode()
    kind, length, rest = match[1], int(match[2]), match[3]
    name = rest[:length].encode()
    if kind != "*":
        return (subscribe if kind == ">" else unsubscribe)(name)
    size, _, body = rest[length:].lstrip().partition(" ")
    assert len(body) == int(size)
    return message(name, body.encode())


def test_the_session_in_the_document_goes_as_it_says(world: World) -> None:
    peers = {"producer": world.connect(), "consumer": world.connect()}
    delivered = 0
    for line in SESSION:
        who, said = line.split(": ", 1)
        if who == "consumer gets":
            assert peers["consumer"].taken() == spelled(said)
            delivered += 1
        else:
            assert peers["consumer"].taken() == b"", f"the document leaves out what came before {line!r}"
            peers[who].send(spelled(said))
    assert peers["consumer"].taken() == b""
    assert delivered == 4
    assert world.counts.faults == {}


def test_the_bytes_in_the_document_are_the_sessions() -> None:
    shown = re.findall(r"^    ((?:[0-9a-f]{2} )+) +(\S.*)$", DOCUMENT, re.M)
    assert [(bytes.fromhex(digits), text) for digits, text in shown] == [
        (spelled(line.split(": ", 1)[1]), line.split(": ", 1)[1]) for line in SESSION[:2]
    ]


def test_every_fault_is_in_the_document() -> None:
    for fault in Fault:
        assert f"| {fault} |" in DOCUMENT
