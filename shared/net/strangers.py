"""The share of the loop for strangers: connections of the process that have not logged in.

Where a login is required, all work for a stranger is done in a *slice*: accepting, reading, answering,
closing. After `SLICE_SECONDS` a slice ends and others run. Slices are paid from a credit that grows with time
by a share of it. So a flood of strangers costs logged-in clients that share of the loop, and delays each of
their requests by one slice. The rest waits in the kernel: connections in the backlog, input unread. While no
one else is served, strangers have the whole loop.

An address with many failed logins may have few strangers at a time. Further ones are closed when accepted,
which is ten times less work, so clients from other addresses are soon reached.
"""

import ipaddress
import math
from collections import Counter, OrderedDict, deque
from time import thread_time
from types import TracebackType

import trio

SLICE_SECONDS = 100e-6
"""Work after which a slice ends; what has begun is finished."""
FLOOD_SLICE_SECONDS = 50e-6
"""A slice in a flood. There is one every millisecond or so then, and requests wait for it. With 0.1 ms the
p99 of others grew by more than a tenth."""
ALONE_SLICE_SECONDS = 1e-3
"""A slice while no one else is served."""
ALONE_SECONDS = 1.0
"""If no one has been served for so long, strangers are alone."""
TURN_SECONDS = 20e-6
"""What a slice costs besides its work: a round of trio's loop, and waking a task."""
SHARE, FLOOD_SHARE = 0.5, 0.06
"""Shares of the loop. The first is for clients that come back all at once, as after a restart."""
CREDIT_SECONDS = 2e-3
"""The most credit. A login takes about 0.3 ms in all, so it waits for nothing where few come."""
FLOOD_FAILURES, FLOOD_SECONDS = 50, 5.0
"""How many failures within what time are a flood."""

FAILURES_MAX = 5
FAILURES_SECONDS = 60.0
"""How many failures of an address within what time: the address fails often."""
ADDRESSES_MAX = 10_000
"""Addresses whose failures are remembered; the one that failed longest ago is forgotten first."""
FAILING_MAX = 8
"""Strangers that an address which fails often may have at a time."""


class Strangers:
    """The pace of strangers: `async with` it around a slice, and work until `is_over`.

    `served_at`: when (trio's clock) a logged-in connection was last served. The driver sets it.
    """

    def __init__(self) -> None:
        self.served_at = -math.inf
        self._lock = trio.Lock()
        self._credit = CREDIT_SECONDS
        self._credit_at = -math.inf
        self._began = self._ends = 0.0
        self._failed: deque[float] = deque(maxlen=FLOOD_FAILURES)
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()  # by address
        self._here: Counter[str] = Counter()  # connections by address

    # Their pace.

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            while (seconds := self._seconds_short()) > 0:  # noqa: ASYNC110 - it is time that is waited for
                await trio.sleep(seconds)
        except BaseException:
            self._lock.release()
            raise
        self._began = thread_time()
        self._ends = self._began + self._slice_seconds()

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._credit -= thread_time() - self._began + TURN_SECONDS
        self._lock.release()

    def is_over(self) -> bool:
        """Whether the slice has used up its time."""
        return thread_time() > self._ends

    async def turn(self, seconds: float) -> None:
        """Wait for a slice whose work, about `seconds` long, is done later."""
        async with self:
            self._credit -= seconds

    def are_alone(self) -> bool:
        """Whether no one else is served."""
        return trio.current_time() > self.served_at + ALONE_SECONDS

    def is_flood(self) -> bool:
        """Whether very many logins have failed recently."""
        if len(self._failed) < FLOOD_FAILURES:
            return False
        return trio.current_time() < self._failed[0] + FLOOD_SECONDS

    def _slice_seconds(self) -> float:
        if self.are_alone():
            return ALONE_SLICE_SECONDS
        return FLOOD_SLICE_SECONDS if self.is_flood() else SLICE_SECONDS

    def _seconds_short(self) -> float:
        """Seconds until the credit pays for a slice."""
        now = trio.current_time()
        share = FLOOD_SHARE if self.is_flood() else SHARE
        self._credit = min(CREDIT_SECONDS, self._credit + (now - self._credit_at) * share)
        self._credit_at = now
        short = SLICE_SECONDS - self._credit
        return 0.0 if short < 1e-9 or self.are_alone() else short / share

    # Their connections.

    def add(self, host: str) -> None:
        """A connection has opened that is not logged in."""
        self._here[address_of(host)] += 1

    def remove(self, host: str) -> None:
        """The stranger has logged in, or closed."""
        address = address_of(host)
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def refuses(self, host: str) -> bool:
        """Whether to refuse another connection from `host`: it fails often and has enough open."""
        address = address_of(host)
        return self._here[address] >= FAILING_MAX and self.fails_often(address)

    def count_failure(self) -> None:
        """A stranger has closed, or was refused, without logging in."""
        self._failed.append(trio.current_time())

    # Their addresses.

    def count_failed_login(self, address: str) -> None:
        """A login from `address` has failed."""
        now = trio.current_time()
        self._failed.append(now)
        failures = self._failures.setdefault(address, deque(maxlen=FAILURES_MAX))
        failures.append(now)
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def fails_often(self, address: str) -> bool:
        """Whether `address` has failed often recently."""
        failures = self._failures.get(address)
        if failures is None or len(failures) < FAILURES_MAX:
            return False
        return trio.current_time() < failures[0] + FAILURES_SECONDS


def address_of(host: str) -> str:
    """A numeric host; for IPv6 its /64 network, because one peer has all of that."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address.exploded[:19])


def address_of_peer(peer: str) -> str:
    """The address of `host:port`."""
    return address_of(peer.rpartition(":")[0].strip("[]")) or peer
