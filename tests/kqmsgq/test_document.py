"""PROTOCOL.md says what the server does, and the golden bytes are what goes over the wire."""

import re
from functools import cache
from operator import attrgetter

import pytest

from brokers.conform.playing import Conversation, Player, conversations
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.states import TRANSITIONS, Event, State
from kqmsgq.wire import Fault, message, subscribe, unsubscribe
from tests.kqmsgq.world import World
from tests.support.documents import (
    block,
    check_diagram,
    check_limits,
    check_states,
    protocol_document,
)
from tests.support.vectors import peer_link

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


@pytest.mark.parametrize("conversation", conversations("kqmsgq"), ids=attrgetter("name"))
@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_vectors_byte_for_byte(world: World, conversation: Conversation, one_by_one: bool) -> None:
    link = cache(lambda name: peer_link(world.connect(), one_by_one=one_by_one))
    Player(link, True).play(conversation)


def test_the_states_are_whole_and_in_the_document() -> None:
    check_states(TRANSITIONS, State.ROLE, State.ENDING, ends_by=Event.INPUT_ENDS)
    check_diagram(DOCUMENT, TRANSITIONS, State.ROLE, State.ENDING)


def test_every_fault_and_every_limit_is_in_the_document() -> None:
    for fault in Fault:
        assert f"| {fault} |" in DOCUMENT
    settings = KqmsgqSettings()
    limits = {
        "name_bytes_max": (4096, "4096"),
        "message_bytes_max": (16 << 20, "16 MiB"),
        "consumer_bytes_max": (8 << 20, "8 MiB"),
        "subscriptions_max": (10_000, "10,000"),
        "subscriptions_bytes_max": (4 << 20, "4 MiB"),
        "subscriptions_total_max": (1_000_000, "1,000,000"),
        "subscriptions_bytes_total_max": (256 << 20, "256 MiB"),
        "event_seconds": (30.0, "30 s"),
    }
    check_limits(DOCUMENT, settings, limits)
