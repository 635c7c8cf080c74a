"""Messages of a durable queue that wait for their time, or have waited for it, and are in its log alone.

The queue knows of each what decides about it, as `shared.queues.cold` has it. Beside the count of its failed
tries stand three marks: the log has noted its tries or its time apart from its record; somebody had it; its
time is one of the wall clock. Behind these stands the size of its body.
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
_SIZE_BYTES = 4
_KNOWN_BYTES = PLAIN_BYTES + _SIZE_BYTES
"""Of a message of which nothing else is known."""
DUE_BYTES = 240
"""Memory of a message whose time has come, beside what it takes anyway: 232 by tracemalloc, with its place in
the row."""


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
    """What is known of a cold message: as much of a `Head` as those need who take it out, or have it stand in
    the row. `noted`: its tries and its time are in the log, apart from its record. `texts`: headers."""

    tries: int
    due_ms: int
    noted: bool
    by_clock: bool
    cost_bytes: int
    body_bytes: int
    priority: int
    texts: Mapping[str, str]

    cold: ClassVar[bool] = True
    large: ClassVar[bool] = False
    payer: ClassVar[Any] = None

    def text_in(self, header: bytes) -> str:
        return self.texts.get(header.decode(errors="replace"), "")


IN_ROW = ColdHead(0, 0, False, False, 0, 0, 0, {})
"""What stands in the row for a message whose time has come has this head, and no body, until it is read."""


def cold_message(
    place: int,
    due: int,
    tries: int,
    *,
    noted: bool,
    seen: bool,
    by_clock: bool,
    body_bytes: int,
    priority: int,
    texts: Mapping[str, str],
) -> bytes:
    """`due`: by the broker's clock, in milliseconds; `seen`: somebody may have had it. `priority`: where its
    queue has some."""
    marks = _NOTED * noted | _SEEN * seen | _BY_CLOCK * by_clock
    more = json.dumps((priority, texts)).encode() if texts or priority else b""
    return packed(place, due, marks | min(tries, _TRIES_MAX), body_bytes.to_bytes(_SIZE_BYTES) + more)


@attrs.define(eq=False)
class ColdRecords:
    """Those of one queue, by number. `ahead_ms`: how much the wall clock is ahead of the queue's."""

    ahead_ms: Callable[[], int] = attrs.field(default=lambda: 0, init=False)
    _waiting: Waiting[bytes] = attrs.field(factory=Waiting, init=False)
    due: dict[int, bytes] = attrs.field(factory=dict, init=False)
    """Those whose time has come: each stands in the row by a run with the head `IN_ROW`."""
    due_body_bytes: int = attrs.field(default=0, init=False)
    """Of their bodies."""
    reading: dict[int, Run] = attrs.field(factory=dict, init=False)
    """Those of them that are being read back."""
    record_bytes: float = attrs.field(default=0.0, init=False)
    """Of all records; of those that have left it is the mean."""
    memory_bytes: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._waiting) + len(self.due)

    def __contains__(self, number: object) -> bool:
        return number in self._waiting or number in self.due

    def __iter__(self) -> Iterator[int]:
        """Their numbers, in no order. None may come or go meanwhile."""
        return chain(self._waiting.numbers, self.due)

    @property
    def waiting(self) -> list[int]:
        """The numbers of those whose time has not come."""
        return [*self._waiting.numbers]

    @property
    def next(self) -> float:
        """When the next one is due."""
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
        message = self._known_of(number)
        return None if message is None else self._run(number, message)

    def take(self, number: int, stride: int = 0) -> Run | None:
        """Take out a message, as a cold run; `stride`: the bytes of its record, where they are known."""
        run = self.get(number)
        if run is not None:
            self.memory_bytes -= run.head.cost_bytes
            run.stride = stride or self.mean_bytes
            self.record_bytes -= run.stride
            if self._waiting.take(number) is None:
                del self.due[number]
                self.due_body_bytes -= run.head.body_bytes
                self.reading.pop(number, None)
        return run

    def pop_due(self, now: float) -> Run | None:
        """The message that has been due for longest waits no more, and is of those that are `due`. None: none
        has come due."""
        found = self._waiting.pop(now)
        if found is None:
            return None
        number, message = found
        self.due[number] = message
        run = self._run(number, message)
        self.due_body_bytes += run.head.body_bytes
        self.memory_bytes += DUE_BYTES
        return run

    def due_ms(self, number: int) -> int:
        """When a message that is due came to be so."""
        return due_of(self.due[number])

    def place_of(self, number: int) -> int | None:
        """Where the record of a message is; None: it is not here."""
        message = self._known_of(number)
        return None if message is None else place_of(message)

    def noted(self, number: int) -> TriesNote | None:
        """What the log has noted of a message apart from its record."""
        run = self.get(number)
        return None if run is None or not run.head.noted else TriesNote.of(run.head)

    def move(self, number: int, place: int) -> None:
        """The record of a message that is here is there from now on."""
        message = self._waiting.get(number)
        if message is not None:
            self._waiting.replace(number, moved(message, place))
            return
        self.due[number] = moved(self.due[number], place)
        if number in self.reading:
            self.reading[number].offset = place

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
            messages = [(number, self._known_of(number)) for number in numbers]
            yield [
                self._run(number, message)
                for number, message in messages
                if message is not None and len(message) > _KNOWN_BYTES
            ]

    def freed(self) -> Iterator[None]:
        """Forget all, some in each step."""
        for _ in chain(
            taken_out(self._waiting.pop_any, self._waiting), taken_out(self.due.popitem, self.due)
        ):
            yield

    def _known_of(self, number: int) -> bytes | None:
        return self._waiting.get(number) or self.due.get(number)

    def _run(self, number: int, message: bytes) -> Run:
        numbers = tries_of(message)
        priority, texts = json.loads(message[_KNOWN_BYTES:]) if len(message) > _KNOWN_BYTES else (0, {})
        head = ColdHead(
            numbers & _TRIES_MAX,
            due_of(message) + self.ahead_ms(),
            numbers & _NOTED > 0,
            numbers & _BY_CLOCK > 0,
            WAITING_BYTES + len(message) + DUE_BYTES * (number in self.due),
            int.from_bytes(message[PLAIN_BYTES:_KNOWN_BYTES]),
            priority,
            texts,
        )
        return Run(head, [b""], number, int(numbers & _SEEN > 0), place_of(message))
