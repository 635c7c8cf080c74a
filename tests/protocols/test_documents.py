"""What each PROTOCOL.md says of states and limits is what the code has, and the vectors go as they say."""

import re
from functools import cache
from importlib import import_module
from typing import Any

import attrs
import pytest

import dmp.amqp.states
import dmp.session
import dms.states
import kqmsgq.states
import logmq.states
import pubsub.states
from brokers.conform.playing import Conversation, Link, Player, conversations
from brokers.plugins import load_working
from tests.support.documents import check_diagram, check_states, protocol_document
from tests.support.vectors import HandLink, peer_link

SETTINGS = {plugin.name: plugin.settings for plugin in load_working()[0]}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": 1, "minutes": 60, "bytes": 1}


@pytest.mark.parametrize(
    ("protocol", "table", "ends_by"),
    [
        ("dmp", dmp.amqp.states.TRANSITIONS, "END"),
        ("dmp", dmp.amqp.states.CHANNEL_TRANSITIONS, None),
        ("dmp", dmp.session.TRANSITIONS, "END"),
        ("dms", dms.states.TRANSITIONS, "DRAIN"),
        ("kqmsgq", kqmsgq.states.TRANSITIONS, "INPUT_ENDS"),
        ("logmq", logmq.states.TRANSITIONS, "INPUT_ENDS"),
        ("pubsub", pubsub.states.TRANSITIONS, "INPUT_ENDS"),
    ],
)
def test_the_states_are_whole_and_in_the_document(protocol: str, table: Any, ends_by: str | None) -> None:
    check_states(table, ends_by)
    check_diagram(protocol_document(protocol), table)


@pytest.mark.parametrize("protocol", sorted(SETTINGS))
def test_the_limits_in_the_document_are_the_settings(protocol: str) -> None:
    """Rows are `| 64 MiB | `name` |`, or `| 64 bytes of something | `name` |`."""
    document = protocol_document(protocol)
    defaults = SETTINGS[protocol]()
    told = set()
    for text, name in re.findall(r"\| ([^|]+) \| `(\w+)` \|", document):
        number = re.match(r"([\d,]+)(?: (\w+)\b)?", text)
        if number is None or not hasattr(defaults, name):
            continue
        told.add(name)
        shown = int(number[1].replace(",", "")) * UNITS.get(number[2] or "", 1)
        assert getattr(defaults, name) == shown * (1000 if name.endswith("_ms_max") else 1), name
    bounds = {field.name for field in attrs.fields(type(defaults)) if field.name.endswith("_max")}
    assert bounds - told <= {"kept_messages_max", "kept_bytes_max"}, "two in one row"
    assert len(told) >= 6


PLAYED = [
    (protocol, conversation)
    for protocol in ("kqmsgq", "logmq", "pubsub")
    for conversation in conversations(protocol)
]


@pytest.mark.parametrize(("protocol", "conversation"), PLAYED, ids=lambda part: getattr(part, "name", part))
@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_vectors_byte_for_byte(protocol: str, conversation: Conversation, one_by_one: bool) -> None:
    world = import_module(f"tests.{protocol}.world").World()

    def link(name: str) -> Link:
        if conversation.connections[name] == "udp":
            return HandLink(lambda data: world.receive([data]))
        peer = world.connect()
        return peer_link(peer, getattr(peer, "settle", lambda: None), one_by_one=one_by_one)

    Player(cache(link), True).play(conversation)
