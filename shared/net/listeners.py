"""Listening sockets: binding them, their options, and accepting connections within the caps."""

import errno
import functools
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import attrs
import trio

from shared.errors import BrokerError, ConfigError
from shared.net.keepalive import is_loopback, keepalive
from shared.net.settings import NetSettings, TlsSettings
from shared.net.strangers import Strangers

if TYPE_CHECKING:  # the pipeline resolves names with this module, and needs no sessions
    from shared.net.loop_turn import LoopTurn

ACCEPTS_MAX = 64
"""Connections accepted in one turn; the rest stay in the kernel's backlog for the next."""
ACCEPT_SECONDS = 2e-3
"""Work of one turn. Each accepted connection also runs a turn of the driver, in which sessions go on."""
ACCEPTS_BEHIND = 4
"""`ACCEPTS_MAX` while open connections wait to be served: about as many as the driver can serve and close per
turn. With more, a flood of short connections would pile up inside, with everybody behind it."""
PAUSE_SECONDS = 0.1
"""Pause after running out of descriptors (nginx: 0.5 s)."""
LOG_SECONDS = 1.0
"""Each reason for refusals is logged at most this often, with the count: a flood does not fill the disk."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LISTENER_ERRORS = (*OUT_OF_DESCRIPTORS, errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""Errors of accept(2) that are the listener's. Others are of the network, and the connection's."""

HANDED_FROM = 3
"""The number of the first descriptor that systemd hands over."""

BoundAddress = tuple[str, int]
"""Numeric host and port of a bound socket."""


@attrs.define(eq=False)
class CannotListen(BrokerError):
    """A socket could not be bound: `address` as asked for (`127.0.0.1:8080`), `reason` as the system says."""

    address: str
    reason: str

    def __str__(self) -> str:
        return f"cannot listen on {self.address}: {self.reason}"


def format_address(host: str, port: int) -> str:
    """`127.0.0.1:8080`, `[::1]:8080`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_exposure(
    key: str, host: str, tls: TlsSettings | None, *, logs_in: bool = False, insecure: bool = False
) -> None:
    """Refuse to listen beyond loopback without knowing who connects, unless `insecure`. `key`: the setting.

    `logs_in`: the protocol asks every client for a password, which anybody on the way could read without TLS.
    """
    identified = tls is not None and (tls.client_ca is not None or (tls.enabled and logs_in))
    if identified or insecure or is_loopback(host):
        return
    if logs_in:
        why = "clients would log in where everybody on the way can read it: set [tls] certificate and key"
    else:
        why = (
            "everybody there could read and write, also over TLS, which by itself keeps nobody out: have "
            "clients show certificates (client_ca in [tls]), or log in over TLS (brokers user add)"
        )
    where = f"{host or 'all interfaces'} can be reached from other machines"
    raise ConfigError(key, f"{where}, and {why}, or allow it with --insecure")


def bind_tcp(host: str, port: int, settings: NetSettings, *, pushes: bool = False) -> list[socket.socket]:
    """Listening, nonblocking sockets, one for each address that `host` stands for ("": all interfaces).

    With port 0 the system picks one, the same for all of them. Raises CannotListen.
    """

    def prepare(sock: socket.socket, address: str) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for level, option, value in connection_options(settings, address, pushes=pushes):
            sock.setsockopt(level, option, value)

    return bind_each(host, port, socket.SOCK_STREAM, prepare, backlog=settings.backlog)


def bind_each(
    host: str,
    port: int,
    kind: int,
    prepare: Callable[[socket.socket, str], None],
    *,
    backlog: int | None = None,
) -> list[socket.socket]:
    """Nonblocking sockets, one for each address of `host`, listening if there is a `backlog`.

    One that this process was given for that address (`handed_over`) is used, else a new one is bound.
    `prepare`: called with each socket and its numeric address. Otherwise as `bind_tcp`.
    """
    sockets: list[socket.socket] = []
    try:
        for family, address in resolve(host, port, kind):
            if (given := _given(family, kind, address, port)) is not None:
                sock = given
                sockets.append(sock)
                prepare(sock, address)
            else:
                sock = socket.socket(family, kind)
                sockets.append(sock)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                prepare(sock, address)
                sock.bind((address, port))
            if backlog is not None:
                sock.listen(backlog)
            sock.setblocking(False)
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise CannotListen(format_address(host, port), error.strerror or str(error)) from error
    return sockets


@functools.cache
def handed_over() -> list[socket.socket]:
    """The sockets that systemd has bound for this process (sd_listen_fds(3)) and that nobody has taken yet.

    systemd keeps them open: who connects while the server is restarted waits, and is not refused.
    """
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()):
        return []
    descriptors = range(HANDED_FROM, HANDED_FROM + int(os.environ.pop("LISTEN_FDS", "0")))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _given(family: int, kind: int, address: str, port: int) -> socket.socket | None:
    """Take the socket of `handed_over` that is bound to this address."""
    for sock in handed_over():
        if (sock.family, sock.type) == (family, kind) and sock.getsockname()[:2] == (address, port):
            handed_over().remove(sock)
            return sock
    return None


def resolve(host: str, port: int, kind: int) -> list[tuple[int, str]]:
    """Families and numeric addresses, without duplicates, in the system's order. Raises OSError."""
    try:
        found = socket.getaddrinfo(host or None, port, type=kind, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # no host can have that name: `a..b`, or a part of more than 63 letters
        raise socket.gaierror(socket.EAI_NONAME, "not the name of a host") from error
    if host == "":  # getaddrinfo names IPv6 even on a machine without it
        found = [each for each in found if each[0] != socket.AF_INET6 or socket.has_dualstack_ipv6()]
    return list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))


