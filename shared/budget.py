"""One budget for the memory that grows because of what clients do (ARCHITECTURE.md, "Budget").

A user has no more of an account than his share (`shared.shares`). What counts in numbers, not in bytes, asks
`Account.new_shares` for the same. Sizes are the callers' estimates, with the overhead of Python's objects.

Memory with a small constant bound is not charged. The host keeps a quarter of the memory for it and for the
code. It is: known first bytes of messages (2 MiB each for pub/sub and KqueueMsgQ); recordings that wait 50 ms
(1 MiB a protocol); the batch that is being filled (8 MiB); the newest small appends (64 KiB); cached access
decisions (8 MiB a protocol); the last log lines and rates.
"""

import sys
from collections.abc import Callable, Iterator

import attrs

from shared.errors import BrokerError
from shared.metrics import Sample
from shared.shares import PercentOf, Shares, everything

CACHE_BYTES_MAX = 4 << 20
"""The bound of a connection's cache, every byte of which is charged: a thousand usual entries."""
CACHES_STEP_BYTES = 64 << 10
"""Caches charge their account in such steps."""


@attrs.define(eq=False)
class OverBudget(BrokerError):
    """The full account `account` cannot take `size` more bytes."""

    account: str
    size: int
    limit_bytes: int

    def __str__(self) -> str:
        return f"{self.account} may hold {self.limit_bytes} bytes, and {self.size} more do not fit"


class Account:
    """`used_bytes` of `limit_bytes`, which include those of the accounts within it.

    `refused`: how often this account itself had no room. `on_refused`: on the process's account; called with
    the account that had no room. `percent_of`: on the process's account; the share of each user.
    """

    __slots__ = (
        "_accounts",
        "_within",
        "limit_bytes",
        "name",
        "on_refused",
        "percent_of",
        "refused",
        "shares",
        "used_bytes",
    )

    def __init__(self, name: str, limit_bytes: int, within: "Account | None" = None) -> None:
        self.name = name
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.refused = 0
        self.on_refused: Callable[[Account], None] | None = None
        self.percent_of: PercentOf = everything
        self.shares = self.new_shares()
        self._within = within
        self._accounts: dict[str, Account] = {}

    def account(self, name: str, limit_bytes: int | None = None) -> "Account":
        """The account of this name within this one; opened with its own limit if it does not exist.

        Its full name has the accounts that contain it, except the process: `pubsub/subscriptions`.
        """
        found = self._accounts.get(name)
        if found is None:
            limit = self.limit_bytes if limit_bytes is None else min(limit_bytes, self.limit_bytes)
            full_name = name if self._within is None else f"{self.name}/{name}"
            found = self._accounts[name] = Account(full_name, limit, self)
        return found

    def new_shares(self) -> Shares:
        """Shares of another bound, for the same users."""
        return Shares(lambda user: self._process.percent_of(user))

    def fits(self, size: int) -> bool:
        """Whether `take` would succeed."""
        return self._full(size) is None

    @property
    def over(self) -> bool:
        """Whether this account, or one that contains it, is above its limit."""
        return self._full(0) is not None

    def check(self, size: int, user: str = "") -> None:
        """Raise OverBudget if this account, or one that contains it, has no room, or the user's share."""
        full = self._full(size)
        if full is not None:
            raise full._refusal(size)
        if not self.shares.fits(user, self.limit_bytes, size):
            raise OverBudget(f"{user}'s share of {self.name}", size, self.shares.of(user))

    def take(self, size: int, user: str = "") -> None:
        """Take bytes. Raises OverBudget as `check` does; nothing is taken then."""
        self.check(size, user)
        self.charge(size, user)

    def charge(self, size: int, user: str = "") -> bool:
        """Take bytes regardless of limits. Returns whether an account is `over` its limit now."""
        if user:
            self.shares.add(user, size)
        account: Account | None = self
        over = False
        while account is not None:
            account.used_bytes += size
            if account.used_bytes > account.limit_bytes:
                over = True
            account = account._within
        return over

    def give(self, size: int, user: str = "") -> None:
        """Give bytes back."""
        self.charge(-size, user)

    def close(self) -> None:
        """Give back all that is left. Later changes of this account no longer count in others."""
        within, self._within = self._within, None
        if within is not None:
            within.give(self.used_bytes)
            within._accounts.pop(self.name.rpartition("/")[2], None)

    def all(self) -> "Iterator[Account]":
        """This account, and all accounts within it."""
        yield self
        for account in self._accounts.values():
            yield from account.all()

    def samples(self) -> Iterator[Sample]:
        """Metrics of this account and of those in it."""
        labels = (("account", self.name),)
        yield Sample("budget_bytes", self.used_bytes, "Memory that clients made grow.", "gauge", labels)
        yield Sample("budget_bytes_max", self.limit_bytes, "Its bound.", "gauge", labels)
        yield Sample("budget_refused_total", self.refused, "Requests that it had no room for.", labels=labels)
        for account in self._accounts.values():
            yield from account.samples()

    def _refusal(self, size: int) -> OverBudget:
        self.refused += 1
        process = self._process
        if process.on_refused is not None:
            process.on_refused(self)
        return OverBudget(self.name, size, self.limit_bytes)

    @property
    def _process(self) -> "Account":
        account = self
        while account._within is not None:
            account = account._within
        return account

    def _full(self, size: int) -> "Account | None":
        account: Account | None = self
        while account is not None:
            if account.used_bytes + size > account.limit_bytes:
                return account
            account = account._within
        return None


@attrs.define(eq=False)
class Caches:
    """The bytes of several caches together, charged to their account in steps."""

    _account: Account
    held_bytes: int = 0
    _charged_bytes: int = 0

    _over: bool = False  # whether the budget had no room at the last step

    @property
    def full(self) -> bool:
        self._over = self._over and self._account.over
        return self._over

    def add(self, size: int) -> None:
        """Count `size` more bytes; negative: fewer."""
        self.held_bytes += size
        if abs(self.held_bytes - self._charged_bytes) >= CACHES_STEP_BYTES or not self.held_bytes:
            self._account.charge(self.held_bytes - self._charged_bytes)
            self._charged_bytes = self.held_bytes
            self._over = self._account.over


@attrs.define(eq=False)
class CacheBytes:
    """The bytes of one cache. Its owner asks `fits` before it adds, and clears the cache if not: one entry
    always has room."""

    _all: Caches
    bytes_max: float = CACHE_BYTES_MAX
    held_bytes: int = 0

    def fits(self, size: int) -> bool:
        return self.held_bytes + size <= self.bytes_max and not self._all.full

    def add(self, size: int) -> None:
        self.held_bytes += size
        self._all.add(size)

    def cleared(self) -> None:
        self._all.add(-self.held_bytes)
        self.held_bytes = 0


def unbounded() -> Account:
    """An account without a limit, for code without a host: tests, and commands on a folder."""
    return Account("unbounded", sys.maxsize)
