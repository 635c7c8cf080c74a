"""PROTOCOL.md says what the server does, and the golden bytes are what goes over the wire."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub.settings import PubsubSettings
from pubsub.states import TRANSITIONS, State
from tests.pubsub.world import Peer, World
from tests.support.diagrams import diagram

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "pubsub" / "PROTOCOL.md").read_text()
GOLDEN = sorted((ROOT / "tests" / "golden" / "pubsub").glob("*.hex"))


def golden(path: Path) -> Iterator[tuple[str, bytes]]:
    for line in path.read_text().splitlines():
        bare = line.partition("#")[0].strip()
        if bare:
            spelled = re.sub(r"NUL (\d+)", lambda match: "00" * int(match[1]), bare[1:])
            yield bare[0], bytes.fromhex(spelled)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_golden_sessions_byte_for_byte(world: World, peer: Peer, path: Path, one_by_one: bool) -> None:
    got = b""
    for who, data in golden(path):
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
    assert DOCUMENT.partition("```mermaid\n")[2].partition("\n```")[0] == "\n".join(
        diagram(TRANSITIONS, State.ID, State.ENDING)
    )


def test_the_limits_in_the_document_are_the_settings() -> None:
    settings = PubsubSettings()
    for name, value, text in (
        ("sessions_max", 100_000, "100,000"),
        ("subscriptions_max", 1_000, "1,000"),
        ("subscriptions_total_max", 2_000_000, "2,000,000"),
        ("wild_subscriptions_max", 250, "250"),
        ("wild_subscriptions_total_max", 10_000, "10,000"),
        ("subscriber_bytes_max", 64 << 20, "64 MiB"),
        ("kept_bytes_total_max", 256 << 20, "256 MiB"),
        ("command_seconds", 30.0, "30 s"),
    ):
        assert getattr(settings, name) == value
        assert f"| {text} | `{name}` |" in DOCUMENT
    assert (settings.kept_messages_max, settings.kept_bytes_max) == (10_000, 16 << 20)
