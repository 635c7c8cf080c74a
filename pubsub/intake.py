"""Lines of other programs on their way into the fan-out: a sink of datagrams, and syslog over TCP.

A line becomes a STRING message under a topic made of it (`pubsub.lines`). Lines that cannot are counted by
reason and logged, a line of the log for each batch and reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pubsub.fanout import Fanout
from pubsub.lines import LineKind, syslog_frame
from pubsub.metrics import Counts
from pubsub.wire import DATAGRAM_BYTES_MIN, SENDER_BYTES, Fault, Kind, frame
from shared.access import WRITE, Guard
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection
from shared.net.datagram_sink import Frames, Layout
from shared.net.session import SessionBase
from shared.turns import Turn

if TYPE_CHECKING:
    import structlog

DATAGRAM_BYTES_MAX = 8 * 1024
"""Bytes of a datagram of lines: more than StatsD's clients send, who stay below a packet's size."""
LAYOUT = Layout(
    frame_bytes=SENDER_BYTES + DATAGRAM_BYTES_MAX,
    parts=((SENDER_BYTES, DATAGRAM_BYTES_MAX),),
    sender=(0, SENDER_BYTES),
)


class Intake:
    """What all ends of one kind of lines share."""

    def __init__(
        self, kind: LineKind, fanout: Fanout, counts: Counts, log: "structlog.stdlib.BoundLogger"
    ) -> None:
        self.kind = kind
        self.fanout = fanout
        self.counts = counts
        self._log = log
        self._dropped: Counter[str] = Counter()

    def message(self, line: bytes, sender: bytes) -> tuple[bytes, bytes] | None:
        """Topic and payload of a line from `IP:port`, counted; None: it is dropped."""
        made = self.kind.message(line, sender.rpartition(b":")[0].strip(b"[]"))
        if isinstance(made, str):
            self.drop(made)
            return None
        self.counts.lines[self.kind.name] += 1
        return made

    def drop(self, reason: str) -> None:
        """A line is no message."""
        self._dropped[reason] += 1

    def tell(self, sender: bytes | str) -> None:
        """Log what was dropped since the last call. `sender`: of the last of it."""
        if self._dropped:
            dropped, self._dropped = self._dropped, Counter()
            self.counts.lines_dropped.update(dropped)
            self._log.warning(
                "lines dropped: they are no messages, for these reasons; look at who sends them",
                kind=self.kind.name,
                sender=sender,
                **dropped,
            )


class LineSink:
    """The sink of a UDP endpoint for lines (`shared.net.datagram_sink.SlotSink`)."""

    def __init__(self, intake: Intake) -> None:
        self.layout = LAYOUT
        self._intake = intake
        self._left: Frames | None = None  # messages that the fan-out has put off
        self._lines: Iterator[bytes] | None = None  # those of the first datagram that are left

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        """Forward the lines in these datagrams. Returns the rest for another turn, or None."""
        if self._left is None:
            done = self._make(frames, lengths, Turn())
            frames, lengths = frames[done * LAYOUT.frame_bytes :], lengths[done:]
        assert self._left is not None
        self._left = self._intake.fanout.receive_frames(*self._left)
        return None if self._left is None and not lengths else (frames, lengths)

    def _make(self, frames: bytes, lengths: Sequence[int], turn: Turn) -> int:
        """Make messages of lines until the turn is over. Returns how many datagrams are done."""
        intake = self._intake
        made: list[bytes] = []
        sizes: list[int] = []
        sender = b""
        done = 0
        for length in lengths:
            at = done * LAYOUT.frame_bytes
            sender = frames[at : at + SENDER_BYTES].rstrip(b"\0")
            start = at + SENDER_BYTES
            if length > DATAGRAM_BYTES_MAX:
                intake.drop("long")
            else:
                lines = self._lines or iter(intake.kind.lines(frames[start : start + length]))
                self._lines = None
                for line in lines:
                    if (message := intake.message(line, sender)) is not None:
                        made.append(frame(sender, message[0], Kind.STRING, message[1]))
                        sizes.append(DATAGRAM_BYTES_MIN + len(message[1]))
                    if turn.over():
                        self._lines = lines
                        break
            if self._lines is not None:
                break
            done += 1
            if turn.over_now():
                break
        self._left = b"".join(made), sizes
        intake.tell(sender)
        return done


class SyslogSession(SessionBase):
    """The server's side of a connection that brings syslog messages. Nothing is answered.

    Syslog has no login: where one is asked for, only a client certificate is one.
    """

    __slots__ = ("_intake", "_sender")

    def __init__(
        self, connection: Connection, intake: Intake, seconds: float, gate: Guard | None = None
    ) -> None:
        super().__init__(connection, seconds)
        self._intake = intake
        self._sender = connection.peer.encode()
        self.identity.admit(gate)
        self.identity.await_first_request()

    def apply(self, data: bytes, at: int) -> int:
        if not self.user:
            raise RemoteProtocolError("syslog has no login: show a client certificate", fault=Fault.LOGIN)
        while at < len(data):
            start, stop, end = syslog_frame(data, at)
            if end > len(data):
                self.need(end - at, b"\n")
                break
            self.connection.first_request_done()
            if not self._publish(data[start:stop]):
                self.yield_turn()  # earlier messages are still being written
                break
            at = end
            if self.turn.over_now() and at < len(data):  # each message may have many receivers
                self.yield_turn()
                break
        self._intake.tell(self._sender)
        return at

    def _publish(self, data: bytes) -> bool:
        """Forward a message; False: try later."""
        intake = self._intake
        if not intake.fanout.flush():
            return False
        for line in intake.kind.lines(data):
            message = intake.message(line, self._sender)
            if message is None:
                continue
            topic, payload = message
            if self.guard is not None and not self.guard.may_send_topic(self.user, topic):
                self.guard.refuse(self.user, WRITE, topic, self.connection.peer)
                intake.drop("denied")
                continue
            frames = frame(self._sender, topic, Kind.STRING, payload)
            intake.fanout.publish(topic, frames, [DATAGRAM_BYTES_MIN + len(payload)], ())
        return True

    def receive_eof(self) -> None:
        if self.kept and not (self.stopped or self.ended):
            self._intake.drop("cut")
            self._intake.tell(self._sender)
        super().receive_eof()

    def input_ended(self) -> None:
        self.end()
        self.connection.finish()

    def too_late(self) -> None:
        text = f"a message was not complete after {self.input_seconds:g} s"
        raise RemoteProtocolError(text, fault=Fault.TOO_LATE)

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        self._intake.counts.faults[error.fault] += 1

    def release(self) -> None:
        """It holds nothing."""
