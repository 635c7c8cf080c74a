"""PROTOCOL.md says what the server does."""

import re

from logmq.settings import LogmqSettings
from logmq.states import TRANSITIONS, Event, State
from logmq.wire import REQUESTS, Code
from logmq.writers import WINDOW
from tests.logmq.world import World
from tests.support.documents import block, check_diagram, check_limits, check_states, protocol_document

DOCUMENT = protocol_document("logmq")


def test_the_states_are_whole_and_in_the_document() -> None:
    check_states(TRANSITIONS, State.FIRST_LINE, State.ENDING, ends_by=Event.INPUT_ENDS)
    check_diagram(DOCUMENT, TRANSITIONS, State.FIRST_LINE, State.ENDING)


def test_the_session_in_the_document_goes_as_it_says() -> None:
    peer = World().connect()
    said = b""
    for line in block(DOCUMENT, "session"):
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
    limits = {
        "message_bytes_max": (1 << 20, "1 MiB"),
        "topics_max": (100_000, "100,000"),
        "commits_max": (100_000, "100,000"),
        "writers_max": (1024, "1024"),
        "fetch_bytes_max": (64 << 20, "64 MiB"),
        "fetch_wait_ms_max": (60_000, "60 s"),
        "line_seconds": (300.0, "5 minutes"),
        "body_seconds": (30.0, "30 s"),
    }
    check_limits(DOCUMENT, settings, limits)
    assert f"newest {WINDOW} batches" in DOCUMENT
    assert f"the {settings.writers_max} that have spoken last are remembered" in DOCUMENT
