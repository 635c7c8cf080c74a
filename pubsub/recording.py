"""Records datagrams as the frames they arrived in, each without the padding after its payload.

The frames of one batch, put together, would mostly be padding. They are cut by their datagrams' lengths.
Equal ones are cut with one call (`struct`, in which the padding is skipped), others one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct, iter_unpack, pack
from typing import TYPE_CHECKING

from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MIN,
    DATAGRAM_TYPE_AT,
    FRAME_BYTES,
    PAYLOAD_BYTES_MIN,
    RECORDED_FRAMES,
    TYPE_AT,
)

if TYPE_CHECKING:  # the recorder has a clock, and this module is sans-IO
    from shared.recording.blocks import Block
    from shared.recording.recorder import Recorder

BEFORE_BYTES = TYPE_AT - DATAGRAM_TYPE_AT
"""Bytes that a frame has before its type and its datagram lacks: the sender, and the topic's NUL."""
CUTS_MAX = 1024
"""Remembered formats, one for each combination of count and lengths; above this all are forgotten."""


class FrameTrack:
    """The track of a UDP endpoint."""

    def __init__(self, recorder: "Recorder") -> None:
        self._track = recorder.track(RECORDED_FRAMES)
        self._cuts: dict[tuple[int, int], Struct] = {}

    def record(self, frames: bytes, lengths: Sequence[int], messages: int) -> None:
        """Record frames, of which `messages` are messages. Their datagrams are long enough."""
        if messages < len(lengths):
            frames, lengths = picked(frames, lengths, lambda frame: frame[TYPE_AT] in PAYLOAD_BYTES_MIN)
        if messages:
            sizes = pack(f">{messages}H", *lengths)
            self._track.record(messages, b"".join((sizes, *self._cut(frames, lengths))))

    def _cut(self, frames: bytes, lengths: Sequence[int]) -> Sequence[bytes]:
        if lengths.count(lengths[0]) == len(lengths):
            shape = len(lengths), lengths[0]
            cut = self._cuts.get(shape)
            if cut is None:
                if len(self._cuts) >= CUTS_MAX:
                    self._cuts.clear()
                size = BEFORE_BYTES + lengths[0]
                cut = self._cuts[shape] = Struct(f"{size}s{FRAME_BYTES - size}x" * len(lengths))
            return cut.unpack(frames)
        starts = range(0, len(frames), FRAME_BYTES)
        return [frames[at : at + BEFORE_BYTES + length] for at, length in zip(starts, lengths, strict=True)]


def recorded_frames(block: "Block", body: bytes) -> Iterator[bytes]:
    """The frames of a block, without their padding. Raises ValueError."""
    if block.codec != RECORDED_FRAMES:
        raise ValueError(f"codec {block.codec}")
    at = 2 * block.messages
    if at > len(body):
        raise ValueError("its lengths reach past its end")
    for (length,) in iter_unpack(">H", body[:at]):
        end = at + length + DATA_AT - DATAGRAM_BYTES_MIN
        kind = body[at + TYPE_AT] if end <= len(body) and length >= DATAGRAM_BYTES_MIN else -1
        if kind not in PAYLOAD_BYTES_MIN:
            raise ValueError("a datagram that is too short, or reaches past its end")
        yield body[at:end]
        at = end


def picked(
    frames: bytes, lengths: Sequence[int], is_wanted: Callable[[bytes], bool]
) -> tuple[bytes, list[int]]:
    """The wanted frames, joined, and their datagrams' lengths."""
    each = (frames[at : at + FRAME_BYTES] for at in range(0, len(frames), FRAME_BYTES))
    wanted = [(frame, length) for frame, length in zip(each, lengths, strict=True) if is_wanted(frame)]
    return b"".join([frame for frame, _ in wanted]), [length for _, length in wanted]
