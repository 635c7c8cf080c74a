"""How far the answers to one connection's ACKs are behind, because they wait for the disk.

The ACKs that wait may be more than the credits that the connection has ever used (and two). Then further
CONSUMEs line up only when some of those ACKs are answered. Otherwise the answers would fall ever further
behind.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dms.engine import Credit, deleted

if TYPE_CHECKING:
    from shared.net.connection import Connection
    from shared.storage.store import Ticket

ACKS_BEYOND_CREDITS = 2
"""One for the commit under way and one for the next, so that a consumer with one credit never waits for the
disk."""


class AckLag:
    """`acking`: for each ACK that is not answered, and maybe for answered ones before it, what it waits for.

    `credits_most`: the most credits that the connection has used, those that wait and those that are held.
    `deferred`: CONSUMEs that wait until ACKs are answered.
    """

    __slots__ = ("_connection", "acking", "credits_most", "deferred")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.credits_most = 0
        # Made when first needed: an empty deque is 760 bytes, and most connections are idle.
        self.acking: deque[Ticket] | tuple[Ticket, ...] = ()
        self.deferred: deque[Credit] | tuple[()] = ()

    def expect(self, ticket: Ticket, count: int) -> None:
        """`count` more ACKs are answered when `ticket` is done."""
        acking = self.acking
        if isinstance(acking, tuple):
            acking = self.acking = deque()
        elif acking and acking[-1].done:  # then all are
            acking.clear()
        acking.extend((ticket,) * count)

    @property
    def is_behind(self) -> bool:
        """Whether so many ACKs wait for the disk that further CONSUMEs must not line up yet."""
        acking = self.acking
        if isinstance(acking, deque):
            while acking and acking[0].done:
                acking.popleft()
        return len(acking) > self.credits_most + ACKS_BEYOND_CREDITS

    def defer(self, credit: Credit) -> None:
        """Have a credit line up when fewer ACKs wait."""
        if isinstance(self.deferred, tuple):
            self.deferred = deque()
        self.deferred.append(credit)
        if len(self.deferred) == 1:
            self._await_oldest()

    def _await_oldest(self) -> None:
        self.acking[0].when_done(self._connection.guarded(self._line_up))

    def _line_up(self, ticket: Ticket) -> None:
        """ACKs are answered: CONSUMEs behind them line up."""
        deferred = self.deferred
        assert isinstance(deferred, deque)
        while deferred and not self.is_behind:
            credit = deferred.popleft()
            if credit.left and credit.queue.deleted:
                credit.consumer.end(credit, deleted(credit.queue))
            elif credit.left:
                credit.queue.line_up(credit)
        if deferred:
            self._await_oldest()
