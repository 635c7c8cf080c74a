"""The row of a queue: the messages that are ready, the next one out first.

In memory the row is one deque, or one for each priority. It is read from the front, gets new messages at the
end, and takes those that come back to their old places. Of a durable queue only the front need be in memory.
The rest, which is *cold*, is in the log alone, and is read back when the front has gone.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import attrs

from dmp.memory import Memory
from dmp.message import Message, sizes
from shared.queues.base import HOT_LEAST_BYTES

if TYPE_CHECKING:
    from dmp.queue_log import Cold, QueueLog

_NUMBER = attrgetter("number")
_FEW = 16  # up to so many are inserted one by one. For more, all that stands among them is sorted again.


class ReadyRow(deque[Message]):
    """A row of ready messages in order of arrival.

    What comes back stood near the front. Putting it back costs the same however much stands behind it, which
    may be millions, and hardly more where others gave back much before it.
    """

    __slots__ = ()

    def put_back(self, messages: list[Message]) -> None:
        """Put back messages that were here before, given in the order of their numbers."""
        if not (self and messages) or messages[-1].number < self[0].number:
            self.extendleft(reversed(messages))
            return
        if len(messages) <= _FEW:
            end = 1
            for message in messages:
                end = self._reach(message.number, end)
                insort(self, message, 0, min(end, len(self)), key=_NUMBER)
            return
        first, last = messages[0].number, messages[-1].number
        start = bisect_left(self, first, 0, min(self._reach(first), len(self)), key=_NUMBER)
        behind = len(self) - start
        self.rotate(-start)
        among: list[Message] = []
        while len(among) < behind and self[0].number < last:
            among.append(self.popleft())
        among += messages
        among.sort(key=_NUMBER)
        self.extendleft(reversed(among))
        self.rotate(start)

    def _reach(self, number: int, end: int = 1) -> int:
        """The place from which on nothing has a smaller number. It is looked for from the front, where a
        deque is quickly reached."""
        while end < len(self) and self[end].number < number:
            end *= 2
        return end

    def first_number(self) -> int:
        """The smallest there is; not while it is empty."""
        return self[0].number


class Priorities:
    """The highest first, each in order of arrival. A message that asks for more than `most` gets that."""

    __slots__ = ("_count", "_rows", "_top")

    def __init__(self, most: int) -> None:
        self._rows = [ReadyRow() for _ in range(most + 1)]
        self._top = 0  # no message has a higher one
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(reversed(self._rows))

    def __getitem__(self, place: int, /) -> Message:
        assert place == 0, "only the next one out can be looked at"
        return self._front()[0]

    def popleft(self) -> Message:
        message = self._front().popleft()
        self._count -= 1
        return message

    def extend(self, messages: Iterable[Message], /) -> None:
        rows, most = self._rows, len(self._rows) - 1
        for message in messages:
            priority = min(message.head.noted.priority, most)
            rows[priority].append(message)
            self._count += 1
            if priority > self._top:
                self._top = priority

    def put_back(self, messages: list[Message]) -> None:
        most = len(self._rows) - 1
        of: dict[int, list[Message]] = {}
        for message in messages:
            of.setdefault(min(message.head.noted.priority, most), []).append(message)
        for priority, those in of.items():
            self._rows[priority].put_back(those)
        self._count += len(messages)
        self._top = max([self._top, *of])

    def first_number(self) -> int:
        return min(row[0].number for row in self._rows if row)

    def clear(self) -> None:
        for row in self._rows:
            row.clear()
        self._count = self._top = 0

    def _front(self) -> ReadyRow:
        """Raises IndexError where there is nothing."""
        rows = self._rows
        if not self._count:
            raise IndexError("nothing is ready")
        while not rows[self._top]:
            self._top -= 1
        return rows[self._top]


Ready: TypeAlias = ReadyRow | Priorities
"""`ready[0]` is the next one out."""


@attrs.define(eq=False)
class Row:
    """All that is ready in one queue. `body_bytes`, `cost_bytes`: of the messages in memory."""

    _memory: Memory
    _priority_max: int
    ready: Ready = attrs.field(init=False)
    """The messages in memory."""
    log: "QueueLog | None" = attrs.field(default=None, init=False)
    """The queue's, where it is durable."""
    cold: "Cold | None" = attrs.field(default=None, init=False)
    body_bytes: int = attrs.field(default=0, init=False)
    cost_bytes: int = attrs.field(default=0, init=False)
    _when_loaded: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.ready = self._empty()

    def _empty(self) -> Ready:
        return Priorities(self._priority_max) if self._priority_max else ReadyRow()

    def __len__(self) -> int:
        return len(self.ready) if self.cold is None else len(self.ready) + self.cold.count

    @property
    def all_body_bytes(self) -> int:
        """The bytes of the bodies of all that is ready, in memory and on disk."""
        return self.body_bytes if self.cold is None else self.body_bytes + self.cold.body_bytes

    @property
    def has_cold(self) -> bool:
        """Whether some of the row is in the log alone: what comes now needs a record."""
        return self.cold is not None and self.cold.count > 0

    def add(self, messages: list[Message], *, may_cool: bool) -> None:
        """Put messages at the end. They are cold where others before them are. So they are, too, where they
        may, and memory is scarce, and some of the row waits in memory."""
        cold = self.cold
        if cold is not None and (
            cold.count
            or (
                may_cool
                and self.cost_bytes > HOT_LEAST_BYTES
                and (self._memory.scarce or ((payer := messages[0].head.payer) is not None and payer.scarce))
                and messages[0].offset >= 0
                and messages[-1].offset >= 0
            )
        ):
            cold.add(messages)
            self._memory.leave(messages)
            return
        if self.log is not None:
            self.log.keep(messages)
        self.ready.extend(messages)
        self._count(messages)

    def load(self, messages: list[Message]) -> None:
        """Messages that were cold are in memory now."""
        self._memory.take(sizes(messages)[1])
        self.ready.extend(messages)
        self._count(messages)

    def put_back(self, messages: list[Message]) -> None:
        """Messages that were taken return to their places."""
        if messages:
            messages.sort(key=_NUMBER)
            self.ready.put_back(messages)
            self._count(messages)

    def _count(self, messages: Sequence[Message]) -> None:
        body_bytes, cost_bytes = sizes(messages)
        self.body_bytes += body_bytes
        self.cost_bytes += cost_bytes

    def count_out(self, messages: Sequence[Message]) -> None:
        """Count messages that were taken out of `ready`, whoever took them."""
        body_bytes, cost_bytes = sizes(messages)
        self.body_bytes -= body_bytes
        self.cost_bytes -= cost_bytes

    def pop(self) -> Message:
        message = self.ready.popleft()
        self.body_bytes -= message.head.body_bytes
        self.cost_bytes -= message.head.cost_bytes
        return message

    def clear(self) -> Ready:
        """Nothing is ready any more. Returns what was in memory, which is still to be freed."""
        ready, self.ready = self.ready, self._empty()
        self.body_bytes = self.cost_bytes = 0
        return ready

    def drop_cold(self) -> tuple[tuple[int, int] | None, list[bytes]]:
        """What is cold is there no more. Returns its numbers, from the first to the end, and the references
        of its large bodies."""
        cold = self.cold
        if cold is None or not cold.count:
            return None, []
        numbers, large = (cold.first, cold.end), [*cold.large.values()]
        if self.log is not None:
            self.log.cold_left()
        cold.large = {}
        cold.clear()
        self.tell_loaded()
        return numbers, large

    def load_front(self) -> bool:
        """Have some of the row in memory, where nothing is; whether something is there now."""
        if not self.ready and self.cold is not None:
            self.cold.fetch()
        return bool(self.ready)

    @property
    def is_loading(self) -> bool:
        """Whether the next message is on its way from the log."""
        return not self.ready and self.cold is not None and self.cold.reading

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_loaded.append(callback)

    def tell_loaded(self) -> None:
        waiting, self._when_loaded = self._when_loaded, []
        for callback in waiting:
            callback()
