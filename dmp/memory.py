"""How much memory waiting messages may take, together and by user, and who waits when it is too much.

A message counts for the user who has published it, until it has left its queue or is on disk alone. A message
that a start finds in a log counts for nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import attrs

from dmp.refusals import Code, Refusal
from shared.budget import Account, CacheBytes, Caches, OverBudget
from shared.queues.core import SLACK_BYTES, QueueMemory

if TYPE_CHECKING:
    from shared.queues.runs import Run
    from shared.queues.timers import Timers

_K = TypeVar("_K")
_V = TypeVar("_V")

_TENTH = 0.1  # of the bound: publishers go on when so much is free, and not at every message that leaves
LEAST_BYTES = 1 << 20
"""Messages may always hold so much, whatever else the budget is used for. A publisher that waits then waits
for messages to leave, and not for bindings that may stay for good."""
LOOK_AGAIN_SECONDS = 1.0
"""While the budget has no room: it may be others that give something back, and they tell nobody."""
MESSAGES_PERCENT, ACCOUNT_PERCENT = 75, 50
"""Parts of the budget for messages alone, and for anything else alone. They leave room for those who come to
take messages."""


def check(account: Account, size: int, code: Code = Code.PRECONDITION_FAILED, *, user: str = "") -> None:
    """Raises Refusal where the budget, or the user's share of it, has no room for so many bytes more."""
    try:
        account.check(size, user)
    except OverBudget as error:
        raise Refusal(code, str(error)) from None


@attrs.define(eq=False)
class Memory(QueueMemory):
    """`total_bytes`: of messages that wait or are held, of transactions, and of the books of large bodies.
    Above `hot_bytes`, or where it is full, memory is `scarce`: what durable queues have on disk is not kept
    here, too.

    It is full above `bytes_max`, or where the budget has no room; `why` says which. Publishers' connections
    are then not read until there is room again (or are refused, where they hold unacknowledged messages
    themselves: `amqp.publishing` says why). So it is for a user whose `UserMemory` is full. `deadline` and
    `scheduled` are the timers'.
    """

    bytes_max: int
    hot_bytes: int
    _account: Account
    _timers: Timers
    why: str = ""
    cold_bytes: int = 0
    """Of `loaded_bytes`: what messages take that are on disk alone."""
    deadline: float = math.inf
    scheduled: float = math.inf
    _payers: WeakValueDictionary[str, UserMemory] = attrs.Factory(WeakValueDictionary)
    _waiting: dict[object, _Waiter] = attrs.Factory(dict)
    _ahead: dict[object, _Waiter] = attrs.Factory(dict)  # of those

    def of(self, user: str) -> UserMemory | None:
        """What counts the messages that a user publishes; None where he may have all there is."""
        if not self._account.shares.bounded(user):
            return None
        payer = self._payers.get(user)
        if payer is None:
            payer = self._payers[user] = UserMemory(self, user)
        return payer

    @property
    def scarce(self) -> bool:
        return self.loaded_bytes - self.cold_bytes + self.held_bytes > self.hot_bytes or self.full

    @property
    def total_bytes(self) -> int:
        return self.loaded_bytes + self.held_bytes

    def left(self, runs: Iterable[Run]) -> None:
        """Messages are not in memory any more, which the queue has counted: nor do they count for their
        publishers. Publishers who wait go on once that is enough."""
        for run in runs:
            head = run.head
            if head.payer is not None:
                head.payer.add(-head.cost_bytes * len(run.bodies))
        self.changed()

    def take_bounds(self, bytes_max: int, hot_bytes: int) -> None:
        """Hold to these from now on."""
        self.bytes_max, self.hot_bytes = bytes_max, hot_bytes
        self.sync()

    def take(self, size: int, payer: UserMemory | None = None) -> None:
        """Charge for bytes beside those of the queues."""
        if payer is not None:
            payer.add(size)
        self.loaded_bytes += size
        self.changed()

    def give(self, size: int, payer: UserMemory | None = None) -> None:
        """Give bytes back. Publishers who wait go on once that is enough."""
        if payer is not None:
            payer.add(-size)
        self.loaded_bytes -= size
        self.changed()

    def changed(self) -> None:
        """The queues' messages take more, or less: charge that once it is enough."""
        size = self.loaded_bytes + self.held_bytes
        more = size - self.loaded_charged - self.held_charged
        if not -SLACK_BYTES < more < SLACK_BYTES or (more and size <= 0):
            self.sync()

    def when_free(
        self,
        who: object,
        callback: Callable[[], None],
        *,
        ahead: bool = False,
        payer: UserMemory | None = None,
    ) -> None:
        """Call it once, when it, or the user's part of it, is not full any more; at once if it is not so.

        All are called then, and it may be full again before the last has its turn. Who waits again for that
        reason goes `ahead` of the others: else those before it could hold it up for ever.
        """
        room = payer or self
        if not room.full:
            callback()
        elif ahead or who in self._ahead:
            self._ahead[who] = room, callback
        else:
            self._waiting[who] = room, callback

    def forget(self, who: object) -> None:
        """Drop the callback of one who does not wait any more."""
        self._ahead.pop(who, None)
        self._waiting.pop(who, None)

    def expire(self, now: float) -> None:
        """The timers': look whether others have given something back, or shares are others."""
        self.sync()
        for payer in [*self._payers.values()]:
            if payer.over:
                payer.look()

    def sync(self) -> None:
        held, account = self.total_bytes, self._account
        account.charge(held - self.loaded_charged - self.held_charged)
        self.loaded_charged, self.held_charged = self.loaded_bytes, self.held_bytes
        small, has_left = held <= LEAST_BYTES, held <= math.floor(self.bytes_max * (1 - _TENTH))
        over = not small and account.over
        if held > self.bytes_max or over:
            self._fill(over)
        elif self.full and has_left and (small or account.fits(math.floor(account.limit_bytes * _TENTH))):
            self._free()
        if self.full and has_left:
            self._look_again()

    def _look_again(self) -> None:
        self._timers.set(self, self._timers.now() + LOOK_AGAIN_SECONDS)

    def count_for(self, payer: UserMemory, size: int) -> None:
        """A user has so much more, or less: is that above his share?"""
        shares, most = self._account.shares, min(self.bytes_max, self._account.limit_bytes)
        shares.add(payer.user, size)
        payer.scarce = not shares.fits(payer.user, most / 2, 0)
        if not payer.over:
            payer.over = not shares.fits(payer.user, most, 0)
        elif shares.fits(payer.user, most * (1 - _TENTH), 0):
            payer.over = False
            self._call_waiting()
        if payer.over and self.deadline == math.inf:
            self._look_again()

    def _fill(self, over: bool) -> None:
        if self.full:
            return
        self.full = True
        self.why = "memory_bytes_max is reached"
        if over:
            try:
                self._account.check(SLACK_BYTES)
            except OverBudget as error:
                self.why = str(error)

    def _free(self) -> None:
        self.full = False
        self._call_waiting()

    def _call_waiting(self) -> None:
        """Call those who wait for what is not full now."""
        free: list[Callable[[], None]] = []
        for waiting in (self._ahead, self._waiting):
            for who, (room, callback) in [*waiting.items()]:
                if not room.full:
                    del waiting[who]
                    free.append(callback)
        for callback in free:
            callback()


