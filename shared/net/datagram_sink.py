"""The contract between a protocol and a UDP endpoint: datagrams in frames of the protocol's.

A sink is sans-IO. The endpoint (`shared.net.datagrams`) calls it in a turn of the loop, so its output to
connections is sent when the call returns. An exception is a bug in the sink: it is logged and counted, and
the endpoint continues with the next batch.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs


@attrs.frozen
class Layout:
    """A frame of `frame_bytes` in which a datagram arrives.

    `parts`: (offset, size) of where its bytes go, in order. `sender`: the same for its sender's address as
    text (`127.0.0.1:51234`, `[::1]:51234`), cut if too long. All other bytes are NUL, also those of a part
    that a short datagram does not fill. A datagram longer than all parts is cut.
    """

    frame_bytes: int
    parts: tuple[tuple[int, int], ...]
    sender: tuple[int, int]

    def unfilled(self, length: int) -> list[tuple[int, int]]:
        """The (start, stop) ranges of the frame's parts that a datagram of `length` bytes does not fill."""
        beyond = []
        for offset, size in self.parts:
            if length < size:
                beyond.append((offset + max(length, 0), offset + size))
            length -= size
        return beyond


Frames = tuple[bytes, Sequence[int]]
"""Whole frames, and the lengths of the datagrams in them."""


class SlotSink(Protocol):
    """Takes datagrams in frames of its own."""

    layout: Layout

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        """Apply one or more frames, in order of arrival. `lengths` are the datagrams' own; that of one that
        was cut is above what the parts hold. Where they are much work it returns those that are left. It is
        called with them, before any others, when everybody else has had a turn.
        """
