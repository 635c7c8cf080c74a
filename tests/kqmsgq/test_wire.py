"""Events as bytes: there and back, any cut, any garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kqmsgq import wire
from kqmsgq.wire import Fault, Message
from shared.errors import RemoteProtocolError

messages = st.lists(st.builds(Message, st.binary(max_size=300), st.binary(max_size=300)), max_size=10)


@given(messages, st.binary(max_size=20), st.data())
def test_messages_are_read_as_they_were_written(
    sent: list[Message], body: bytes, data: st.DataObject
) -> None:
    whole = b"".join(wire.message(each.queue, each.body) for each in sent)
    behind = wire.message(b"q", body)
    cut = data.draw(st.integers(0, len(behind) - 1))
    found, end = wire.take_messages(whole + behind[:cut], 4096, 4096)
    assert (found, end) == (sent, len(whole))
    assert wire.take_messages(bytearray(whole), 4096, 4096) == (sent, len(whole))


@given(st.binary(max_size=100))
def test_any_bytes_are_messages_or_a_fault_or_not_all_there(data: bytes) -> None:
    try:
        found, end = wire.take_messages(data, 50, 50)
    except RemoteProtocolError as error:
        refused = error
    else:
        assert b"".join(wire.message(each.queue, each.body) for each in found) == data[:end]
        return
    assert refused.fault in (Fault.EVENT, Fault.NAME, Fault.MESSAGE)
    assert str(refused).isprintable()
    assert refused.reply == b""


@pytest.mark.parametrize("length", [51, 255, 65536, 0xFFFFFFFF])
def test_lengths_are_refused_before_what_they_announce(length: int) -> None:
    encoded = length.to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError) as refused:
        wire.take_messages(b"*" + encoded, 50, 50)
    assert refused.value.fault is Fault.NAME
    with pytest.raises(RemoteProtocolError) as refused:
        wire.take_messages(b"*\0\0\0\1a" + encoded, 50, 50)
    assert refused.value.fault is Fault.MESSAGE


def test_a_message_shows_no_body() -> None:
    assert repr(Message(b"q", b"secret")) == "Message(queue=b'q', body=<6 bytes>)"
