"""PROTOCOL.md says what the server does."""

import re
from pathlib import Path

from logmq.settings import LogmqSettings
from logmq.wire import REQUESTS, Code
from logmq.writers import WINDOW
from tests.logmq.world import World

DOCUMENT = (Path(__file__).parent.parent.parent / "logmq" / "PROTOCOL.md").read_text()


def test_the_session_in_the_document_goes_as_it_says() -> None:
    session = DOCUMENT.partition("```session\n")[2].partition("```")[0]
    peer = World().connect()
    said = b""
    for line in session.splitlines():
        if line.startswith("> "):
            assert said == b"", "the document leaves out an answer"
            peer.send(line[2:].encode() + b"\n")
            peer.settle()
            said = peer.take()
        else:
            answer, _, said = said.partition(b"\n")
            assert answer.decode() == line
    assert said == b""
    assert peer.connection.finished


def test_every_request_and_every_code_is_in_the_document() -> None:
    for request in REQUESTS.values():
        shown = request.usage.partition(" ")[0]
        assert re.search(rf"`{shown}\b", DOCUMENT), request.usage
        assert request.usage in DOCUMENT or shown in ("APPEND", "BATCH"), request.usage
    for code in Code:
        assert f"| {code} |" in DOCUMENT


def test_the_limits_in_the_document_are_the_settings() -> None:
    settings = LogmqSettings()
    for name, value, text in (
        ("message_bytes_max", 1 << 20, "1 MiB"),
        ("topics_max", 100_000, "100,000"),
        ("commits_max", 100_000, "100,000"),
        ("writers_max", 1024, "1024"),
        ("fetch_bytes_max", 64 << 20, "64 MiB"),
        ("fetch_wait_ms_max", 60_000, "60 s"),
        ("line_seconds", 300.0, "5 minutes"),
        ("body_seconds", 30.0, "30 s"),
    ):
        assert getattr(settings, name) == value
        assert f"| {text} | `{name}` |" in DOCUMENT
    assert f"newest {WINDOW} batches" in DOCUMENT
    assert f"the {settings.writers_max} that have spoken last" in DOCUMENT
