"""Dead letters on their way: from the queue that they left to the queues that their exchange finds for them.

A letter costs some thirty times what a message costs that is put into a queue, and many may die at once: all
that expires behind one that lived longer, all that a consumer rejects in one word. So a few are buried at
once, and the rest in turns, those who wait for answers in between; queues take turns too, a letter each, so
that many dead of one do not hold up the few of another. Until its turn a letter is in no queue, and counts as
memory; its record stands, so a restart has it in its old queue again.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dmp import dead_letters
from dmp.message import Head, Message
from dmp.queues import Queue
from dmp.refusals import Refusal
from shared.errors import StoreError

if TYPE_CHECKING:
    from dmp.broker import Broker

LETTERS_PER_TURN = 32
"""A few milliseconds."""
LETTER_BYTES = 64
"""Properties of so many bytes cost as much as a letter: tables are decoded, and packed again."""
LETTER_QUEUES = 16
"""And so does putting it into so many queues."""
LETTER_ROUTING = 32
"""And so much work to find these, in messages that could have been put into a queue meanwhile."""


class Burials:
    """One broker's. `deadline` and `heaped` are the timers', for the next turn."""

    __slots__ = ("_broker", "_busy", "_dying", "_turns", "deadline", "heaped")

    def __init__(self, broker: "Broker") -> None:
        self.deadline = self.heaped = math.inf
        self._broker = broker
        self._dying: dict[Queue, deque[tuple[deque[Message], str]]] = {}
        self._turns: deque[Queue] = deque()
        self._busy = False

    def add(self, queue: Queue, messages: Sequence[Message], reason: str) -> None:
        """They have left `queue` by `reason`."""
        if not messages:
            return
        waited = bool(self._turns)
        dying = self._dying.get(queue)
        if dying is None:
            dying = self._dying[queue] = deque()
            self._turns.append(queue)
        dying.append((deque(messages), reason))
        if not waited and not self._busy:  # else one dead letter pushes out another: one after the other
            self._bury_some()

    def expire(self, now: float) -> None:
        """The timers': it is our turn again."""
        self._bury_some()

    def _bury_some(self) -> None:
        work = 0
        self._busy = True
        try:
            while self._turns and work < LETTERS_PER_TURN:
                queue = self._turns.popleft()
                dying = self._dying[queue]
                messages, reason = dying[0]
                message = messages.popleft()
                if not messages:
                    dying.popleft()
                if dying:
                    self._turns.append(queue)
                else:
                    del self._dying[queue]
                work += 1 + len(message.head.properties) // LETTER_BYTES + self._bury(queue, message, reason)
        finally:
            self._busy = False
            if self._turns:
                timers = self._broker.timers
                timers.set(self, timers.now())

    def _bury(self, queue: Queue, message: Message, reason: str) -> int:
        """Put it where its exchange says, or lose it; how much work it was beside that of any letter."""
        broker = self._broker
        found: list[Queue] = []
        routing = 0
        try:
            head, found, routing = addressed(broker, queue, message, reason)
            targets = broker.with_room(head, found)
            if not targets:
                broker.counts.dead_letters_lost += 1
                queue.leave([message])
                return len(found) // LETTER_QUEUES + routing // LETTER_ROUTING
            self._move(queue, message, head, targets)
            broker.counts.dead_lettered += 1
        except Refusal:  # the exchange is not there
            broker.counts.dead_letters_lost += 1
            queue.leave([message])
        except StoreError:  # its record stands: a restart brings it back
            broker.counts.dead_letters_lost += 1
            queue.lose([message])
        return len(found) // LETTER_QUEUES + routing // LETTER_ROUTING

    def _move(self, queue: Queue, message: Message, head: Head, targets: Sequence[Queue]) -> None:
        """Into the targets, and out of the queue, as one where both are on the disk."""
        broker = self._broker
        logged = [(target, target.log) for target in targets if target.log is not None]
        if message.offset >= 0 and logged and queue.log is not None and not queue.deleted:
            queue.log.take(message)
            taken = queue.log.log, queue.log.taken_record(), 1
            broker.publish_logged(head, logged, (message.body,), taken)
            queue.lose([message])  # the record that it was taken went along
            broker.log_changed(queue.log)
            for target in targets:
                if target.log is None:
                    target.publish(head, (message.body,))
            return
        broker.publish_to(head, targets, (message.body,))
        queue.leave([message])


def addressed(broker: "Broker", queue: Queue, message: Message, reason: str) -> tuple[Head, list[Queue], int]:
    """A message that dies in `queue`, as a letter; the queues that its exchange finds for it; and how much
    work that was, in messages that could have been put into a queue meanwhile. Raises Refusal.
    """
    arguments = queue.kind.arguments
    exchange = arguments.dead_letter_exchange
    assert exchange is not None
    key = arguments.dead_letter_key
    head = dead_letters.head_of(message, queue.name, reason, exchange, key, broker.wall_seconds())
    queues, work = broker.route(exchange, head)
    return head, dead_letters.without_circles(head, queues, reason), work
