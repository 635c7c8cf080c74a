"""PROTOCOL.md says what the server does, and the golden bytes are what goes over the wire."""

from pathlib import Path

import pytest

from pubsub.settings import PubsubSettings
from pubsub.states import TRANSITIONS, State
from tests.pubsub.world import Peer, World
from tests.support.documents import check_diagram, check_limits, golden, golden_lines, protocol_document

DOCUMENT = protocol_document("pubsub")


@pytest.mark.parametrize("path", golden("pubsub"), ids=lambda path: path.stem)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_golden_sessions_byte_for_byte(world: World, peer: Peer, path: Path, one_by_one: bool) -> None:
    got = b""
    for who, data in golden_lines(path):
        if who == "D":
            assert peer.connection.taken() == data
            continue
        got += peer.connection.taken()
        if who == "P":
            world.receive([data])
        else:
            peer.send(*([data[at : at + 1] for at in range(len(data))] if one_by_one else [data]))
    assert got + peer.connection.taken() == b""
    assert peer.closed


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
