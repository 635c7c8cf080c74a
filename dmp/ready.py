"""What is ready in a queue: a row of messages, or one row for each priority.

Both are read from the front, get new messages at the end, and take those that come back to their old places.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

from dmp.message import Message

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
