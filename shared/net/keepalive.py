"""TCP keepalive: finding out whether a silent peer still exists."""

import ipaddress
import socket
from collections.abc import Iterator


def keepalive(idle_seconds: float) -> Iterator[tuple[int, int, int]]:
    """Options, `(level, option, value)`: probe after so much silence, then three times at a third of it.

    Not for connections within one machine: there the kernel reports the end of a process. Probing would do
    harm: connections made together are probed together, and loopback drops what exceeds
    net.core.netdev_max_backlog (1000). Of thousands of idle living peers, hundreds would be given up.
    """
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    idle = max(1, round(idle_seconds))
    option = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    if option is not None:
        yield socket.IPPROTO_TCP, option, idle
    if hasattr(socket, "TCP_KEEPINTVL"):
        yield socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle // 3)
        yield socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a name, or "": all interfaces
        return False
