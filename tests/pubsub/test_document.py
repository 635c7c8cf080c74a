"""PROTOCOL.md says what the server does."""

from pathlib import Path

from pubsub.settings import PubsubSettings
from pubsub.states import TRANSITIONS, State
from shared.states import diagram

DOCUMENT = (Path(__file__).parent.parent.parent / "pubsub" / "PROTOCOL.md").read_text()


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
        ("subscriber_bytes_max", 64 << 20, "64 MiB"),
        ("kept_bytes_total_max", 256 << 20, "256 MiB"),
        ("command_seconds", 30.0, "30 s"),
    ):
        assert getattr(settings, name) == value
        assert f"| {text} | `{name}` |" in DOCUMENT
    assert (settings.kept_messages_max, settings.kept_bytes_max) == (10_000, 16 << 20)
