"""PROTOCOL.md says what the server does."""

from typing import Any

from pamqp import body, common, header

from dmp import wire as dmp_wire
from dmp.amqp import wire
from dmp.amqp.session import CONNECTION_FIELDS_MAX, LOGIN_FRAME_BYTES_MAX
from dmp.bodies import PART_BYTES
from dmp.data_types import FIELDS_MAX, short
from dmp.declarations import ARGUMENTS_BYTES_MAX
from dmp.feed import IDLE_SECONDS
from dmp.leases import LEASE_SECONDS, RANDOM_BYTES
from dmp.properties import KEYS_MAX
from dmp.refusals import Code
from dmp.settings import DmpSettings
from dmp.topology import REPLIES_WAITING_MAX
from dmp.wire import AMQP_HEADER, DMP_HEADER
from shared.net.settings import NetSettings
from tests.dmp.amqp_peer import Peer, content_header
from tests.dmp.peers import Application, texts
from tests.dmp.peers import Peer as DmpPeer
from tests.dmp.world import World, singles
from tests.support.documents import block, protocol_document

DOCUMENT = protocol_document("dmp")
BY_NAME = {method.name: method for method in wire.METHODS.values()}
UNSHOWN = ("server_properties", "client_properties", "arguments")


def spoken(line: str) -> bytes:
    """A line of the session as a frame."""
    number, name, *fields = line.split(" ")
    channel = int(number)
    if name == "header":
        return content_header(int(fields[0]), channel=channel)
    if name == "body":
        data = fields[0].encode()
        return b"\x03" + channel.to_bytes(2, "big") + len(data).to_bytes(4, "big") + data + b"\xce"
    method = BY_NAME[name]()
    for slot in method.attributes():
        if getattr(method, slot) is None:
            setattr(method, slot, _empty(method.amqp_type(slot)))
    for field in fields:
        slot, _, text = field.partition("=")
        setattr(method, slot, _value(method.amqp_type(slot), text))
    return wire.encode(method, channel)


def _empty(kind: str) -> common.FieldValue:
    return {"bit": False, "shortstr": "", "longstr": "", "table": {}}.get(kind, 0)


def _value(kind: str, text: str) -> common.FieldValue:
    if kind == "bit":
        return text == "1"
    return text.replace("\\0", "\0") if kind in ("shortstr", "longstr") else int(text)


def heard(channel: int, value: Any) -> str:
    """A frame as a line of the session."""
    if isinstance(value, header.ContentHeader):
        return f"{channel} header {value.body_size}"
    if isinstance(value, body.ContentBody):
        return f"{channel} body {value.value.decode()}"
    fields = {slot: said for slot, said in value if slot not in UNSHOWN}
    shown = [f"{slot}={_said(said)}" for slot, said in fields.items() if _is_shown(value.name, slot, said)]
    return " ".join([str(channel), value.name, *shown])


def _is_shown(name: str, slot: str, said: Any) -> bool:
    return said not in (0, "", "0") or name in ("Connection.Start", "Queue.DeclareOk")


def _said(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value).replace(" ", "_")


async def test_the_session_in_the_document_goes_as_it_says() -> None:
    world = await World.open()
    peer = Peer(world)
    peer.send(AMQP_HEADER)
    said: list[str] = []
    for line in block(DOCUMENT, "session"):
        if line.startswith("> "):
            assert said == [], "the document leaves out an answer"
            peer.send(spoken(line[2:]))
        else:
            if not said:
                world.settle()
                said = [heard(channel, value) for channel, value in peer.frames()]
            assert said, f"nothing came, {line} should"
            assert said.pop(0) == line
    assert said == []
    assert peer.connection.finished


def test_every_code_that_is_used_is_in_the_document() -> None:
    for code in Code:
        if code not in (Code.NO_ROUTE, Code.NO_CONSUMERS):
            assert f"| {int(code)} {code.name} |" in DOCUMENT


def test_the_limits_in_the_document_are_the_settings() -> None:
    defaults = DmpSettings()
    assert "| 10 s for these where a login is required | `login_seconds` |" in DOCUMENT
    assert (
        "| 30 s from the connection to connection.open, or to the lease | `net.first_request_seconds` |"
        in (DOCUMENT)
    )
    assert NetSettings().first_request_seconds == 30
    assert defaults.login_seconds == 10
    assert "| 30 s for a frame, and for each 256 KiB of a large body | `frame_seconds` |" in DOCUMENT
    assert PART_BYTES == 256 << 10
    assert defaults.frame_seconds == 30
    assert f"further routing keys, up to {KEYS_MAX} together" in DOCUMENT
    assert f"{REPLIES_WAITING_MAX} wait, `message_bytes_max` together" in DOCUMENT
    assert f"{ARGUMENTS_BYTES_MAX} bytes of arguments" in DOCUMENT
    assert f"{FIELDS_MAX} fields, {CONNECTION_FIELDS_MAX} in what a client says" in DOCUMENT
    assert f"above {LOGIN_FRAME_BYTES_MAX} bytes before tune-ok" in DOCUMENT


async def test_the_dmp_session_in_the_document_goes_as_it_says() -> None:
    world = await World.open()
    app = Application(world)
    app.exchange(b"orders")
    queue = app.queue(b"all", b"orders")
    peer = DmpPeer(world)
    said: list[str] = []
    for line in block(DOCUMENT, "dmp-session"):
        if line.startswith("> "):
            assert not said, "the document leaves out an answer"
            said = list(texts(peer.say(_bytes(line[2:], app))))
        else:
            assert said.pop(0) == line
    assert not said
    assert peer.connection.finished
    assert [(message.head.key, message.bodies[0]) for message in singles(queue)] == [
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
        return dmp_wire.NULL_MESSAGE
    said = dict(field.split("=") for field in fields)
    return dmp_wire.message(
        dmp_wire.Message(said.get("exchange", "").encode(), said["key"].encode(), said["body"].encode())
    )


def test_the_codes_that_dmp_sends_are_in_the_document() -> None:
    for code in dmp_wire.Reply:
        if code not in (dmp_wire.Reply.NOT_ALLOWED, dmp_wire.Reply.NOT_IMPLEMENTED):  # never sent
            assert f"`{code}" in DOCUMENT


def test_dmps_numbers_in_the_document_are_those_of_the_code() -> None:
    assert f"within {LEASE_SECONDS:.0f}\nseconds" in DOCUMENT
    assert f"A lease is {RANDOM_BYTES * 8} random bits" in DOCUMENT
    assert f"idle for {IDLE_SECONDS:.0f} s" in DOCUMENT
    assert dmp_wire.PROPERTIES_BYTES_MAX == 128 << 10
    assert dmp_wire.ENVELOPE_BYTES_MIN == 8
    assert DmpSettings().message_bytes_max == (16 << 20) - 1 == dmp_wire.BODY_BYTES_MAX
