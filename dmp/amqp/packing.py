"""What is sent and read often, packed by hand; the tests hold each of these against pamqp.

A delivery is `before`, the delivery tag, `between`, the body, and an end octet. The parts around tag and body
are the same for all messages with one head to one consumer, so they are made once.
"""

import struct

from dmp.amqp.methods import FRAME_END, FRAME_HEAD, METHOD
from dmp.message import Head
from dmp.refusals import Code, Refusal
from dmp.short_strings import short

HEADER, BODY, HEARTBEAT = 2, 3, 8
FRAME_OVERHEAD = 8
HEARTBEAT_FRAME = b"\x08\0\0\0\0\0\0\xce"

PUBLISH = b"\0\x3c\0\x28"
ACK = b"\0\x3c\0\x50"
_DELIVER = b"\0\x3c\0\x3c"
_GET_OK = b"\0\x3c\0\x47"
_DECLARE_OK = b"\0\x32\0\x0b"
_RETURN = b"\0\x3c\0\x32"

_HEADER_FRAME = struct.Struct(">BHIHHQ")
_CONTENT = struct.Struct(">HHQ")
_ACK_FRAME = struct.Struct(">BHIIQBB")
_ACK_INDEX = 60 << 16 | 80
_NACK_INDEX = 60 << 16 | 120
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
tag_bytes = struct.Struct(">Q").pack

KEPT_BYTES_MAX = 2048
"""Longer ones (of large headers) are packed each time, and not kept beside the message."""
_CHANNELS_KEPT = 64
"""Channels for which one head keeps its frames."""


def publish_untrusted(payload: bytes) -> tuple[bytes, bytes, bool, bool]:
    """Basic.Publish: exchange, routing key, mandatory, immediate. Raises Refusal (SYNTAX_ERROR)."""
    end = len(payload)
    exchange_end = 7 + payload[6] if end > 6 else end
    key_end = exchange_end + 1 + payload[exchange_end] if exchange_end < end else end
    if key_end + 1 != end:
        raise Refusal(Code.SYNTAX_ERROR, "Basic.Publish: its arguments do not fill its frame")
    bits = payload[key_end]
    return payload[7:exchange_end], payload[exchange_end + 1 : key_end], bool(bits & 1), bool(bits & 2)


def header_untrusted(payload: bytes) -> tuple[int, bytes]:
    """A content header: the body's size, and the properties, flags first. Raises Refusal."""
    if len(payload) < _CONTENT.size + 2:
        raise Refusal(Code.SYNTAX_ERROR, "a content header that is too short")
    class_id, weight, body_bytes = _CONTENT.unpack_from(payload)
    if class_id != 60 or weight:
        raise Refusal(Code.FRAME_ERROR, "a content header of another class than basic, or with a weight")
    return body_bytes, payload[_CONTENT.size :]


def deliver_before(channel: int, consumer_tag: bytes, head: Head) -> bytes:
    """Basic.Deliver up to the delivery tag."""
    size = 4 + 1 + len(consumer_tag) + 8 + 1 + 1 + len(head.exchange) + 1 + len(head.key)
    return FRAME_HEAD.pack(METHOD, channel, size) + _DELIVER + short(consumer_tag)


def deliver_between(channel: int, head: Head, redelivered: bool, payload_max: int) -> bytes:
    """From behind the delivery tag to the body's first byte; of a large body, to the end of its header."""
    method = b"".join((bytes((redelivered,)), short(head.exchange), short(head.key), FRAME_END))
    if head.large:
        return method + content_header(channel, head)
    return method + content_head(channel, head, payload_max)


def get_ok(channel: int, tag: int, redelivered: bool, head: Head, left: int) -> bytes:
    """Basic.Get-Ok, whole; `left`: messages still ready."""
    payload = b"".join(
        (
            _GET_OK,
            tag_bytes(tag),
            bytes((redelivered,)),
            short(head.exchange),
            short(head.key),
            _U32.pack(min(left, 0xFFFFFFFF)),
        )
    )
    return FRAME_HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END


def declare_ok(channel: int, queue: bytes, ready: int, takers: int) -> bytes:
    """Queue.Declare-Ok, whole. By hand since pamqp knows fewer names than there are: it refuses `jobs*`."""
    payload = b"".join((_DECLARE_OK, short(queue), _U32.pack(min(ready, 0xFFFFFFFF)), _U32.pack(takers)))
    return FRAME_HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END


def return_frame(channel: int, code: Code, head: Head) -> bytes:
    """Basic.Return, whole."""
    text = code.name.encode()
    payload = b"".join((_RETURN, _U16.pack(code), short(text), short(head.exchange), short(head.key)))
    return FRAME_HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END


def content_header(channel: int, head: Head) -> bytes:
    """The header frame alone, whole."""
    size = _CONTENT.size + len(head.properties)
    frame = _HEADER_FRAME.pack(HEADER, channel, size, 60, 0, head.body_bytes)
    return frame + head.properties + FRAME_END


def content_head(channel: int, head: Head, payload_max: int) -> bytes:
    """The header frame, and the beginning of the first body frame: everything before the body's first byte.

    Of an empty body there is no frame: then it is the header frame without its end octet, so that a body and
    an end octet behind it are right for all.
    """
    kept = head.frames.get(channel)
    if kept is not None and head.body_bytes <= payload_max:
        return kept
    properties = head.properties
    size = _CONTENT.size + len(properties)
    frame = _HEADER_FRAME.pack(HEADER, channel, size, 60, 0, head.body_bytes) + properties
    if head.body_bytes:
        frame += FRAME_END + FRAME_HEAD.pack(BODY, channel, min(head.body_bytes, payload_max))
    kept_too = head.body_bytes <= payload_max and len(frame) <= KEPT_BYTES_MAX
    if kept_too and len(head.frames) < _CHANNELS_KEPT:
        head.frames[channel] = frame
    return frame


def split(channel: int, body: bytes, payload_max: int) -> bytes:
    """A body as it stands between `content_head` and the last end octet: cut where frames end."""
    if len(body) <= payload_max:
        return body
    parts = [body[:payload_max]]
    for start in range(payload_max, len(body), payload_max):
        part = body[start : start + payload_max]
        parts += (FRAME_END + FRAME_HEAD.pack(BODY, channel, len(part)), part)
    return b"".join(parts)


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Basic.Ack, whole."""
    return _ACK_FRAME.pack(METHOD, channel, 13, _ACK_INDEX, tag, multiple, FRAME_END[0])


def nack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Basic.Nack, whole."""
    return _ACK_FRAME.pack(METHOD, channel, 13, _NACK_INDEX, tag, multiple, FRAME_END[0])
