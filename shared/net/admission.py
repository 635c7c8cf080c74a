"""Who may connect: the process's caps, and the descriptors kept back."""

import ipaddress
from collections.abc import Callable

from shared.net.settings import NetSettings
from shared.process_limits import connections_within, raise_file_limit

_TELL_EVERY = 16


class Admission:
    """Counts open connections, in all and by address, against the caps. Loopback has no cap of its own."""

    def __init__(self, settings: NetSettings) -> None:
        self.connections_max = min(settings.connections_max, connections_within(raise_file_limit()))
        self.per_address_max = settings.connections_per_address_max
        self.connections = 0
        self.on_connections: Callable[[int], None] | None = None
        """Called with `connections` as they come and go, not at each one."""
        self._by_address: dict[str, int] = {}

    def admit(self, host: str) -> str | None:
        """Count a connection from `host` (numeric, or "" in memory); or the cap that refuses it."""
        if self.connections >= self.connections_max:
            return "connections_max"
        if key := _address_key(host):
            open_now = self._by_address.get(key, 0)
            if open_now >= self.per_address_max:
                return "connections_per_address_max"
            self._by_address[key] = open_now + 1
        self.connections += 1
        self._tell()
        return None

    def _tell(self) -> None:
        if self.on_connections is not None and self.connections % _TELL_EVERY == 0:
            self.on_connections(self.connections)

    def leave(self, host: str) -> None:
        """A connection that was admitted has closed."""
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