@attrs.define(eq=False)
class UserMemory:
    """The memory of the messages that one user has published, who has a share of it.

    `over`: they take more than that, since they last took a tenth less. `scarce`: they take half of it, and
    what durable queues have on disk is not kept here, too.
    """

    _memory: Memory
    user: str
    held_bytes: int = 0
    over: bool = False
    scarce: bool = False
    _counted_bytes: int = 0  # what the account's shares know of

    @property
    def full(self) -> bool:
        return self.over or self._memory.full

    @property
    def why(self) -> str:
        return f"messages of {self.user} take his share of memory" if self.over else self._memory.why

    def add(self, size: int) -> None:
        """Messages take so many bytes more, or less."""
        self.held_bytes += size
        if not -SLACK_BYTES < self.held_bytes - self._counted_bytes < SLACK_BYTES or self.held_bytes <= 0:
            self.look()

    def look(self) -> None:
        """Find out whether they take more than the share."""
        size, self._counted_bytes = self.held_bytes - self._counted_bytes, self.held_bytes
        self._memory.count_for(self, size)


_Waiter = tuple[Memory | UserMemory, Callable[[], None]]
"""Who waits: for which memory, and what is called."""


class BudgetedCache(dict[_K, _V]):
    """A cache of one connection. Its owner states each entry's size, which is charged to the budget. If an
    entry does not fit, the cache is cleared.
    """

    __slots__ = ("_bytes", "_entries_max")

    def __init__(self, caches: Caches, entries_max: float = math.inf) -> None:
        super().__init__()
        self._bytes = CacheBytes(caches)
        self._entries_max = entries_max

    def has_room(self, size: int) -> bool:
        return len(self) < self._entries_max and self._bytes.fits(size)

    def keep(self, key: _K, value: _V, size: int) -> None:
        held = self._bytes
        if len(self) >= self._entries_max or not held.fits(size):
            self.forget()
        self[key] = value
        held.add(size)

    def forget(self) -> None:
        self.clear()
        self._bytes.cleared()


class Accounts:
    """What the budget has for each kind of thing that clients make grow."""

    def __init__(self, budget: Account) -> None:
        def account(name: str, percent: int) -> Account:
            return budget.account(name, budget.limit_bytes * percent // 100)

        self.messages = account("messages", MESSAGES_PERCENT)
        self.connections = account("connections", ACCOUNT_PERCENT)
        """Channels, consumers, transactions, leases, and the books of large bodies."""
        self.names = account("names", ACCOUNT_PERCENT)
        """Exchanges, queues and bindings."""
        self.caches = Caches(account("caches", ACCOUNT_PERCENT))
