"""What is published on a connection is recorded as whole messages, in the layout of DMP's own.

A run of messages that are alike is one block: the bytes before the body, which all of them share, are made
once. What was refused, and what a transaction never committed, is not recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dmp.wire import RECORDED_PUBLISHES, envelope

if TYPE_CHECKING:
    from dmp.amqp.content import Content
    from dmp.message import Head
    from shared.recording.recorder import Recorder, Track

_TRACKS_MAX = 64
"""Exchanges that one connection publishes to and whose tracks are kept; beyond them, all are made anew."""


class PublishTracks:
    """Those of one connection, by exchange."""

    def __init__(self, recorder: Recorder, peer: str) -> None:
        self._recorder = recorder
        self._source = peer.encode()
        self._tracks: dict[bytes, Track] = {}

    def record(self, content: Content, head: Head, bodies: Sequence[bytes]) -> None:
        """Messages of one head. The bytes of a large one were never together: it is counted as left out."""
        if head.large:
            self._recorder.leave_out("large", len(bodies), len(bodies) * head.body_bytes)
            return
        track = self._tracks.get(content.exchange)
        if track is None:
            if len(self._tracks) >= _TRACKS_MAX:
                self._tracks.clear()
            track = self._recorder.track(RECORDED_PUBLISHES, name=content.exchange, source=self._source)
            self._tracks[content.exchange] = track
        before = envelope(content.exchange, content.key, content.properties, head.body_bytes)
        track.record(len(bodies), before + before.join(bodies))
