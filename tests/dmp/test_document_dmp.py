"""The DMP sections of PROTOCOL.md say what the server does."""

from pathlib import Path

from dmp import wire
from dmp.data_types import short
from dmp.feed import IDLE_SECONDS
from dmp.leases import LEASE_SECONDS, RANDOM_BYTES
from dmp.session import TRANSITIONS, State
from dmp.settings import DmpSettings
from dmp.wire import DMP_HEADER
from tests.dmp.peers import Application, Peer, texts
from tests.dmp.world import World
from tests.support.diagrams import diagram

DOCUMENT = (Path(__file__).parent.parent.parent / "dmp" / "PROTOCOL.md").read_text()


async def test_the_dmp_session_in_the_document_goes_as_it_says() -> None:
    world = await World.open()
    app = Application(world)
    app.exchange(b"orders")
    queue = app.queue(b"all", b"orders")
    peer = Peer(world)
    said: list[str] = []
    for line in DOCUMENT.partition("```dmp-session\n")[2].partition("```")[0].splitlines():
        if line.startswith("> "):
            assert not said, "the document leaves out an answer"
            said = list(texts(peer.say(_bytes(line[2:], app))))
        else:
            assert said.pop(0) == line
    assert not said
    assert peer.connection.finished
    assert [(message.head.key, message.body) for message in queue.ready] == [
        (b"eu.de", b"hello"),
        (b"eu.fr", b"bonjour"),
    ]


def _bytes(line: str, app: Application) -> bytes:
    what, *fields = line.split()
    if what == "AMQP":
        assert b"AMQP" + bytes(map(int, fields)) == DMP_HEADER
        return DMP_HEADER
    if what == "word":
        return short(app.sink_lease(b"orders"))
    if what == "null":
        return wire.NULL_MESSAGE
    said = dict(field.split("=") for field in fields)
    return wire.message(
        wire.Message(said.get("exchange", "").encode(), said["key"].encode(), said["body"].encode())
    )


def test_the_diagram_of_a_dmp_connection_is_the_table() -> None:
    shown = "\n".join(diagram(TRANSITIONS, State.LEASE, State.ENDED))
    assert f"```mermaid\n{shown}\n```" in DOCUMENT


def test_the_codes_that_are_sent_are_in_the_document() -> None:
    for code in wire.Reply:
        if code not in (wire.Reply.NOT_ALLOWED, wire.Reply.NOT_IMPLEMENTED):  # never sent
            assert f"`{code}" in DOCUMENT


def test_the_numbers_in_the_document_are_those_of_the_code() -> None:
    assert f"within {LEASE_SECONDS:.0f}\nseconds" in DOCUMENT
    assert f"A lease is {RANDOM_BYTES * 8} random bits" in DOCUMENT
    assert f"idle for {IDLE_SECONDS:.0f} s" in DOCUMENT
    assert wire.PROPERTIES_BYTES_MAX == 128 << 10
    assert wire.ENVELOPE_BYTES_MIN == 8
    assert DmpSettings().message_bytes_max == (16 << 20) - 1 == wire.BODY_BYTES_MAX
