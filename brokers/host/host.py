"""The host: one store, one control socket, and every protocol under a supervisor of its own.

    the process's nursery
      store.run                 commits, checkpoints, retention
      the control socket        health, status, metrics, the API
      the admin port            the same over TCP, for who logs in
      a SupervisedService per protocol       its listeners, connections and background work

All endpoints are bound before any is served, and a failure before that ends the start. Later a protocol that
crashes is logged, counted and started again with back-off; the others go on. A stop drains: nothing new is
accepted, waits end, pending output is sent, then everything is synced.
"""

import math
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import structlog
import trio

from brokers.access import users
from brokers.access.logins import Logins
from brokers.access.objects import UserObjects
from brokers.admin import application, charts, definitions, stopping
from brokers.admin.attention import Attention
from brokers.admin.charts import Charts
from brokers.admin.flows import Flows
from brokers.admin.gate import Gate, token_of
from brokers.admin.port import AdminPort, listen
from brokers.admin.rates import Rates
from brokers.admin.tracing import Traces
from brokers.admin.troubles import ENDS_DAYS, ServerReading
from brokers.bridges.bridges import Bridges
from brokers.bridges.making import OwnBridges
from brokers.bridges.own import NAME as BRIDGES_NAME
from brokers.bridges.settings import BridgeSettings, ends_of
from brokers.commands import control
from brokers.errors import SPACE_ADVICE, ExitCode, Failure, copy_errors, folder_errors
from brokers.host import logs
from brokers.host.fairness import LoopWatch, Stretches
from brokers.host.service import Bound, SupervisedService
from brokers.settings.config import USERS_NAME, Config
from brokers.settings.objects import SettingObjects
from brokers.settings.reloading import Apply, Prepare, Reloader
from brokers.ship.link import BucketLink
from shared.access import Access, written_users
from shared.budget import Account
from shared.errors import ConfigError, StoreError, StoreFull, StoreReadOnly
from shared.metrics import Sample, figures
from shared.net.listeners import CannotListen, check_exposure
from shared.net.network import Network
from shared.net.tls import DAY_SECONDS, ServerTls
from shared.objects import Objects, ObjectsByProtocol
from shared.plugin import Context, Plugin, Service
from shared.process_limits import memory_limit_bytes, resident_bytes
from shared.recording.recorder import Recording
from shared.storage.rebuild import BACKUPS
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from shared.storage.threads import Threads
from shared.storage.tools.backup import backup_files

if TYPE_CHECKING:
    from brokers.ship.folder_files import FolderFiles

UNUSED_SEGMENT_BYTES = 64 * 1024
"""For a journal that stays empty. Two segments of the usual size would be 128 MiB of zeros."""

MEMORY_PERCENT = 75
"""The share of the memory for everything that clients make grow."""
OWN_MEMORY_BYTES = 80 << 20
"""That share leaves so much, too, where memory is small: an idle server takes 66 MiB."""
LEAST_PERCENT = 12
"""Of the memory, for clients in any case; that may be more than there is, and the start says so."""
TELL_REFUSED_SECONDS = 60.0
"""An account that has no room is logged so often, however many requests it refuses."""
END_SECONDS = 5.0
"""For protocols to end behind the drain; one that does not is left where it is."""


