"""UDP endpoints: many datagrams per wake-up, but never so many that connections wait."""

import errno
import ipaddress
import socket
import struct
from collections.abc import Sequence
from functools import lru_cache

import trio

from shared.errors import ConfigError
from shared.net.datagram_sink import Frames, SlotSink
from shared.net.keepalive import is_loopback
from shared.net.listeners import bind_each
from shared.net.loop_turn import LoopTurn
from shared.net.settings import NetSettings
from shared.net.slots import Slots

TURN_DATAGRAMS = 256
"""Datagrams of one turn; then connections and other tasks run."""
SO_RCVBUFFORCE = 33  # Linux: may exceed net.core.rmem_max; needs CAP_NET_ADMIN
SO_MEMINFO = 55  # Linux: nine u32 about the socket's memory; the last one counts drops, as SO_RXQ_OVFL does
MEMINFO = struct.Struct("=32xI")

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network


def bind_udp(host: str, port: int, settings: NetSettings) -> list[socket.socket]:
    """Nonblocking UDP sockets, one for each address of `host`, with as large a buffer as the system gives.

    With port 0 the system picks one, the same for all of them. Raises CannotListen.
    """
    size = settings.udp_receive_buffer_bytes
    return bind_each(host, port, socket.SOCK_DGRAM, lambda sock, _: _enlarge_buffer(sock, size))


def _enlarge_buffer(sock: socket.socket, size: int) -> None:
    """As large as allowed: Linux caps it except for root; other systems refuse, so it is halved."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
        return
    except OSError:
        pass
    while size > sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            return
        except OSError:
            size //= 2


def allowed_networks(key: str, host: str, allow: Sequence[str]) -> tuple[Subnet, ...]:
    """The networks whose datagrams are accepted. Beyond loopback they must be named, because the sender's
    address is all there is to judge by. Raises ConfigError about `key`.
    """
    networks = []
    for text in allow:
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError as error:
            raise ConfigError(key, str(error)) from error
    if not networks and not is_loopback(host):
        raise ConfigError(
            key,
            f"{host or 'all interfaces'} can be reached from other machines: name the networks whose "
            'datagrams are taken, such as ["192.168.0.0/16"]; everybody is ["0.0.0.0/0", "::/0"]',
        )
    return tuple(networks)


class DatagramEndpoint:
    """One UDP socket and its sink, which gets datagrams in frames of its own."""

    def __init__(
        self, sock: socket.socket, sink: SlotSink, loop: LoopTurn, networks: Sequence[Subnet]
    ) -> None:
        self._socket = sock
        self._sink = sink
        self._slots = Slots(sink.layout, TURN_DATAGRAMS)
        self._left: Frames | None = None  # frames that the sink has put off
        self._loop = loop
        self._networks = networks
        self._drops_seen = 0
        self._is_allowed = lru_cache(maxsize=4096)(self._compare)  # even a flood has few senders

    def allow(self, networks: Sequence[Subnet]) -> None:
        """Accept datagrams of these networks from now on; empty: all."""
        self._networks = networks
        self._is_allowed.cache_clear()

    async def run(self) -> None:
        """Receive until cancelled; the socket is closed then."""
        try:
            while True:
                if self._take_turn():
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._socket)
        finally:
            self.close()

    def close(self) -> None:
        """Stop receiving; may be called again."""
        self.count_drops()
        self._socket.close()

    def count_drops(self) -> None:
        """Update the counter of datagrams that the kernel dropped."""
        try:
            (drops,) = MEMINFO.unpack(self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO.size))
        except (OSError, struct.error):  # not Linux, or closed
            return
        self._loop.counters.kernel_drops += (drops - self._drops_seen) % 2**32
        self._drops_seen = drops

    def _take_turn(self) -> bool:
        """Receive for one turn; whether there was anything."""
        if self._left is not None:
            self._left = self._deliver(*self._left)
            return True
        try:
            count, frames, lengths = self._slots.receive(
                self._socket, self._is_allowed if self._networks else None
            )
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ENOMEM, errno.ENOBUFS, errno.EINTR):
                raise
            return True
        counters = self._loop.counters
        counters.datagrams_in += count
        counters.bytes_in += sum(lengths)
        counters.datagrams_filtered += count - len(lengths)
        if lengths:
            self._left = self._deliver(frames, lengths)
        return True

    def _deliver(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        left = None
        self._loop.begin()
        try:
            left = self._sink.receive_frames(frames, lengths)
        except Exception as error:
            self._loop.counters.crashes += 1
            self._loop.log.error(
                "receiving datagrams crashed: the datagrams of this read are lost, later ones are taken; "
                "report this bug",
                exc_info=error,
            )
        self._loop.end()
        return left

    def _compare(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        return any(address in network for network in self._networks)
