"""Those who have not logged in, on all listeners of the process: what they may have of the loop.

Where logins are asked for, everything that a connection brings before it has logged in is done in a *piece*:
to accept it, to read and answer it, to close it. A piece ends after `PIECE_SECONDS`, and then others run.
Pieces are paid from a credit, which fills by a share of the time that passes. So a flood costs those who are
served a share of the loop, and each of their requests one piece at most. What is over waits in the kernel:
connections in the backlog, input unread. While nobody else is served all of the loop is theirs.

An address that has failed often has few connections at a time that are not logged in. Further ones are closed
as they are accepted, which is ten times less work: so who comes from elsewhere is soon reached.
"""

import ipaddress
import math
from collections import Counter, OrderedDict, deque
from time import thread_time
from types import TracebackType

import trio

PIECE_SECONDS = 100e-6
"""Work after which others run; what is begun is ended."""
ALONE_PIECE_SECONDS = 1e-3
"""The same while nobody else is served."""
ALONE_SECONDS = 1.0
"""Nobody has been served for so long: strangers are alone."""
TURN_SECONDS = 20e-6
"""What it costs to come to a piece: the loop's round, and waking a task."""
SHARE, FLOOD_SHARE = 0.5, 0.06
"""Of the loop. Clients that come back all at once, as after a restart, have the first."""
CREDIT_SECONDS = 2e-3
"""At most. A login takes some 0.3 ms in all, and waits for nothing where few come."""
FLOOD_FAILURES, FLOOD_SECONDS = 50, 5.0
"""So many strangers have failed within that time: it is a flood."""

FAILURES_MAX = 5
FAILURES_SECONDS = 60.0
"""So many failures within that time, and an address is slow."""
ADDRESSES_MAX = 10_000
"""Of which failures are kept; then those that failed longest ago are forgotten."""
SLOW_MAX = 8
"""Connections of a slow address that are not logged in."""


class Strangers:
    """Their pace: `async with` it around a piece, which goes on until `is_over`.

    `served_at`: when (by trio's clock) somebody was last served who is none. Drivers set it.
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
        self._ends = self._began + (ALONE_PIECE_SECONDS if self.are_alone() else PIECE_SECONDS)

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._credit -= thread_time() - self._began + TURN_SECONDS
        self._lock.release()

    def is_over(self) -> bool:
        """The piece has taken its time."""
        return thread_time() > self._ends

    async def turn(self, seconds: float) -> None:
        """Wait for a piece whose work comes later, and takes about so long."""
        async with self:
            self._credit -= seconds

    def are_alone(self) -> bool:
        """Nobody else is served."""
        return trio.current_time() > self.served_at + ALONE_SECONDS

    def is_flood(self) -> bool:
        """Very many have failed of late."""
        if len(self._failed) < FLOOD_FAILURES:
            return False
        return trio.current_time() < self._failed[0] + FLOOD_SECONDS

    def _seconds_short(self) -> float:
        """How long it takes until a piece can be paid."""
        now = trio.current_time()
        share = FLOOD_SHARE if self.is_flood() else SHARE
        self._credit = min(CREDIT_SECONDS, self._credit + (now - self._credit_at) * share)
        self._credit_at = now
        short = PIECE_SECONDS - self._credit
        return 0.0 if short < 1e-9 or self.are_alone() else short / share

    # Their connections.

    def came(self, host: str) -> None:
        """A connection is open that is not logged in."""
        self._here[address_of(host)] += 1

    def left(self, host: str) -> None:
        """It is logged in, or gone."""
        address = address_of(host)
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def are_too_many(self, host: str) -> bool:
        """Another connection from there is to be closed: it has failed often, and enough are open."""
        address = address_of(host)
        return self._here[address] >= SLOW_MAX and self.is_slow(address)

    def gave_up(self) -> None:
        """One has gone, or was refused, and has not logged in."""
        self._failed.append(trio.current_time())

    # Their addresses.

    def failed(self, address: str) -> None:
        """A login from there has failed."""
        now = trio.current_time()
        self._failed.append(now)
        failures = self._failures.setdefault(address, deque(maxlen=FAILURES_MAX))
        failures.append(now)
        self._failures.move_to_end(address)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def is_slow(self, address: str) -> bool:
        """It has failed often of late."""
        failures = self._failures.get(address)
        if failures is None or len(failures) < FAILURES_MAX:
            return False
        return trio.current_time() < failures[0] + FAILURES_SECONDS


def address_of(host: str) -> str:
    """A numeric host. An IPv6 network of 64 bits is one address, for one peer has all of it."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or address.exploded[:19])


def address_of_peer(peer: str) -> str:
    """Of `host:port`."""
    return address_of(peer.rpartition(":")[0].strip("[]")) or peer
