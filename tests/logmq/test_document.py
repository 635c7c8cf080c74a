"""PROTOCOL.md says what the server does."""

import re

from logmq.settings import LogmqSettings
from logmq.wire import REQUESTS, Code
from logmq.writers import WINDOW
from tests.logmq.world import World
from tests.support.documents import block, protocol_document

DOCUMENT = protocol_document("logmq")


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


def test_what_is_remembered_of_writers_is_in_the_document() -> None:
    assert f"newest {WINDOW} batches" in DOCUMENT
    assert f"the {LogmqSettings().writers_max} that have spoken last are remembered" in DOCUMENT