def connection_options(settings: NetSettings, host: str, *, pushes: bool) -> Iterator[tuple[int, int, int]]:
    """Options, `(level, option, value)`, of connections to a socket bound to `host` (numeric).

    Connections inherit them from the listening socket. Connections over loopback get no keepalive;
    where a socket is not bound to loopback, `Acceptor` turns it off for peers on this machine.
    """
    yield socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    if not is_loopback(host):
        yield from keepalive(settings.keepalive_seconds)
    if not pushes:
        yield socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(settings.user_timeout_seconds * 1000)


def acknowledge_now(sock: socket.socket | trio.socket.SocketType) -> None:
    """Send a delayed acknowledgement now, for what came so far."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    except OSError:
        pass  # the connection is gone: the next read shows it


Admitted = Callable[[socket.socket, str, str], None]
"""Takes over an accepted, nonblocking socket; the peer as shown, `host:port`; and its numeric host."""


@attrs.define(eq=False, slots=False, repr=False)
class Acceptor:
    """Accepts from one listening socket and hands connections within the caps to `admitted`.

    While `is_behind` it accepts few; strangers it accepts at their pace. When the process is out of
    descriptors it closes a spare one to accept and close waiting connections, rather than let them hang, and
    pauses.
    """

    listening: socket.socket
    _admitted: Admitted
    _loop: "LoopTurn"
    _is_behind: Callable[[], bool] = lambda: False
    _encrypts: Callable[[], bool] = lambda: False  # a connection accepted now will have TLS
    _refusals_unlogged: Counter[str] = attrs.Factory(Counter)  # by reason, as `_logged_at`
    _logged_at: dict[str, float] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        self._probes = not is_loopback(self.listening.getsockname()[0])
        self._spare_fd = _open_spare()

    async def run(self) -> None:
        """Accept until cancelled; the listening socket is closed then."""
        try:
            more = False
            while True:
                if not more:
                    await trio.lowlevel.wait_readable(self.listening)
                more = False
                try:
                    if self._loop.asks_login():
                        async with self._loop.strangers:
                            more = self.accept_many(self._loop.strangers)
                    else:
                        self.accept_many()
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    self._turn_away(error)
                    await trio.sleep(PAUSE_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; may be called again."""
        self.listening.close()
        if self._spare_fd is not None:
            os.close(self._spare_fd)
            self._spare_fd = None

    def accept_many(self, strangers: Strangers | None = None) -> bool:
        """Accept for one turn, or one slice of `strangers`. False: none are waiting."""
        ends = perf_counter() + ACCEPT_SECONDS
        encrypted = self._encrypts()
        for _ in range(ACCEPTS_BEHIND if self._is_behind() else ACCEPTS_MAX):
            try:
                sock, address = self.listening.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in LISTENER_ERRORS:
                    raise
                continue
            host, port = address[:2]
            if strangers is not None and strangers.refuses(host):
                sock.close()
                strangers.count_failure()
                self._refuse("address_fails_often", host)
                if strangers.is_over():
                    return True
                continue
            if (cap := self._loop.admission.admit(host, encrypted=encrypted)) is not None:
                sock.close()
                self._refuse(cap, host)
                continue
            sock.setblocking(False)
            if self._probes and is_loopback(host):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
            self._admitted(sock, format_address(host, port), host)
            if perf_counter() > ends or (strangers is not None and strangers.is_over()):
                return True
        return True

    def _turn_away(self, error: OSError) -> None:
        self._loop.counters.emfile += 1
        if self._spare_fd is None:
            self._spare_fd = _open_spare()
        turned_away = 0
        if self._spare_fd is not None:
            os.close(self._spare_fd)
            try:
                for _ in range(ACCEPTS_MAX):
                    self.listening.accept()[0].close()
                    turned_away += 1
            except OSError:  # none are waiting, or another thread took the descriptor
                pass
            self._spare_fd = _open_spare()
        self._refuse("descriptors", error.strerror or str(error), turned_away)

    def _refuse(self, reason: str, detail: str, count: int = 1) -> None:
        self._loop.counters.refused[reason] += count
        self._refusals_unlogged[reason] += count
        now = trio.current_time()
        if now >= self._logged_at.get(reason, -LOG_SECONDS) + LOG_SECONDS:
            self._logged_at[reason] = now
            count = self._refusals_unlogged.pop(reason)
            self._loop.log.warning(
                "connections refused: there are too many; raise the limit in reason, or look at who connects",
                reason=reason,
                detail=detail,
                count=count,
            )


def _open_spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
