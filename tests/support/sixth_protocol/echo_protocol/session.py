"""What comes in goes out."""

from collections.abc import Sequence
from typing import ClassVar

import attrs
from brokers.shared.net.connection import Connection
from brokers.shared.net.datagram_sink import Frames, Layout


@attrs.define(eq=False)
class Echo:
    """What all connections share."""

    shout: bool
    bytes_total: int = 0

    layout: ClassVar[Layout] = Layout(frame_bytes=2048, parts=((0, 2000),), sender=(2000, 48))

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        """Datagrams are counted alone: nobody answers them."""
        self.bytes_total += sum(lengths)
        return None


class EchoSession:
    def __init__(self, echo: Echo, connection: Connection) -> None:
        self._echo = echo
        self._connection = connection

    def receive(self, data: bytes) -> None:
        self._echo.bytes_total += len(data)
        self._connection.write(data.upper() if self._echo.shout else data)

    def receive_eof(self) -> None:
        self._connection.finish()

    def on_deadline(self, now: float) -> None: ...

    def drain(self) -> None: ...

    def connection_lost(self) -> None: ...
