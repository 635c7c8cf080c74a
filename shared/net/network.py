"""The network of a process, and each protocol's group of listeners and connections in it.

Admission, backlogs and strangers are the network's, so they are shared by all groups.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import structlog
import trio

from shared.budget import Account, unbounded
from shared.metrics import Sample
from shared.net import liveness
from shared.net.admission import Admission
from shared.net.counters import NetCounters
from shared.net.datagram_sink import SlotSink
from shared.net.datagrams import DatagramEndpoint, Subnet, bind_udp
from shared.net.listeners import Acceptor, Admitted, BoundAddress, bind_tcp, check_exposure
from shared.net.loop_turn import AfterTurn, DrivenConnection, LoopTurn, OpenSession
from shared.net.outbox import Backlogs
from shared.net.poll import PollDriver
from shared.net.settings import CertificateUser, NetSettings, TlsSettings
from shared.net.strangers import Strangers
from shared.net.tls import ServerTls
from shared.objects import CONNECTIONS, Action, Objects, time_text
from shared.process_limits import memory_limit_bytes


class Network:
    """What all groups of a process share: the caps on connections, and the memory for their outboxes."""

    def __init__(
        self,
        settings: NetSettings,
        budget: Account | None = None,
        certificate_user: CertificateUser = "cn",
    ) -> None:
        """`certificate_user`: the field of a client certificate that names its user."""
        self.settings = settings
        self.certificate_user = certificate_user
        budget = self._budget = budget or unbounded()
        self.admission = Admission(settings, budget.account("connections"))
        self.strangers = Strangers()
        limit = int(memory_limit_bytes() * settings.outboxes_memory_percent / 100)
        self.backlogs = Backlogs(self.admission.memory.account("backlogs", limit))

    def take_settings(self, settings: NetSettings, certificate_user: CertificateUser) -> None:
        """Use other settings from now on; each group must be told too (`Group.take_settings`)."""
        self.settings, self.certificate_user = settings, certificate_user
        self.admission.take_settings(settings)
        limit = int(memory_limit_bytes() * settings.outboxes_memory_percent / 100)
        self.backlogs.memory.limit_bytes = min(limit, self._budget.limit_bytes)

    def samples(self) -> Iterable[Sample]:
        """The process's metrics; each group has its own."""
        yield Sample("net_connections", self.admission.connections, "Open connections.", kind="gauge")
        yield Sample("net_connections_max", self.admission.connections_max, "Their cap.", kind="gauge")
        yield Sample(
            "net_outboxes_bytes",
            self.backlogs.held_bytes,
            "In memory: unsent output, and large messages that are incomplete.",
            kind="gauge",
        )
        yield Sample("net_outboxes_bytes_max", self.backlogs.memory.limit_bytes, "Its bound.", kind="gauge")
        yield Sample(
            "net_outboxes_payments_total",
            self.backlogs.times_shed,
            "Times that the largest backlog was shed because all together exceeded their bound.",
        )


