"""Blocks: the records of a recorded log, byte for byte as RECORDING.md describes them. No I/O, no state.

A block holds the frames of one socket read as they were on the wire. Its head gives their time, source and
number. So recording has no cost per message; the reader of the log takes blocks apart.
"""

import struct

import attrs

NAMESPACE = "recorded"
"""The folder of all recorded logs; each log is named after its protocol."""
VERSION = 1
GAP = 0
"""The codec of a gap: a block that stands for messages that were not recorded."""
FIXED = struct.Struct(">BBHQI")
"""Version, codec, where the frames begin, Unix microseconds, messages."""
_RECORD = struct.Struct(">IBBHQI")
FIELD_BYTES_MAX = 0xFF
MESSAGES_MAX = 0xFFFFFFFF
GAP_BYTES = struct.Struct(">Q")
"""After the head of a gap: the number of bytes that were not recorded."""


@attrs.frozen
class Block:
    """A block's head, and where its frames begin. `name`, `source`: empty where each frame holds its own."""

    codec: int
    time_us: int
    messages: int
    protocol: bytes
    name: bytes
    source: bytes
    frames_at: int


class BadBlock(ValueError):
    """The bytes are no valid block; the text says why."""


def pack_fields(protocol: bytes, name: bytes, source: bytes) -> bytes:
    """The part of a head that all blocks of a track share. Too long fields are cut."""
    fields = (field[:FIELD_BYTES_MAX] for field in (protocol, name, source))
    return b"".join(bytes((len(field),)) + field for field in fields)


def pack_head(codec: int, time_us: int, messages: int, fields: bytes, frames_bytes: int) -> bytes:
    """A block's record up to its frames, with the record's length before it."""
    head_bytes = FIXED.size + len(fields)
    return _RECORD.pack(head_bytes + frames_bytes, VERSION, codec, head_bytes, time_us, messages) + fields


def unpack(payload: bytes | memoryview) -> Block:
    """The head of a block. Raises BadBlock."""
    if len(payload) < FIXED.size:
        raise BadBlock("shorter than a head")
    version, codec, frames_at, time_us, messages = FIXED.unpack_from(payload)
    if version != VERSION:
        raise BadBlock(f"version {version}")
    if not FIXED.size <= frames_at <= len(payload):
        raise BadBlock("its frames begin outside of it")
    fields = []
    at = FIXED.size
    for _ in range(3):
        end = at + 1 + payload[at] if at < frames_at else frames_at + 1
        if end > frames_at:
            raise BadBlock("its fields reach past its head")
        fields.append(bytes(payload[at + 1 : end]))
        at = end
    return Block(codec, time_us, messages, fields[0], fields[1], fields[2], frames_at)
