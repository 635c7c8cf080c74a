"""One protocol, served: its service, its listeners and connections, and what happens when it crashes."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import structlog
import trio

from brokers.errors import ExitCode, Failure
from brokers.settings.config import Config
from brokers.settings.reloading import Apply
from shared.access import Access, Guard
from shared.definitions import DefinitionSection
from shared.errors import ConfigError
from shared.metrics import Sample
from shared.net.datagrams import Subnet, allowed_networks
from shared.net.keepalive import is_loopback
from shared.net.listeners import CannotListen, check_exposure, format_address
from shared.net.network import Group, Network
from shared.net.tls import ServerTls
from shared.objects import Objects
from shared.plugin import Context, Plugin, Service, TcpEndpoint, UdpEndpoint
from shared.storage.threads import Threads
from shared.tracing import Tap

BACKOFF_SECONDS_MIN = 0.1
BACKOFF_SECONDS_MAX = 30.0
"""A crashed protocol is back after 0.1 s, then 0.2, 0.4 ... at most 30 s, as long as it keeps crashing."""
WELL_SECONDS = 60.0
"""After so long without a crash, the next crash counts as the first."""

EVERYBODY = ("0.0.0.0/0", "::/0")
PICKS_MAX = 16
"""Tries to find a port that is free for both TCP and UDP."""

State = Literal["starting", "serving", "restarting", "draining"]


def _dropped(*_: Any) -> Any:
    raise structlog.DropEvent


_SILENT = structlog.wrap_logger(None, processors=[_dropped])
"""For a service that is opened again and again: the first one has told all."""


@attrs.frozen
class Bound:
    """A socket that listens: `host` numeric, `port` as the system gave it."""

    protocol: str
    endpoint: str
    transport: Literal["tcp", "udp"]
    host: str
    port: int
    tls: bool

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


class SupervisedService:
    """A protocol in the host. `open` binds it, `run` serves it until cancelled, crashes included."""

    def __init__(
        self, plugin: Plugin, config: Config, context: Context, network: Network, access: Access
    ) -> None:
        """`context`: what the service gets, but for two things. Its budget is an account of the one in there,
        and its guard is one of `access`."""
        self.name = plugin.name
        self.state: State = "starting"
        self.restarts = 0
        self.bound: list[Bound] = []
        self._plugin = plugin
        self._config = config
        self._context = context
        self._network = network
        self._access = access
        self._log = context.log
        self._ports: dict[str, int] = {}
        self._in_thread = Threads()
        self._draining = False
        self.ended = trio.Event()
        """`run` has ended."""
        self._opened_again = trio.Event()
        self._service: Service | None = None
        self._group: Group | None = None
        self._told_samples: Service | None = None
        self._shown: Service | None = None
        """On a store that follows another one: what `objects` shows, opened anew on what has come since."""

    @property
    def service(self) -> Service | None:
        """What serves, or will once all are open; None after a crash, and at the end."""
        return self._service if self.state in ("starting", "serving") else None

    @property
    def objects(self) -> Sequence[Objects]:
        """What it has, its connections too."""
        own = getattr(self._shown or self._service, "objects", ())
        return (*([self._group.objects()] if self._group else ()), *own)

    @property
    def definitions(self) -> Sequence[DefinitionSection]:
        return getattr(self._service, "definitions", ())

    @property
    def connections(self) -> int:
        return self._group.connections if self._group else 0

    async def open(self) -> None:
        """Load the service and bind its endpoints. Raises Failure and ConfigError, with nothing bound."""
        budget = self._context.budget
        budget.account(self.name).close()  # that of the service which crashed, if one did
        context = attrs.evolve(self._context, budget=budget.account(self.name), access=self._guard())
        settings = self._settings
        self._service = await self._plugin.open(context, settings)
        if self._settings is not settings:  # a reload came meanwhile
            await self._service_takes_settings()
        self._opened_again.set()
        self._opened_again = trio.Event()
        try:
            self._bind_all(self._service.endpoints)
        except CannotListen as error:
            self.close()
            raise Failure(f"{self.name}: {error}", ExitCode.CONFIGURATION) from error
        except BaseException:
            self.close()
            raise
        # A port that the system picked stays ours over a restart: clients know it by now.
        self._ports = {bound.endpoint: bound.port for bound in self.bound}

    async def look_anew(self) -> None:
        """Have `objects` show what the store has by now; clients stay with what serves them. For a store that
        follows another one, whose service does not see by itself what comes. Raises StoreError.
        """
        look = getattr(self._service, "look_anew", None)
        if look is not None:
            await look()
            return
        if self._service is None:
            return
        budget = self._context.budget
        name = f"{self.name}-shown"
        budget.account(name).close()  # the one before goes with this
        context = attrs.evolve(self._context, log=_SILENT, budget=budget.account(name), access=self._guard())
        self._shown = await self._plugin.open(context, self._settings)

    async def prepare(self, config: Config) -> Apply:
        """`reloading.Prepare`: certificates, the networks of datagrams, whether to log in, its section."""
        section, tls = config.tls_of(self.name)
        loaded = await self._in_thread(ServerTls.load, tls, section)
        networks = self._networks(config)

        async def apply() -> None:
            before, self._config = self._settings, config
            self._guard()
            if self._group:
                self._group.take_settings(loaded, networks)
                self.bound = [
                    attrs.evolve(each, tls=loaded is not None and each.transport == "tcp")
                    for each in self.bound
                ]
            if self._service and self._settings != before:
                await self._service_takes_settings()

        return apply

    def watched(self, config: Config) -> Iterator[Path]:
        _, tls = config.tls_of(self.name)
        return tls.files()

    async def _service_takes_settings(self) -> None:
        take = getattr(self._service, "take_settings", None)
        if take is not None:
            await take(self._settings)

    @property
    def takes_settings(self) -> bool:
        """Whether a reload may change its section."""
        return hasattr(self._service, "take_settings")

    @property
    def tls(self) -> ServerTls | None:
        """What new connections are served with."""
        return self._group.tls if self._group else None

    async def run(self, *, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. A crash closes this protocol's connections; then it is started anew."""
        try:
            await self._run(task_status)
        finally:
            self.ended.set()

    async def _run(self, task_status: "trio.TaskStatus[None]") -> None:
        delay = BACKOFF_SECONDS_MIN
        while True:
            since = trio.current_time()
            crash: BaseException | None = None
            try:
                await self._serve(task_status)
            except* Exception as group:
                crash = group
            assert crash is not None, "served until cancelled"
            self.restarts += 1
            if self._draining:
                self._log.error(
                    "protocol crashed while it drained: its connections are closed, and it stays down; "
                    "report this bug",
                    exc_info=crash,
                )
                await trio.sleep_forever()
            self.state = "restarting"
            if trio.current_time() - since > WELL_SECONDS:
                delay = BACKOFF_SECONDS_MIN
            self._log.error(
                "protocol crashed: its connections are closed, and it starts again; the others are served "
                "on; report this bug",
                restart_in_seconds=delay,
                exc_info=crash,
            )
            await trio.sleep(delay)
            if self._draining:
                await trio.sleep_forever()
            delay = min(2 * delay, BACKOFF_SECONDS_MAX)
            task_status = trio.TASK_STATUS_IGNORED

    def stop_accepting(self) -> None:
        self.state, self._draining = "draining", True
        if self._group:
            self._group.stop_accepting()

    async def drain(self) -> None:
        """Return once all pending output is sent and every connection is closed."""
        if self._group and self._service:
            try:
                self._service.drain()
            except Exception as error:
                self._log.error(
                    "a bug in a protocol's drain: who waits there is not told of the end, all else goes on; "
                    "report this",
                    exc_info=error,
                )
            self._group.drain()
            await self._group.wait_no_connections()

    def close(self) -> None:
        """Close sockets at once."""
        if self._group:
            self._group.close()
            self._group = None

    def status(self) -> Mapping[str, Any]:
        """A row about it, in values that JSON has."""
        return {
            "protocol": self.name,
            "state": self.state,
            "addresses": [
                bound.address + ("/udp" if bound.transport == "udp" else "") for bound in self.bound
            ],
            "tls": any(bound.tls for bound in self.bound),
            "connections": self.connections,
            "restarts": self.restarts,
        }

    def samples(self) -> Iterator[Sample]:
        labels = (("protocol", self.name),)
        yield Sample(
            "protocol_restarts_total", self.restarts, "Crashes it was restarted after.", labels=labels
        )
        yield Sample("protocol_up", self.state == "serving", "1: it serves.", "gauge", labels)
        yield Sample("connections", self.connections, "Open connections.", "gauge", labels)
        if self._group:
            yield from self._group.samples()
        if self._service:
            yield from self._samples_of(self._service)

    def _samples_of(self, service: Service) -> Iterator[Sample]:
        """Its own. They are read every few seconds, for the host, too, which a bug in them must not end."""
        try:
            if self._shown is None:
                yield from service.samples()
            else:  # what there is, from there
                yield from (each for each in service.samples() if each.kind != "gauge")
                yield from (each for each in self._shown.samples() if each.kind == "gauge")
        except Exception as error:
            if self._told_samples is not service:
                self._told_samples = service
                self._log.error(
                    "a bug in a protocol's metrics: some are missing, all else works; report this",
                    exc_info=error,
                )

    async def trace(self, tap: Tap) -> None:
        """Copy what passes to `tap`, over all restarts, until cancelled."""
        while True:
            trace = getattr(self._service, "trace", None)
            async with trio.open_nursery() as nursery:
                if trace is not None:
                    nursery.start_soon(self._trace, trace, tap)
                await self._opened_again.wait()
                nursery.cancel_scope.cancel()

    async def _trace(self, trace: Callable[[Tap], Awaitable[None]], tap: Tap) -> None:
        try:
            await trace(tap)
        except Exception as error:
            self._log.error(
                "a bug ended a trace: what passes is not shown any more; trace again, and report this",
                exc_info=error,
            )

    @property
    def _settings(self) -> Any:
        return self._config.protocols[self.name]

    def _guard(self) -> Guard:
        """The guard of its clients, as the settings have it by now."""
        _, host = self._config.host_of(self.name)
        required = self._config.required_of(self.name)
        return self._access.guard(self.name, required, exposed=not is_loopback(host))

    async def _serve(self, task_status: "trio.TaskStatus[None]") -> None:
        if self._group is None:
            await self.open()
        assert self._group is not None
        assert self._service is not None
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._group.serve)
                self.state = "serving"
                task_status.started()
                await self._service.run()
                # It may have no background work; its listeners go on until we are cancelled or they fail.
        finally:
            self.close()

    def _make_group(self) -> Group:
        section, tls = self._config.tls_of(self.name)
        guard = self._guard()
        try:
            return Group(
                self.name,
                self._network,
                after_turn=self._context.store.commit_pending,
                log=self._log,
                tls=tls,
                logs_in=self._config.logs_in(self.name),
                insecure=self._config.serve.insecure,
                asks_login=lambda: guard.asks_login,
            )
        except ConfigError as error:
            # The network calls it by the name of the shared section.
            raise ConfigError(section + error.key.removeprefix("tls"), error.text) from error

    def _bind_all(self, endpoints: Sequence[TcpEndpoint | UdpEndpoint]) -> None:
        """Bind all endpoints. Raises CannotListen.

        If a port is picked for an endpoint, and is taken for another that needs the same, another is picked.
        """
        tries = PICKS_MAX
        while True:
            tries -= 1
            group = self._group = self._make_group()
            self.bound = []
            try:
                for endpoint in endpoints:
                    self.bound += self._bind(group, endpoint)
                return
            except CannotListen:
                if not tries or not any(isinstance(each, UdpEndpoint) and each.port_of for each in endpoints):
                    raise
                if any(self._ports.get(each.name, each.port) for each in endpoints):
                    raise  # it was not picked
                group.close()

    def _bind(self, group: Group, endpoint: TcpEndpoint | UdpEndpoint) -> Iterator[Bound]:
        key, host = self._config.host_of(self.name)
        port = self._ports.get(endpoint.name, endpoint.port)
        if isinstance(endpoint, UdpEndpoint):
            port = next((each.port for each in self.bound if each.endpoint == endpoint.port_of), port)
            networks = self._networks(self._config)
            for address in group.bind_udp(host, port, endpoint.sink, networks):
                yield Bound(self.name, endpoint.name, "udp", *address, tls=False)
        else:
            # The section where the address that may not be exposed was set.
            section = key.removesuffix(".host")
            addresses = group.bind_tcp(section, host, port, endpoint.open_session, pushes=endpoint.pushes)
            for address in addresses:
                yield Bound(self.name, endpoint.name, "tcp", *address, tls=group.tls is not None)

    def _networks(self, config: Config) -> Sequence[Subnet]:
        """Whose datagrams are taken; nobody's: everybody's. Raises ConfigError."""
        key, host = config.host_of(self.name)
        settings = config.protocols[self.name]
        allow = getattr(settings, "allow", ())
        if not hasattr(settings, "allow") and not is_loopback(host):
            # Nobody knows who sends datagrams, so to take everybody's needs a setting that says so.
            check_exposure(key, host, None, insecure=config.serve.insecure)
            allow = EVERYBODY
        return allowed_networks(f"{self.name}.allow", host, allow)
