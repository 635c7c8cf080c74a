"""PROTOCOL.md and STORAGE.md say what the server does."""

import json
import re

import attrs
import pytest

from dms import wire
from dms.options import Options
from dms.records import Reason, RecordKind
from dms.wire import REPLIES, Frame, Status, Type
from tests.dms.world import World
from tests.support.documents import (
    ROOT,
    block,
    protocol_document,
)

DOCUMENT = protocol_document("dms")


def sent(line: str) -> bytes:
    """A client's line as a frame."""
    word, number, rest = re.fullmatch(r"> (\w+) (\w+) ?(.*)", line).groups()  # type: ignore[union-attr]
    payload = b""
    if named := re.match(r'"(\w+)" ?', rest):
        payload, rest = wire.pack_name(named[1]), rest[named.end() :]
    if rest.startswith("{") and word != "CREATE_QUEUE":
        said, size = json.JSONDecoder().raw_decode(rest)
        payload, rest = payload + wire.pack_object(said), rest[size + 1 :]
    if word == "NACK" and rest:
        delay, _, rest = rest.partition(" ")
        payload += int(delay).to_bytes(4)
    return wire.pack(Type[word], int(number, 0), payload + rest.encode())


def shown(frame: Frame) -> str:
    """A server's frame as a line."""
    type_, _, status, number, payload = frame
    text = payload.decode("utf-8", "replace") if type_ != Type.LIST_QUEUES_OK else ""
    if type_ == Type.DELIVER_WITH:
        text = " ".join(part.decode() for part in wire.split_object(payload))
    if type_ == Type.LIST_QUEUES_OK:
        total, entries = wire.unpack_list(payload)
        text = " ".join([str(total), *(f'"{name}" {depth}' for name, depth in entries)])
    identity = f"0x{number:x}" if number & wire.DELIVERY_ID_BIT else str(number)
    return " ".join(
        part for part in ("<", Type(type_).name, identity, f"status {status}" if status else "", text) if part
    )


@pytest.mark.parametrize("kind", ["session", "jobs"])
def test_the_session_in_the_document_goes_as_it_says(kind: str) -> None:
    world = World()
    peer = world.connect(handshake=False)
    said: list[str] = []
    for line in block(DOCUMENT, kind):
        if line.startswith(">"):
            assert said == [], "the document leaves out an answer"
            peer.send(sent(line))
            said = [shown(frame) for frame in peer.take()]
        else:
            if not said:  # it comes in its time
                world.advance(2)
                said = [shown(frame) for frame in peer.take()]
            assert line == said.pop(0)
    assert said == []
    assert peer.connection.finished


def test_every_type_status_and_option_is_in_the_document() -> None:
    for type_ in Type:
        assert re.search(rf"\| {type_.name} \| 0x{type_.value:02X} \|", DOCUMENT), type_
    for request, reply in REPLIES.items():
        assert re.search(rf"\| {request.name} \|.*\| {reply.name} \|", DOCUMENT)
    for status in Status:
        assert f"| {status.value} | {status.name} |" in DOCUMENT
    for field in attrs.fields(Options):
        assert f"| `{field.name}` |" in DOCUMENT


def test_every_kind_of_record_and_every_reason_is_in_the_storage_document() -> None:
    document = (ROOT / "dms" / "STORAGE.md").read_text()
    for kind in RecordKind:
        assert f"| {kind.value} | {kind.name} |" in document
    for reason in Reason:
        assert reason is Reason.NONE or f"\n| {reason.value} | " in document
