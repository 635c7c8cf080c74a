"""The row of a queue: the messages that are ready, the next one out first.

In memory the row is read from the front, and gets new messages at the end. Those that come back go before all
that were never given out; with priorities, before those of their own. So each has its old place. Of a durable
queue only the front need be in memory. The rest, which is *cold*, is in the log alone, and is read back when
the front has gone.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from dmp.memory import Memory
from dmp.message import Message, sizes
from shared.queues.base import HOT_LEAST_BYTES

if TYPE_CHECKING:
    from dmp.queue_log import Cold, QueueLog

_NUMBER = attrgetter("number")


class ReadyMessages:
    """The messages of a queue in memory: those with the highest priority first, each in order of arrival.

    `most`: the highest priority; a message that asks for more has that. All that come back were in front of
    those that were never given out. So of one priority they go first, by their numbers: as runs, each of
    messages with consecutive numbers.
    """

    __slots__ = ("_came", "_requeued", "_top", "count")

    def __init__(self, most: int = 0) -> None:
        self._came = tuple([deque[Message]() for _ in range(most + 1)])
        """The messages of each priority that were never given out."""
        self._requeued = tuple([list[tuple[int, list[Message]]]() for _ in range(most + 1)])
        """Heaps of runs of the others, by their first numbers."""
        self._top = 0  # no message has a higher priority
        self.count = 0

    @property
    def in_order(self) -> bool:
        """Whether all go in order of arrival: there are no priorities."""
        return len(self._came) == 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Message]:
        for came, requeued in zip(reversed(self._came), reversed(self._requeued), strict=True):
            for _, run in sorted(requeued):
                yield from run
            yield from came

    def first(self) -> Message:
        """The next one out. Some must be there."""
        top = self._find_top()
        requeued = self._requeued[top]
        return requeued[0][1][0] if requeued else self._came[top][0]

    def first_number(self) -> int:
        """The smallest number. Some must be there."""
        requeued = [heap[0][0] for heap in self._requeued if heap]
        return min([*requeued, *[came[0].number for came in self._came if came]])

    def take(self, most: int) -> list[Message]:
        """Take some of the next ones out, up to `most`: at least one, where there is one."""
        if not self.count:
            return []
        top = self._find_top() if self._top else 0
        requeued = self._requeued[top]
        if requeued:
            taken = heappop(requeued)[1]
            if len(taken) > most:
                heappush(requeued, (taken[most].number, taken[most:]))
                del taken[most:]
        else:
            came = self._came[top]
            taken = [came.popleft() for _ in range(min(most, len(came)))]
        self.count -= len(taken)
        return taken

    def add(self, messages: Sequence[Message]) -> None:
        """Put messages behind all others of their priorities."""
        self.count += len(messages)
        came = self._came
        if len(came) == 1:
            came[0].extend(messages)
            return
        for message in messages:
            came[self._level(message)].append(message)

    def requeue(self, messages: Sequence[Message]) -> None:
        """Messages that were taken return to their places; in the order of their numbers."""
        self.count += len(messages)
        runs: dict[int, list[Message]] = {}
        for message in messages:
            level = self._level(message)
            run = runs.get(level)
            if run is not None and message.number == run[-1].number + 1:
                run.append(message)
            else:
                runs[level] = run = [message]
                heappush(self._requeued[level], (message.number, run))

    def _level(self, message: Message) -> int:
        """The priority that a message has here, now that it comes."""
        most = len(self._came) - 1
        if not most:
            return 0
        level = min(message.head.noted.priority, most)
        self._top = max(self._top, level)
        return level

    def _find_top(self) -> int:
        """The highest priority of which there are some. Some must be there."""
        while not (self._requeued[self._top] or self._came[self._top]):
            self._top -= 1
        return self._top


@attrs.define(eq=False)
class Row:
    """All that is ready in one queue. `body_bytes`, `cost_bytes`: of the messages in memory."""

    _memory: Memory
    _priority_max: int
    ready: ReadyMessages = attrs.field(init=False)
    """The messages in memory."""
    log: "QueueLog | None" = attrs.field(default=None, init=False)
    """The queue's, where it is durable."""
    cold: "Cold | None" = attrs.field(default=None, init=False)
    body_bytes: int = attrs.field(default=0, init=False)
    cost_bytes: int = attrs.field(default=0, init=False)
    _when_loaded: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.ready = ReadyMessages(self._priority_max)

    def __len__(self) -> int:
        return self.ready.count if self.cold is None else self.ready.count + self.cold.count

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
        self.ready.add(messages)
        self._count(messages)

    def load(self, messages: list[Message]) -> None:
        """Messages that were cold are in memory now."""
        self._memory.take(sizes(messages)[1])
        self.ready.add(messages)
        self._count(messages)

    def put_back(self, messages: list[Message]) -> None:
        """Messages that were taken return to their places."""
        messages.sort(key=_NUMBER)
        self.ready.requeue(messages)
        self._count(messages)

    def _count(self, messages: Sequence[Message]) -> None:
        body_bytes, cost_bytes = sizes(messages)
        self.body_bytes += body_bytes
        self.cost_bytes += cost_bytes

    def take(self, most: int, body_bytes_most: float = math.inf) -> list[Message]:
        """Take some of the next ones out, up to `most`, and so many bytes of bodies and one message: at least
        one, where there is one in memory."""
        ready = self.ready
        if (
            most > 1 and ready.count > 1 and body_bytes_most < math.inf
        ):  # as many as fit, where they are alike
            most = min(most, int(body_bytes_most) // max(ready.first().head.body_bytes, 1) + 1)
        messages = ready.take(most)
        if len(messages) == 1:
            head = messages[0].head
            self.body_bytes -= head.body_bytes
            self.cost_bytes -= head.cost_bytes
            return messages
        body_bytes, cost_bytes = sizes(messages)
        if body_bytes > body_bytes_most and body_bytes - messages[-1].head.body_bytes > body_bytes_most:
            fitting = bisect_right(
                [*accumulate([message.head.body_bytes for message in messages])], body_bytes_most
            )
            ready.requeue(messages[fitting + 1 :])
            del messages[fitting + 1 :]
            body_bytes, cost_bytes = sizes(messages)
        self.body_bytes -= body_bytes
        self.cost_bytes -= cost_bytes
        return messages

    def pop(self) -> Message:
        """Take the next one out. Some must be in memory."""
        return self.take(1)[0]

    def clear(self) -> ReadyMessages:
        """Nothing is ready any more. Returns what was in memory, which is still to be freed."""
        ready, self.ready = self.ready, ReadyMessages(self._priority_max)
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
        if not self.ready.count and self.cold is not None:
            self.cold.fetch()
        return self.ready.count > 0

    @property
    def is_loading(self) -> bool:
        """Whether the next message is on its way from the log."""
        return not self.ready.count and self.cold is not None and self.cold.reading

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_loaded.append(callback)

    def tell_loaded(self) -> None:
        waiting, self._when_loaded = self._when_loaded, []
        for callback in waiting:
            callback()
