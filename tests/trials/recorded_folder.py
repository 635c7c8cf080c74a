"""A data folder in which what passes through KqueueMsgQ is recorded: recover, compare, load, cut, and again.

What is promised and how that is judged: `recorded_judge`.
"""

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from brokers.errors import Failure
from kqmsgq.wire import HEADER_BYTES, PRODUCE, message
from shared.errors import StoreError
from shared.recording import blocks
from shared.storage.tools.logs import RecordRow, log_dump
from tests.support.server import counter
from tests.trials.folder import Adapter, DialogError, HasMode, Verification, durability
from tests.trials.recorded_judge import RecordedBook, Run, Sent, joined, numbered

PROTOCOL = "kqmsgq"
_NUMBER_BYTES = 8
_QUEUE = b"recorded"


class RecordedLoad:
    """A producer: now a few messages, now as many as go into some reads."""

    def __init__(
        self, address: tuple[str, int], data: Path, book: RecordedBook, source: random.Random
    ) -> None:
        self._data = data
        self._sent = Sent(book.next)
        book.sent.append(self._sent)
        self._next = self._sent.first
        self._source = source
        self._socket = socket.create_connection(address, timeout=30)
        self._socket.sendall(PRODUCE)
        self._broke: list[tuple[float, str]] = []

    def run(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._broke:
            count = self._source.choice((1, 3, 100, 1000))
            size = self._source.choice((0, 80, 1000))
            numbers = range(self._next, self._next + count)
            data = b"".join(message(_QUEUE, n.to_bytes(_NUMBER_BYTES, "big") + bytes(size)) for n in numbers)
            self._next += count
            try:
                self._socket.sendall(data)
            except OSError as error:
                self._broke.append((time.monotonic(), str(error)))
            # Some of what could not be sent may have been: it is known for what it is, should it be there.
            self._sent.writes.append((time.monotonic(), self._next))
            if self._source.random() < 0.2 and not self._broke:
                self._count()
            time.sleep(self._source.uniform(0, 0.01))

    def _count(self) -> None:
        """What the server says to have written."""
        with contextlib.suppress(OSError, Failure):  # it may be dead by now
            written = counter(self._data, "recorded_messages_total")
            self._sent.counted.append((time.monotonic(), written))

    def drain(self, cut: float) -> list[str]:
        """The end of the connection; what went wrong before the cut."""
        self._socket.close()
        return [text for at, text in self._broke if at < cut]


@attrs.define(eq=False)
class RecordedAdapter(Adapter):
    """What passes through KqueueMsgQ, recorded."""

    protocol = PROTOCOL
    book: RecordedBook = attrs.field(factory=RecordedBook, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """Recording in one of the modes that promise something."""
        mode = source.choice([mode for mode in modes if mode != "none"] or ["interval"])
        return ["[record]", f'protocols = ["{PROTOCOL}"]', f'durability = "{durability(mode)}"']

    def load_seconds(self, *, intervals: bool) -> float:
        """Mostly longer than what an interval and a sync may take, or nothing would be promised."""
        longest = 0.3 if self.source.random() < 0.2 else 2.0
        return self.source.uniform(0, longest) * self.load_factor

    def load(self) -> RecordedLoad:
        self.book.mode = self.mode_set("record")
        return RecordedLoad(self.address, self.server.data, self.book, self.source)

    def promised_records(self, until: float) -> int:
        return self.book.promised(until)

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        shown = joined(self._shown())
        verdict = self.book.judge(shown, promised_until(self.book))
        return Verification(verdict, {"recorded": verdict}, {PROTOCOL: shown})

    def look(self) -> Mapping[str, Sequence[Run]]:
        return {PROTOCOL: joined(self._shown())}

    def _shown(self) -> Iterator[Run]:
        try:
            for row in log_dump(self.server.data, "recorded", PROTOCOL):
                if not isinstance(row, RecordRow):
                    raise DialogError(f"the recorded log is damaged at {row.offset}: {row.text}")
                head = blocks.unpack(row.payload)
                if head.codec == blocks.GAP:
                    yield Run(head.messages)
                else:
                    yield from joined(numbered(_numbers(row.payload[head.frames_at :], head.messages)))
        except StoreError:
            return  # nothing was recorded yet


def _numbers(frames: bytes, messages: int) -> Iterator[int]:
    at = 0
    while at < len(frames):
        body = at + HEADER_BYTES + len(_QUEUE)
        yield int.from_bytes(frames[body : body + _NUMBER_BYTES], "big")
        at = body + int.from_bytes(frames[body - 4 : body], "big")
        messages -= 1
    if messages:
        raise DialogError(f"a block has {messages} messages less than its head says")
