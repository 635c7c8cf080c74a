"""Leases: a principal asks for one, and opens a DMP connection with it.

A lease is a random word that opens one connection, once, within a minute. Only its keyed hash is kept, so no
look-up or comparison takes longer for a word that is nearly right. A word that is forged, used or lapsed
costs the same work and gets the same answer. Leases are in memory only.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import attrs

from dmp.exchanges import Exchange
from dmp.memory import check
from dmp.message import Head
from dmp.queues import Application, Queue
from dmp.refusals import Code, Refusal
from shared.budget import Account
from shared.shares import Shares

if TYPE_CHECKING:
    from dmp.metrics import Counts
    from shared.queues.timers import Timers

LEASE_SECONDS = 60.0  # a lease must be used within this time (PROTOCOL.md)
RANDOM_BYTES = 32  # 256 bits, 43 characters; the protocol wants 128 bits and has room for 255 characters
LEASE_BYTES = 700  # what a lease takes of memory, with its timer: 650 measured

SendReturn: TypeAlias = Callable[[Code, Head, bytes], None]
"""Gives a message back on the channel that asked for the sink; harmless once that is closed."""


@attrs.define(eq=False, repr=False)
class Lease:
    """One lease: of a sink (an exchange) or a feed (a queue).

    `deadline` and `scheduled` belong to the timers.
    """

    digest: bytes
    owner: Application
    target: Exchange | Queue
    send_return: SendReturn | None
    given: float
    _lapsed: Callable[[Lease], None]
    deadline: float = math.inf
    scheduled: float = math.inf

    def __repr__(self) -> str:
        return f"<Lease of {self.target!r}>"

    def expire(self, now: float) -> None:
        self._lapsed(self)


@attrs.define(eq=False, repr=False)
class LeaseBook:
    """Every lease that is not used yet."""

    _counts: Counts
    _timers: Timers
    leases_max: int
    _memory: Account
    _key: bytes = attrs.field(factory=lambda: secrets.token_bytes(RANDOM_BYTES), init=False)
    _by_digest: dict[bytes, Lease] = attrs.field(factory=dict, init=False)
    _of_users: Shares = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._of_users = self._memory.new_shares()

    def __len__(self) -> int:
        return len(self._by_digest)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_digest.values())

    def grant(
        self, owner: Application, target: Exchange | Queue, send_return: SendReturn | None = None
    ) -> str:
        """A lease of an exchange that may be published to, or of a queue that is exclusive to `owner` and not
        leased. Raises Refusal."""
        if len(self._by_digest) >= self.leases_max:
            text = f"there are leases_max = {self.leases_max} unused leases already"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        if not self._of_users.fits(owner.account, self.leases_max):
            text = f"{owner.account} has his share of leases_max"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        check(self._memory, LEASE_BYTES)
        word = secrets.token_urlsafe(RANDOM_BYTES)
        now = self._timers.now()
        lease = Lease(self._digest(word.encode()), owner, target, send_return, now, self._lapse)
        self._by_digest[lease.digest] = lease
        self._of_users.take(lease.digest, owner.account)
        self._memory.charge(LEASE_BYTES)
        if isinstance(target, Queue):
            target.feed_lease = lease
        self._timers.set(lease, now + LEASE_SECONDS)
        self._counts.leases_given += 1
        return word

    def take(self, word: bytes) -> Lease | None:
        """Use a lease, once; None where the word is no lease, or was used, or has lapsed."""
        digest = self._digest(word)
        lease = self._by_digest.get(digest)
        expected = self._key if lease is None else lease.digest
        if not hmac.compare_digest(digest, expected) or lease is None:
            self._counts.leases_refused += 1
            return None
        if self._timers.now() >= lease.given + LEASE_SECONDS:  # its timer has not run yet
            self._lapse(lease)
            self._counts.leases_refused += 1
            return None
        self._remove(lease)
        return lease

    def _remove(self, lease: Lease) -> None:
        self._timers.forget(lease)
        del self._by_digest[lease.digest]
        self._memory.give(LEASE_BYTES)
        self._of_users.drop(lease.digest)

    def _lapse(self, lease: Lease) -> None:
        self._remove(lease)
        self._counts.leases_lapsed += 1
        if isinstance(lease.target, Queue) and lease.target.feed_lease is lease:
            lease.target.feed_lease = None

    def _digest(self, word: bytes) -> bytes:
        return hashlib.blake2b(word, digest_size=32, key=self._key).digest()
