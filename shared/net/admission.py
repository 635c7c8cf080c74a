"""Admission of connections: the caps, the memory that each takes, and the descriptors kept in reserve."""

from collections.abc import Callable

from shared.budget import Account, OverBudget, unbounded
from shared.net.settings import NetSettings
from shared.net.strangers import address_of
from shared.process_limits import connections_within, raise_file_limit

CONNECTION_BYTES = 4 << 10
"""Memory of an idle connection with its session."""
TLS_BYTES = 64 << 10
"""Additional memory of a connection with TLS: a task, OpenSSL's state, and buffers for a record each way."""
_TELL_EVERY = 16


class Admission:
    """Counts open connections, in all and by address, against the caps. Loopback has no cap per address.

    `memory`: the account that each connection is charged to.
    """

    def __init__(self, settings: NetSettings, memory: Account | None = None) -> None:
        self.memory = memory or unbounded()
        self.take_settings(settings)
        self.connections = 0
        self.on_connections: Callable[[int], None] | None = None
        """Called with `connections` every 16 connections that come or go."""
        self._by_address: dict[str, int] = {}

    def take_settings(self, settings: NetSettings) -> None:
        """Use other caps from now on; connections above them stay open."""
        self.connections_max = min(settings.connections_max, connections_within(raise_file_limit()))
        self.per_address_max = settings.connections_per_address_max

    def admit(self, host: str, *, encrypted: bool = False) -> str | None:
        """Count a connection from `host` (numeric, or "" in memory); returns the cap that refuses it, or
        None. `encrypted`: it needs memory for TLS, too.
        """
        if self.connections >= self.connections_max:
            return "connections_max"
        if key := _address_key(host):
            open_now = self._by_address.get(key, 0)
            if open_now >= self.per_address_max:
                return "connections_per_address_max"
        try:
            self.memory.take(CONNECTION_BYTES + TLS_BYTES * encrypted)
        except OverBudget:
            return "memory"
        if key:
            self._by_address[key] = open_now + 1
        self.connections += 1
        self._tell()
        return None

    def _tell(self) -> None:
        if self.on_connections is not None and self.connections % _TELL_EVERY == 0:
            self.on_connections(self.connections)

    def leave(self, host: str, *, encrypted: bool = False) -> None:
        """A connection that was admitted, as `encrypted` or not, has closed."""
        self.memory.give(CONNECTION_BYTES + TLS_BYTES * encrypted)
        self.connections -= 1
        self._tell()
        if key := _address_key(host):
            left = self._by_address[key] - 1
            if left:
                self._by_address[key] = left
            else:
                del self._by_address[key]


def _address_key(host: str) -> str:
    """What the cap per address counts by; "" for loopback."""
    address = "" if host in ("", "::1") else address_of(host)
    return "" if address.startswith("127.") else address
