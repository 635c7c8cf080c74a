"""PROTOCOL.md says what the server does, and the golden bytes are what goes over the wire."""

from functools import cache
from operator import attrgetter

import pytest

from brokers.conform.playing import Conversation, Link, Player, conversations
from pubsub.settings import PubsubSettings
from pubsub.states import TRANSITIONS, State
from tests.pubsub.world import World
from tests.support.documents import check_diagram, check_limits, protocol_document
from tests.support.vectors import HandLink, peer_link

DOCUMENT = protocol_document("pubsub")


@pytest.mark.parametrize("conversation", conversations("pubsub"), ids=attrgetter("name"))
@pytest.mark.parametrize("one_by_one", [False, True])
def test_the_vectors_byte_for_byte(world: World, conversation: Conversation, one_by_one: bool) -> None:
    def link(name: str) -> Link:
        if conversation.connections[name] == "udp":
            return HandLink(lambda data: world.receive([data]))
        return peer_link(world.connect(), one_by_one=one_by_one)

    Player(cache(link), True).play(conversation)


def test_the_diagram_is_the_table() -> None:
    assert set(TRANSITIONS) == set(State)
    check_diagram(DOCUMENT, TRANSITIONS, State.ID, State.ENDING)


def test_the_limits_in_the_document_are_the_settings() -> None:
    settings = PubsubSettings()
    limits = {
        "sessions_max": (100_000, "100,000"),
        "subscriptions_max": (1_000, "1,000"),
        "subscriptions_total_max": (2_000_000, "2,000,000"),
        "wild_subscriptions_max": (250, "250"),
        "wild_subscriptions_total_max": (10_000, "10,000"),
        "subscriber_bytes_max": (64 << 20, "64 MiB"),
        "kept_bytes_total_max": (256 << 20, "256 MiB"),
        "command_seconds": (30.0, "30 s"),
    }
    check_limits(DOCUMENT, settings, limits)
    assert (settings.kept_messages_max, settings.kept_bytes_max) == (10_000, 16 << 20)