class Group:
    """The listeners of one protocol, their connections and the tasks that serve them.

    Bind first: that raises CannotListen (a taken port, an address of another machine) or ConfigError (it
    would serve strangers, or files are no certificate). Then `serve` runs once. A group that is not served is
    closed with `close`.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        *,
        after_turn: AfterTurn,
        log: structlog.stdlib.BoundLogger,
        tls: TlsSettings | None = None,
        logs_in: bool = False,
        insecure: bool = False,
        asks_login: Callable[[], bool] = lambda: False,
    ) -> None:
        """For the protocol `name`. `logs_in`: it asks every client for a password. `insecure`: it may listen
        beyond loopback without knowing who connects. `asks_login`: whether a login is required now.
        """
        tls = tls or TlsSettings()
        self.name = name
        self.counters = NetCounters()
        self._network = network
        self._settings = network.settings
        self._log = log.bind(protocol=name)
        self._check_exposure = partial(check_exposure, tls=tls, logs_in=logs_in, insecure=insecure)
        self.tls = ServerTls.load(tls)
        """TLS for new connections; None: plain text."""
        self.loop = LoopTurn(
            settings=network.settings,
            admission=network.admission,
            backlogs=network.backlogs,
            counters=self.counters,
            after_turn=after_turn,
            log=self._log,
            strangers=network.strangers,
            asks_login=asks_login,
        )
        self._driver = PollDriver(self.loop)
        self.acceptors: list[Acceptor] = []
        self._endpoints: list[DatagramEndpoint] = []
        self._accepting = trio.CancelScope()
        self._values: Mapping[str, Callable[[DrivenConnection], Any]] = {
            "id": self._name,
            "since": self._since,
            **_VALUES,
        }

    def bind_tcp(
        self, name: str, host: str, port: int, open_session: OpenSession, *, pushes: bool = False
    ) -> list[BoundAddress]:
        """Bind a listener, one socket for each address of `host`; returns their addresses (port 0: any)."""
        self._check_exposure(f"{name}.host", host)
        sockets = bind_tcp(host, port, self._settings, pushes=pushes)
        admitted = self._admitted(open_session, pushes=pushes)
        is_behind = self._driver.is_behind
        self.acceptors += [
            Acceptor(sock, admitted, self.loop, is_behind, lambda: self.tls is not None) for sock in sockets
        ]
        return [sock.getsockname()[:2] for sock in sockets]

    def bind_udp(
        self, host: str, port: int, sink: SlotSink, networks: Sequence[Subnet] = ()
    ) -> list[BoundAddress]:
        """Bind a UDP endpoint; `networks`: whose datagrams are accepted (`allowed_networks`)."""
        sockets = bind_udp(host, port, self._settings)
        self._endpoints += [DatagramEndpoint(sock, sink, self.loop, networks) for sock in sockets]
        return [sock.getsockname()[:2] for sock in sockets]

    def take_settings(self, tls: ServerTls | None, allow: Sequence[Subnet]) -> None:
        """Use these and the network's settings from now on; open connections keep theirs.

        `allow`: networks whose datagrams are accepted; empty: all.
        """
        self._settings = self.loop.settings = self._network.settings
        self.tls = tls
        for endpoint in self._endpoints:
            endpoint.allow(allow)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self.loop.connections)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and serve until cancelled; then close every connection, losing unsent output."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.loop.watch_deadlines, name=f"{self.name}: deadlines")
                nursery.start_soon(self.loop.serve_strangers, name=f"{self.name}: strangers")
                nursery.start_soon(self._driver.run, name=f"{self.name}: connections")
                nursery.start_soon(self._driver.serve_strangers, name=f"{self.name}: strangers' input")
                nursery.start_soon(liveness.watch, self.loop.pushed, self._settings.user_timeout_seconds)
                for endpoint in self._endpoints:
                    nursery.start_soon(endpoint.run, name=f"{self.name}: datagrams")
                nursery.start_soon(self._accept_all, name=f"{self.name}: new connections")
                task_status.started()
        finally:
            self.close()

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections and datagrams are served on."""
        self._accepting.cancel()

    def drain(self) -> None:
        """Have every session `drain`, then end its input; pending answers are still sent."""
        self.loop.drain()

    async def wait_no_connections(self) -> None:
        """Return once every connection has closed."""
        await self.loop.wait_no_connections()

    def close(self) -> None:
        """Close every connection and socket at once, losing unsent output. May be called again."""
        self.loop.close_all("shutdown")
        for acceptor in self.acceptors:
            acceptor.close()
        for endpoint in self._endpoints:
            endpoint.close()
        self._driver.close()

    def samples(self) -> Iterable[Sample]:
        """Counters and gauges with the label `protocol`."""
        for endpoint in self._endpoints:
            endpoint.count_drops()
        yield from self.counters.samples(self.name)
        if self.tls is not None:
            yield self.tls.sample(self.name, time.time())

    def objects(self) -> Objects:
        """The protocol's connections, to be listed and closed."""
        kick = Action(
            "kick",
            "Close it; what it holds is released.",
            dry_runs=True,
            answers=("closed",),
            call=self._kick,
        )
        return Objects(
            CONNECTIONS,
            lambda: list(self.loop.connections),
            self._name,
            self._find_connection,
            self._describe,
            (kick,),
            values=self._values,
        )

    def _name(self, connection: DrivenConnection) -> str:
        return f"{self.name}-{connection.number}"

    def _find_connection(self, parts: Sequence[str]) -> DrivenConnection | None:
        name, _, number = parts[0].rpartition("-")
        if name != self.name or not number.isdecimal():
            return None
        wanted = int(number[:20])
        return next((each for each in self.loop.connections if each.number == wanted), None)

    def _describe(self, connection: DrivenConnection) -> Mapping[str, Any] | None:
        if connection.closed:
            return None
        return {name: read(connection) for name, read in self._values.items()}

    def _since(self, connection: DrivenConnection) -> str:
        age = self.loop.time() - connection.opened
        return time_text((time.time() - age) * 1000)

    async def _kick(self, connection: Any, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        if not dry_run:
            connection.kick("an administrator has closed it")
        return {"closed": 1}

    async def _accept_all(self) -> None:
        with self._accepting:
            async with trio.open_nursery() as nursery:
                for acceptor in self.acceptors:
                    nursery.start_soon(acceptor.run)

    def _admitted(self, open_session: OpenSession, *, pushes: bool) -> Admitted:
        """What takes accepted sockets over."""

        def admitted(sock: socket.socket, peer: str, host: str) -> None:
            self._driver.add(
                sock,
                peer,
                host,
                open_session,
                pushes=pushes,
                context=None if self.tls is None else self.tls.context,
                certificate_user=self._network.certificate_user,
            )

        return admitted


_VALUES: Mapping[str, Callable[[DrivenConnection], Any]] = {
    "peer": attrgetter("peer"),
    "user": attrgetter("user"),
    "state": lambda connection: connection.traffic.get("state") or connection.stage,
    "waits_for": attrgetter("waits_for"),
    "tls": attrgetter("is_encrypted"),
    "bytes_in": lambda connection: liveness.bytes_passed(connection)[0],
    "bytes_out": lambda connection: liveness.bytes_passed(connection)[1],
    "messages_in": lambda connection: connection.traffic.get("messages_in"),
    "messages_out": lambda connection: connection.traffic.get("messages_out"),
    "held": lambda connection: connection.traffic.get("held"),
    "client": lambda connection: connection.traffic.get("client"),
    "input_bytes": attrgetter("held_bytes"),
    "backlog_bytes": attrgetter("outbox.size"),
}
"""Columns of a connection, besides those that only its group knows."""