def memory_for_clients(limit: int) -> int:
    """How many bytes clients may make grow, of the `limit` on the process's memory."""
    room = min(limit * MEMORY_PERCENT // 100, limit - OWN_MEMORY_BYTES)
    return max(room, limit * LEAST_PERCENT // 100)


class Host:
    """Serves all protocols. Call `run` once; `stop` ends it cleanly."""

    def __init__(
        self,
        plugins: Sequence[Plugin],
        config: Config,
        log: structlog.stdlib.BoundLogger,
        *,
        say: Callable[[str], None] | None = None,
        watch: LoopWatch | None = None,
        open_store: Callable[..., Awaitable[Store]] = Store.open,
        reread: Callable[[], Config] | None = None,
        leave: Callable[[ExitCode], None] = lambda _: None,
    ) -> None:
        """`reread`: the settings, as a start would read them now; without it a reload leaves them. `leave`
        ends the process although a protocol goes on, which nothing else can end: all is synced by then."""
        self._plugins = plugins
        self._config = config
        self._log = log
        self._say = say
        self._stop = trio.Event()
        self._started = time.monotonic()
        self._services: list[SupervisedService] = []
        self._all_served = trio.Event()
        self._admin_port: AdminPort | None = None
        self._reread = reread
        self._reloader: Reloader | None = None
        self._store: Store | None = None
        self._control_file: os.stat_result | None = None
        self._recording: Recording | None = None
        self._own_objects: ObjectsByProtocol = ()
        self._link = BucketLink(config.ship, config.serve.data_dir, log, self.stop)
        self.serves_anew = False
        """At the end: the folder was promoted, and the same server is to be started on it once more."""
        self._bridges: Bridges | None = None
        self._own_bridges: OwnBridges | None = None
        self.rates = Rates(self.samples)
        self._flows = Flows(lambda: [*self._objects()], log)
        self._charts = Charts(self._charted, config.serve.data_dir / charts.NAME, log)
        self._attention = Attention(self.objects, self._read_server, log, config.attention, time.time)
        self.traces = Traces(lambda: self._services, lambda: time.time_ns() / 1e6, self.share_of)
        self.page: str | None = None
        self.admin_token = ""
        self._memory_bytes = memory_limit_bytes()
        self._budget = Account("process", memory_for_clients(self._memory_bytes))
        self._budget.on_refused = self._tell_refused
        self._told_refused: dict[str, float] = {}
        loaded = users.load(config, log.warning)
        denied = logs.Gathered(partial(users.tell_denied, log), "user", "protocol", "rule")
        self._access = Access(loaded, audit=logs.audit, denied=denied)
        self._users = UserObjects(self._access, lambda: self._config.users_file, lambda: self._keep_files())
        self._files: FolderFiles | None = None
        """Where the store is shipped."""
        self._access.user_share = config.access.user_share
        self._budget.percent_of = self._access.share_of
        self._in_thread = Threads()
        self._network = Network(config.net, self._budget, config.access.certificate_user)
        self._access.connections_max = self._network.admission.connections_max
        self._logins = Logins(self._access, self._network.strangers)
        self._watch = watch
        self._open = open_store
        self._leave = leave

    def stop(self) -> None:
        """Begin to drain; `run` returns when all is done."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def run(
        self, *, task_status: "trio.TaskStatus[Sequence[Bound]]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `stop`; reports what was bound once everything is.

        Raises Failure and ConfigError where it cannot start, StoreError where the last sync failed.
        """
        folder = self._config.serve.data_dir
        if self._memory_bytes - self._budget.limit_bytes < OWN_MEMORY_BYTES:
            self._log.warning(
                "memory is short: the system may end the server when clients use what they may; give it more",
                memory=self._memory_bytes,
                clients=self._budget.limit_bytes,
            )
        with folder_errors(folder):
            ships = await self._link.arrive()
            options: Mapping[str, Any] = {} if ships is None else {"ships": ships}
            store = self._store = await self._open(folder, self._storage(), **options)
        if (recovered := store.statistics()).recovered_batches:
            self._log.info(
                "unclean shutdown: the journal was replayed; what was acknowledged is there",
                batches=recovered.recovered_batches,
                seconds=round(recovered.recovery_seconds, 3),
            )
        self._network.admission.on_connections = store.reserve_descriptors
        store.charge_to(self._budget.account("storage"))
        self._link.account = self._budget.account("bucket")
        try:
            with folder_errors(folder):
                await self._link.start(store)
                record = (
                    self._config.record
                    if not self._link.follows
                    else attrs.evolve(self._config.record, protocols=())
                )
                recording = self._recording = Recording(store, record, self._log)
            with copy_errors(folder, "control socket in"):
                listener = control.listen(folder)
                self._control_file = os.lstat(folder / control.NAME)
            with listener:
                await self._serve(store, recording, listener, task_status)
        finally:
            # However `run` ends, what was written is synced, and the lock is released. Only the disk delays
            # it.
            with trio.CancelScope(shield=True):
                await self._close(store)

    async def _close(self, store: Store) -> None:
        control.remove(self._config.serve.data_dir, self._control_file)
        if self._recording is not None:
            self._recording.flush()
        await store.close()
        self.serves_anew = await self._link.close(store)
        if self._all_served.is_set():
            self._log.info("stopped")

    async def _await_ends(self, store: Store) -> None:
        """Leave the process if a protocol does not end although it is cancelled: its code shields itself."""
        with trio.CancelScope(shield=True):
            for _ in range(2):  # a machine that is suspended meanwhile takes one of the halves
                with trio.move_on_after(END_SECONDS / 2):
                    for service in self._services:
                        await service.ended.wait()
                    return
            self._log.error(
                "a protocol does not end when it is told to: it is left in the middle; what was acknowledged "
                "is on disk; report this bug",
                protocols=", ".join(service.name for service in self._services if not service.ended.is_set()),
                seconds=END_SECONDS,
            )
            code = ExitCode.FAILED
            try:
                await self._close(store)
                code = ExitCode.OK
            except StoreError as error:
                self._log.error("the final sync failed", error=str(error))
            finally:
                self._leave(code)

    async def _serve(
        self,
        store: Store,
        recording: Recording,
        listener: socket.socket,
        task_status: "trio.TaskStatus[Sequence[Bound]]",
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.run)
                await nursery.start(application.serve, self, listener, self._log)
                nursery.start_soon(self._link.run)
                nursery.start_soon(recording.run)
                await nursery.start(self._logins.run)
                self._services = [self._service(plugin, store, recording) for plugin in self._plugins]
                with store.reading_on_loop():
                    for service in tuple(self._services):
                        await self._open_service(service)
                bridges = self._bridges = self._make_bridges(store)
                if not self._link.follows:
                    await bridges.open()
                    await self._take_definitions()
                self.definitions().tell_lowered(self._log)
                reloader = self._reloader = self._make_reloader()
                self._own_objects = self._make_objects(bridges, reloader)
                await self._open_admin(nursery, reloader)
                reloader.register(bridges.prepare)
                reloader.register(self._prepare_users)  # last: guards are as set before it
                if store.shipping is not None:
                    from brokers.ship.folder_files import FolderFiles

                    with suppress(StoreError):  # it is full, or read-only, which is told
                        self._files = await FolderFiles.open(store, self._log)
                        nursery.start_soon(self._keep_files)  # a start waits for no bucket
                nursery.start_soon(self.rates.run)
                nursery.start_soon(self._flows.run)
                nursery.start_soon(self._charts.run)
                nursery.start_soon(self.traces.run)
                for service in self._services:
                    await nursery.start(service.run)
                if self._link.follows:
                    nursery.start_soon(self._link.show_what_comes, self._look_anew)
                else:
                    await bridges.change(self._config.bridges)
                nursery.start_soon(bridges.run)
                nursery.start_soon(reloader.run)
                nursery.start_soon(self._tell_endings)
                nursery.start_soon(self._attention.run)
                self._all_served.set()
                task_status.started([bound for service in self._services for bound in service.bound])
                await self._stop.wait()
                await self._drain()
                await self._link.finish()
                nursery.start_soon(self._await_ends, store)
                nursery.cancel_scope.cancel()
        finally:
            for service in self._services:
                service.close()

    def _service(self, plugin: Plugin, store: Store, recording: Recording) -> SupervisedService:
        log = self._log.bind(protocol=plugin.name)
        context = Context(store, log, self._say, recording.of(plugin.name), budget=self._budget)
        return SupervisedService(plugin, self._config, context, self._network, self._access)

    async def _open_service(self, service: SupervisedService) -> None:
        try:
            with folder_errors(self._config.serve.data_dir):
                await service.open()
        except StoreFull as error:
            text = f"{service.name} cannot be opened: {error}: {SPACE_ADVICE}"
            raise Failure(text, ExitCode.DATA_FOLDER) from error
        except StoreReadOnly as error:
            if not self._link.follows:
                raise Failure(f"{service.name} cannot be opened: {error}") from error
            self._services.remove(service)
            self._log.warning(
                "not served here: the server that is followed has nothing of this protocol yet; restart this "
                "one once it has",
                protocol=service.name,
            )
        except StoreError as error:
            repair = f"brokers fsck --repair --data-dir {self._config.serve.data_dir}"
            text = f"{service.name} cannot be opened: {error}; {repair} says more and puts right what can be"
            raise Failure(text) from error

    async def _look_anew(self) -> None:
        for service in tuple(self._services):
            try:
                await service.look_anew()
            except Exception as error:  # of what is only looked at: all else goes on
                self._log.warning(
                    "lists of a protocol show what they did before: it is tried again with what comes next",
                    protocol=service.name,
                    reason=repr(error),
                )

    def _make_bridges(self, store: Store) -> Bridges:
        def service(protocol: str) -> Service | None:
            return next((each.service for each in self._services if each.name == protocol), None)

        return Bridges(
            store, self._log, service, ends_of(self._plugins), access=self._access, budget=self._budget
        )

    def _make_reloader(self) -> Reloader:
        takes = {service.name: service.takes_settings for service in self._services}
        reloader = Reloader(self._config, takes, self._log, self._reread)
        reloader.register(self._prepare)
        for service in self._services:
            reloader.register(service.prepare, service.watched)
        return reloader

    def _make_objects(self, bridges: Bridges, reloader: Reloader) -> ObjectsByProtocol:
        """The objects that no protocol has."""
        settings = SettingObjects(lambda: self._config, lambda dry_run: reloader.reload(dry_run=dry_run))
        own = self._own_bridges = OwnBridges(
            self._config.serve.data_dir,
            bridges.ends,
            lambda: reloader.config.bridges,
            partial(self._take_bridges, bridges, reloader),
        )
        return (
            ("bridges", own.added_to(bridges.objects)),
            ("users", self._users.objects),
            ("settings", settings.objects),
        )

    async def _take_bridges(
        self, bridges: Bridges, reloader: Reloader, every: tuple[BridgeSettings, ...]
    ) -> None:
        await reloader.take_bridges(bridges.prepare, every)
        await self._keep_files()

    async def _keep_files(self) -> None:
        """Have the bucket get what is in the files beside the logs, without secrets."""
        if self._files is None:
            return
        await self._files.keep_copy(self._config.serve.data_dir / BRIDGES_NAME)
        named = self._access.users  # as of now: they may have changed meanwhile
        users = {name: attrs.evolve(user, password=None) for name, user in (named or {}).items()}
        await self._files.keep(USERS_NAME, None if named is None else written_users(users).encode())

    async def _prepare(self, config: Config) -> Apply:
        """What is the host's own."""

        async def apply() -> None:
            self._config = config
            self._access.user_share = config.access.user_share
            self._attention.settings = config.attention
            logs.set_level(config.serve.log_level)
            self._network.take_settings(config.net, config.access.certificate_user)
            self._access.connections_max = self._network.admission.connections_max
            if self._recording is not None:
                self._recording.take_settings(config.record)

        return apply

    async def _prepare_users(self, config: Config) -> Apply:
        loaded = await self._in_thread(users.load, config, self._log.warning, abandon_on_cancel=True)
        if loaded is None and self._access.users is not None:
            raise ConfigError("access.users_file", f"{config.users_file} is gone; its users stay")

        async def apply() -> None:
            self._access.replace(loaded)
            if self._store is not None:  # what ends with a right is in no connection's turn, which commits
                self._store.commit_pending()
            await self._keep_files()

        return apply

    async def _tell_endings(self) -> None:
        """Warn each day of certificates that end soon."""
        while True:
            now = time.time()
            soon: dict[float, list[str]] = {}
            for name, tls in self._certificates():
                if tls.ends < now + ENDS_DAYS * DAY_SECONDS:
                    soon.setdefault(tls.ends, []).append(name)
            for ends, names in soon.items():
                self._log.warning(
                    "a certificate ends soon; then clients refuse to connect: put a new one in its place, "
                    "which is taken up within a minute",
                    days=round((ends - now) / DAY_SECONDS, 1),
                    of=", ".join(names),
                )
            await trio.sleep(DAY_SECONDS)

    def _certificates(self) -> Iterator[tuple[str, ServerTls]]:
        """What listeners are served with, by their names."""
        for part in (*self._services, self._admin_port):
            if part is not None and part.tls is not None:
                yield ("admin" if isinstance(part, AdminPort) else part.name), part.tls

    async def _take_definitions(self) -> None:
        path = self._config.serve.definitions
        if path is not None:
            taken = await definitions.load(self.definitions(), path)
            if taken.told:
                self._log.warning(
                    "some definitions cannot be created here, and were left out; the others are loaded",
                    left_out=taken.left_out,
                    told=taken.told,
                )
            self._log.info("definitions are loaded", made=taken.made, same=taken.same)

    async def _open_admin(self, nursery: trio.Nursery, reloader: Reloader) -> None:
        """Serve the admin port, where there is to be one. Raises Failure and ConfigError.

        It is bound after the protocols: they were told their ports, and its own may only be the usual one.
        """
        config, ours = self._config, self._config.admin
        if not ours.enabled:
            return
        section, tls = config.admin_tls()
        check_exposure("admin.host", ours.host, tls, logs_in=True, insecure=config.serve.insecure)
        loaded = ServerTls.load(tls, section)
        try:
            sockets = listen(ours.host, ours.port)
        except CannotListen as error:
            if config.asked_for_admin_port:
                raise Failure(f"admin.port: {error}", ExitCode.CONFIGURATION) from error
            self._log.warning(
                "the admin port is taken: this server has no page; give it another port with --admin-port, "
                "or leave it out with admin.enabled = false",
                address=error.address,
                reason=error.reason,
            )
            return
        port = AdminPort(
            sockets,
            self._log,
            self._network.strangers,
            tls=loaded,
            certificate_user=config.access.certificate_user if tls.client_ca else "",
            handshake_seconds=config.net.handshake_seconds,
        )
        try:
            with folder_errors(config.serve.data_dir):
                self.admin_token = token_of(config.serve.data_dir)
        except Failure:
            port.close()
            raise
        gate = Gate(
            application.application(self),
            self._access,
            self._logins,
            token=self.admin_token,
            host=ours.host,
            port=port.address[1],
            names=ours.names,
            secure=loaded is not None,
        )
        self._admin_port = port
        reloader.register(_admin_reload(port, gate), lambda config: config.admin_tls()[1].files())
        await nursery.start(port.serve, gate)
        self.page = port.page

    def _storage(self) -> StorageSettings:
        config = self._config
        if (
            config.record.protocols
            or config.bridges
            or any(plugin.keeps(config.protocols[plugin.name]) for plugin in self._plugins)
        ):
            return config.storage
        small = min(config.storage.segment_bytes, UNUSED_SEGMENT_BYTES)
        return attrs.evolve(config.storage, segment_bytes=small)

    async def _drain(self) -> None:
        """Stop accepting, and let every protocol send its pending output, for `drain_seconds` at most."""
        seconds = self._config.serve.drain_seconds
        if self._bridges is not None:
            self._bridges.stop()
        with trio.move_on_after(seconds) as deadline:
            async with trio.open_nursery() as nursery:
                for service in self._services:
                    service.stop_accepting()
                for service in self._services:
                    nursery.start_soon(service.drain)
        if deadline.cancelled_caught:
            left = sum(service.connections for service in self._services)
            self._log.warning(
                "the drain took too long: connections were closed before all answers were sent; where "
                "clients need longer, raise serve.drain_seconds",
                seconds=seconds,
                connections_closed=left,
            )

    # What can be asked over the control socket and the admin port.

    def unready(self) -> str | None:
        """Return why the server is not ready for work; None if it is."""
        if self.stopping:
            return "draining"
        if not self._all_served.is_set() or self._store is None:
            return "starting"
        if self._store.read_only is not None and not self._store.follows:
            return f"the store is read-only: {self._store.read_only}"
        down = [service.name for service in self._services if service.state != "serving"]
        return f"restarting: {', '.join(down)}" if down else None

    def ready_but(self) -> str | None:
        """Return what a server that is ready lacks all the same, if anything."""
        return self._link.stands

    async def drill(self) -> Mapping[str, Any]:
        """Try a restore from the bucket out (`brokers.ship.drill`). Raises BrokerError and OSError."""
        drilled = await self._link.drill()
        return {"ok": drilled.ok, **attrs.asdict(drilled)}

    def status(self) -> Mapping[str, Any]:
        """Return the running protocols and the store's state, in JSON's values."""
        reason = self.unready()
        assert self._store is not None
        return {
            "state": "ready" if reason is None else "not ready",
            "reason": reason,
            "version": version("brokers"),
            "pid": os.getpid(),
            "uptime_seconds": round(self._uptime(), 3),
            "data_dir": str(self._config.serve.data_dir.absolute()),
            "attention": self._attention.few,
            "protocols": [service.status() for service in self._services],
            "store": attrs.asdict(self._store.statistics()),
            **self._link.status(),
        }

    def share_of(self, user: str) -> int:
        """The percent of every bound that a user may have."""
        return self._access.share_of(user)

    def objects(self) -> ObjectsByProtocol:
        """Return (protocol, objects of one kind) for all protocols, with their rates."""
        return [(name, self._charts.with_history(name, each)) for name, each in self._charted()]

    def _charted(self) -> ObjectsByProtocol:
        with_rates = [(name, self._flows.with_rates(each)) for name, each in self._objects()]
        return [*with_rates, *self._own_objects, ("", self._attention.objects)]

    def _objects(self) -> Iterator[tuple[str, Objects]]:
        return ((service.name, each) for service in self._services for each in service.objects)

    def _read_server(self) -> ServerReading:
        assert self._store is not None
        refused, self._access.refusals = self._access.refusals, Counter()
        stretches = Stretches()
        if self._watch is not None:
            stretches, self._watch.lately = self._watch.lately, stretches
        return ServerReading(
            protocols=[service.status() for service in self._services],
            store=self._store.statistics(),
            read_only=None
            if self._store.read_only is None or self._store.follows
            else str(self._store.read_only),
            accounts={account.name: account.refused for account in self._budget.all()},
            certificates=[(name, tls.ends) for name, tls in self._certificates()],
            wall=time.time(),
            refused=refused,
            stretches=(stretches.count, stretches.seconds, stretches.at),
            shipping=self._link.status().get("ship"),
        )

    def _tell_refused(self, account: Account) -> None:
        now = time.monotonic()
        if now - self._told_refused.get(account.name, -math.inf) < TELL_REFUSED_SECONDS:
            return
        self._told_refused[account.name] = now
        self._log.warning(
            "the memory that clients may take is used up: requests that need more are refused until some is "
            "given back; the metric budget_bytes tells who has it; end that, or give the server more memory",
            account=account.name,
            bytes=account.used_bytes,
            bytes_max=account.limit_bytes,
        )

    def overview(self) -> Mapping[str, Any]:
        """Return the server's state and its rates over the last minute."""
        return {
            **self.status(),
            "budget": [
                {
                    "account": account.name,
                    "bytes": account.used_bytes,
                    "bytes_max": account.limit_bytes,
                    "refused": account.refused,
                }
                for account in self._budget.all()
            ],
            "resident_bytes": resident_bytes(),
            "loop": {
                name: getattr(self._watch, name, None)
                for name in ("longest_seconds", "longest_at", "long_count")
            },
            **self.rates.overview(),
        }

    async def cost_of_stop(self) -> Mapping[str, Any]:
        """Return what a stop would end and lose."""
        assert self._store is not None
        return await stopping.cost_of_stop(self.objects(), self._store.statistics())

    def definitions(self) -> definitions.Document:
        """Return the document of durable objects, for export and import."""
        assert self._store is not None
        each = [(service.name, each) for service in self._services for each in service.definitions]
        own = [self._users.definitions]
        if self._own_bridges is not None:
            own.append(self._own_bridges.definitions())
        return definitions.Document(each, own, self._store)

    async def reload(self, *, user: str = "", peer: str = "") -> Mapping[str, Any]:
        """Take up what changed (`brokers.settings.reloading`), for who asks. Raises as `Reloader.reload`."""
        await self._all_served.wait()  # else it might miss what was opened before
        assert self._reloader is not None
        result = "refused"
        try:
            reloaded = await self._reloader.reload()
            result = "done"
        finally:
            logs.audit(user=user, peer=peer, protocol="", action="reload", name="", result=result)
        return {"users": len(self._access.users or ()), **attrs.asdict(reloaded)}

    @property
    def backups(self) -> Path:
        """Return the only folder in which requests over TCP may read and write files."""
        return self._config.serve.data_dir / BACKUPS

    async def backup(self, target: Path) -> Any:
        """Copy the live data folder to `target`. Raises BrokerError and OSError."""
        assert self._store is not None
        folder = self._config.serve.data_dir
        return await backup_files(self._store, folder, target, now_ms=time.time_ns() // 1_000_000)

    def _uptime(self) -> float:
        return time.monotonic() - self._started

    def samples(self) -> Iterator[Sample]:
        """Read all metrics now; those of gauges that add something up are not computed yet."""
        labels = (("version", version("brokers")), ("python", platform.python_version()))
        yield Sample("build_info", 1, "What runs.", "gauge", labels)
        yield Sample("uptime_seconds", self._uptime(), "Since the process started.", "gauge")
        yield Sample("ready", self.unready() is None, "1: takes work; 0: see /readyz.", "gauge")
        if self._store is not None:
            yield from figures("store", self._store.statistics())
            yield self._store.sync_times.sample("store_sync_seconds", "How long syncs of the journal took.")
        if self._recording is not None:
            yield from self._recording.samples()
        if self._watch is not None:
            yield from self._watch.samples()
        yield from self._link.samples()
        yield from self._budget.samples()
        yield from self._network.samples()
        yield from self._access.samples()
        yield from self._attention.samples()
        if self._bridges is not None:
            yield from self._bridges.samples()
        if self._admin_port is not None and self._admin_port.tls is not None:
            yield self._admin_port.tls.sample("admin", time.time())
        for service in self._services:
            yield from service.samples()


def _admin_reload(port: AdminPort, gate: Gate) -> Prepare:
    """The admin port as a part of every reload."""
    in_thread = Threads()

    async def prepare(config: Config) -> Apply:
        section, tls = config.admin_tls()
        loaded = await in_thread(ServerTls.load, tls, section)

        async def apply() -> None:
            port.tls = loaded
            port.certificate_user = config.access.certificate_user if tls.client_ca else ""
            gate.take_settings(config.admin.names, secure=loaded is not None)

        return apply

    return prepare
