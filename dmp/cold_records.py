"""Messages of a durable queue that wait for their time, and are in its log alone.

The queue knows of each what decides about it, as `shared.queues.cold` has it. Beside the count of its failed
tries stand three marks: the log has noted its tries or its time apart from its record; somebody had it; its
time is one of the wall clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from shared.queues.cold import PLAIN_BYTES, due_of, moved, packed, place_of, tries_of
from shared.queues.runs import Run
from shared.queues.waiting import WAITING_BYTES, Waiting
from shared.turns import batched, taken_out

if TYPE_CHECKING:
    from dmp.message import Head

_NOTED, _SEEN, _BY_CLOCK = 1 << 23, 1 << 22, 1 << 21
_TRIES_MAX = _BY_CLOCK - 1
_MORE = bytes(PLAIN_BYTES + 1)


class TriesNote(NamedTuple):
    """What a log notes of a message apart from its record: failed tries, and a time, 0: at once."""

    tries: int
    due_ms: int
    by_clock: bool

    @classmethod
    def of(cls, head: Head | ColdHead) -> TriesNote:
        return cls(head.tries, head.due_ms or 0, head.by_clock)


@attrs.define(eq=False)
class ColdHead:
    """What is known of a cold message: as much of a `Head` as those need who take it out before its time.
    `noted`: its tries and its time are in the log, apart from its record. `texts`: headers."""

    tries: int
    due_ms: int
    noted: bool
    by_clock: bool
    cost_bytes: int
    texts: Mapping[str, str]

    cold: ClassVar[bool] = True
    large: ClassVar[bool] = False
    body_bytes: ClassVar[int] = 0
    payer: ClassVar[Any] = None

    def text_in(self, header: bytes) -> str:
        return self.texts.get(header.decode(errors="replace"), "")


def cold_message(
    place: int, due: int, tries: int, *, noted: bool, seen: bool, by_clock: bool, texts: Mapping[str, str]
) -> bytes:
    """`due`: by the broker's clock, in milliseconds; `seen`: somebody may have had it."""
    marks = _NOTED * noted | _SEEN * seen | _BY_CLOCK * by_clock
    more = json.dumps(texts).encode() if texts else b""
    return packed(place, due, marks | min(tries, _TRIES_MAX), more)


@attrs.define(eq=False)
class ColdRecords:
    """Those of one queue, by number. `ahead_ms`: how much the wall clock is ahead of the queue's."""

    ahead_ms: Callable[[], int] = attrs.field(default=lambda: 0, init=False)
    _waiting: Waiting[bytes] = attrs.field(factory=Waiting, init=False)
    reading: dict[int, Run] = attrs.field(factory=dict, init=False)
    """Those that are being read back."""
    record_bytes: float = attrs.field(default=0.0, init=False)
    """Of all records; of those that have left it is the mean."""
    memory_bytes: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._waiting) + len(self.reading)

    def __contains__(self, number: object) -> bool:
        return number in self._waiting or number in self.reading

    def __iter__(self) -> Iterator[int]:
        """Their numbers, in no order. None may come or go meanwhile."""
        return chain(self._waiting.numbers, self.reading)

    @property
    def numbers(self) -> list[int]:
        return [*self]

    @property
    def next(self) -> float:
        """When the next one that is not being read is due."""
        return self._waiting.next

    @property
    def mean_bytes(self) -> int:
        """Of a record."""
        return max(round(self.record_bytes / max(len(self), 1)), 1)

    def add(self, number: int, message: bytes, stride: int) -> None:
        self._waiting.add(number, due_of(message), message)
        self.record_bytes += stride
        self.memory_bytes += WAITING_BYTES + len(message)

    def fill(self, messages: Mapping[int, bytes], record_bytes: int) -> None:
        """What a start has found."""
        self._waiting.fill((number, due_of(message), message) for number, message in messages.items())
        self.record_bytes += record_bytes
        self.memory_bytes += sum(map(len, messages.values())) + WAITING_BYTES * len(messages)

    def get(self, number: int) -> Run | None:
        """A message as a cold run; it stays. None: it is not here."""
        message = self._waiting.get(number)
        return self.reading.get(number) if message is None else self._run(number, message)

    def take(self, number: int, stride: int = 0) -> Run | None:
        """Take out a message, as a cold run; `stride`: the bytes of its record, where they are known."""
        run = self.get(number)
        if run is not None:
            self.memory_bytes -= run.head.cost_bytes
            run.stride = stride or self.mean_bytes
            self.record_bytes -= run.stride
            if self._waiting.take(number) is None:
                run = self.reading.pop(number).part(0, 1)  # whoever reads has the other
        return run

    def read_next(self, until: int, most: int) -> list[tuple[int, Run]]:
        """The next ones that are due by then are being read from now on. Returns each with its time."""
        runs: list[tuple[int, Run]] = []
        while len(runs) < most and (found := self._waiting.pop(until)) is not None:
            number, message = found
            run = self.reading[number] = self._run(number, message)
            runs.append((due_of(message), run))
        return runs

    def unread(self, run: Run, due: int) -> None:
        """A message cannot be read: it waits on."""
        del self.reading[run.first]
        head: ColdHead = run.head
        message = cold_message(
            run.offset,
            due,
            head.tries,
            noted=head.noted,
            seen=run.tries > 0,
            by_clock=head.by_clock,
            texts=head.texts,
        )
        self._waiting.add(run.first, due, message)

    def place_of(self, number: int) -> int | None:
        """Where the record of a message is; None: it is not here."""
        message = self._waiting.get(number)
        if message is not None:
            return place_of(message)
        run = self.reading.get(number)
        return None if run is None else run.offset

    def noted(self, number: int) -> TriesNote | None:
        """What the log has noted of a message apart from its record."""
        run = self.get(number)
        return None if run is None or not run.head.noted else TriesNote.of(run.head)

    def move(self, number: int, place: int) -> None:
        """The record of a message that is here is there from now on."""
        message = self._waiting.get(number)
        if message is None:
            self.reading[number].offset = place
        else:
            self._waiting.replace(number, moved(message, place))

    def shift(self, number: int, more_ms: int) -> None:
        """A time of the wall clock comes so much later, or earlier."""
        message = self._waiting.get(number)
        if message is not None and tries_of(message) & _BY_CLOCK:
            due = max(due_of(message) + more_ms, 0)
            self._waiting.add(
                number, due, packed(place_of(message), due, tries_of(message), message[PLAIN_BYTES:])
            )

    def known(self) -> Iterator[list[Run]]:
        """Those of which more is known than numbers: in lists, some of which are empty."""
        for numbers in batched(self):
            yield [
                run
                for number in numbers
                if len(self._waiting.get(number) or _MORE) > PLAIN_BYTES
                and (run := self.get(number)) is not None
            ]

    def freed(self) -> Iterator[None]:
        """Forget all, some in each step."""
        for _ in taken_out(self._waiting.pop_any, self._waiting):
            yield

    def _run(self, number: int, message: bytes) -> Run:
        numbers = tries_of(message)
        head = ColdHead(
            numbers & _TRIES_MAX,
            due_of(message) + self.ahead_ms(),
            numbers & _NOTED > 0,
            numbers & _BY_CLOCK > 0,
            WAITING_BYTES + len(message),
            json.loads(message[PLAIN_BYTES:]) if len(message) > PLAIN_BYTES else {},
        )
        return Run(head, [b""], number, int(numbers & _SEEN > 0), place_of(message))
