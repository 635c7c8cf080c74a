"""Who may connect: the process's caps, the memory that a connection takes, and the descriptors kept back."""

import ipaddress
from collections.abc import Callable

from shared.budget import Account, OverBudget, unbounded
from shared.net.settings import NetSettings
from shared.process_limits import connections_within, raise_file_limit

CONNECTION_BYTES = 4 << 10
"""What a connection takes that says nothing, with its session: about 4 KB."""
TLS_BYTES = 64 << 10
"""More for one with TLS: a task, OpenSSL's state, and buffers for a record each way."""
_TELL_EVERY = 16


class Admission:
    """Counts open connections, in all and by address, against the caps. Loopback has no cap of its own.

    `memory`: the account that each is taken from.
    """

    def __init__(self, settings: NetSettings, memory: Account | None = None) -> None:
        self.memory = memory or unbounded()
        self.take_settings(settings)
        self.connections = 0
        self.on_connections: Callable[[int], None] | None = None
        """Called with `connections` as they come and go, not at each one."""
        self._by_address: dict[str, int] = {}

    def take_settings(self, settings: NetSettings) -> None:
        """Take other caps from now on; who is above them stays."""
        self.connections_max = min(settings.connections_max, connections_within(raise_file_limit()))
        self.per_address_max = settings.connections_per_address_max

    def admit(self, host: str) -> str | None:
        """Count a connection from `host` (numeric, or "" in memory); or the cap that refuses it."""
        if self.connections >= self.connections_max:
            return "connections_max"
        if key := _address_key(host):
            open_now = self._by_address.get(key, 0)
            if open_now >= self.per_address_max:
                return "connections_per_address_max"
        try:
            self.memory.take(CONNECTION_BYTES)
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

    def leave(self, host: str) -> None:
        """A connection that was admitted has closed."""
        self.memory.give(CONNECTION_BYTES)
        self.connections -= 1
        self._tell()
        if key := _address_key(host):
            left = self._by_address[key] - 1
            if left:
                self._by_address[key] = left
            else:
                del self._by_address[key]


def _address_key(host: str) -> str:
    """What the cap counts by: the address; for IPv6 its /64, as one peer has all of it; "" for loopback."""
    if host.startswith("127.") or host in ("", "::1"):
        return ""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return _address_key(str(address.ipv4_mapped))
    return address.exploded[:19]
