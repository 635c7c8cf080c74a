"""The contract between the host and a protocol: the one object that a protocol package exports.

A protocol is a package with an entry point in the group `brokers.protocols` that names a `Plugin`. The host
finds it, reads its settings, opens its service, binds its endpoints and runs them; it knows no protocol by
name. This module uses no single protocol's words.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from shared.budget import Account, unbounded
from shared.metrics import Sample

if TYPE_CHECKING:  # commands import this module, and need no store
    from pathlib import Path

    import structlog

    from shared.access import Guard
    from shared.net.connection import Connection, Session
    from shared.net.datagram_sink import SlotSink
    from shared.recording.recorder import Recorder
    from shared.storage.store import Store


@attrs.frozen
class TcpEndpoint:
    """A TCP listener to bind: `open_session` is called once for each accepted connection.

    `pushes`: whether the server sends unasked (TAIL, fan-out). Such connections get no user timeout, which
    would end a living peer whose window stays closed (PROMISES: half-open peer).
    """

    name: str
    port: int
    open_session: "Callable[[Connection], Session]"
    pushes: bool = False


@attrs.frozen
class UdpEndpoint:
    """A UDP socket to bind; received datagrams go to `sink` in frames.

    `port_of`: an earlier endpoint in `endpoints` whose port this one shares, also if the system picked it.
    """

    name: str
    port: int
    sink: "SlotSink"
    port_of: str | None = None


class Service(Protocol):
    """One running protocol. These members are optional:

    `objects: Sequence[Objects]`: its objects, for lists and actions.

    `definitions: Sequence[DefinitionSection]`: its durable objects, to export and create again.

    `async def trace(self, tap)`: copy passing messages to a `shared.tracing.Tap`, until cancelled.

    `async def look_anew(self)`: have `objects` show what was applied where the store follows another one.
    Without it the service is opened once more for that, now and then.

    `async def take_settings(self, settings)`: apply new settings at a reload. Fields with `restart` in their
    metadata have their old values. It must accept all. Without it, only `tls` and `access` of its section
    change before the next start.
    """

    endpoints: Sequence[TcpEndpoint | UdpEndpoint]

    async def run(self) -> None:
        """Background work; may return at once. It is cancelled after the drain."""

    def drain(self) -> None:
        """The host stops accepting: end waits as if they had timed out, and send a goodbye if the protocol
        has one."""

    def samples(self) -> Iterable[Sample]:
        """The protocol's metrics, made at each scrape from plain ints."""


@attrs.frozen
class Context:
    """What the host gives a service.

    `say`: takes a line for standard output (`ServeRequest.says`), without control characters. None: the
    service logs such lines. `budget`: the protocol's account, for memory that its clients make grow.
    `access`: decides what clients may do (`SessionBase.admit`); None: everything is allowed.
    """

    store: "Store"
    log: "structlog.stdlib.BoundLogger"
    say: Callable[[str], None] | None = None
    recorder: "Recorder | None" = None
    access: "Guard | None" = None
    budget: Account = attrs.field(factory=unbounded)


@attrs.frozen
class Plugin:
    """A protocol, as the host sees it.

    `settings`: a frozen attrs class, every field with a default: the TOML section named `name`. It must have
    `port: int`. It may have `tls: TlsSettings`, which replaces the section `[tls]`, `host` (`host_setting`),
    `access: ProtocolAccessSettings`, `logs_in`, true if every client must log in, and `needs_bucket`, the
    name of a setting that is set and needs `[ship]`. A class in it that
    parses itself from text (`parse`) and is a secret has `secret = True`. `open(context, settings)`: load
    state and return the service; nothing is bound yet.

    `cli`: `"module:attribute"` of a cyclopts App, named as the plugin, with the protocol's commands; imported
    only when one is called. A command prints nothing. It returns its result, or is async and does so, and the
    host shows it. A result is None, text, bytes, a mapping or attrs object, or a sequence of these for a
    table. It may also be an iterator (also async) of rows as they come. With a parameter `json: bool = False`
    the host writes JSON lines if the flag is given. With a parameter of the class `shared.cli.options.Server`
    (or `Place`) the command gets the flags for the server's address, resolved with the settings. If its help
    begins with `List the queues`, it gets `--wide` and `--columns`, prints `no queues` for an empty list, and
    has its most important columns first. A refusal raises `BrokerError`; a refused connection may escape
    (exit 69). `serve`, if there is one, returns a `ServeRequest`, and the host adds its own flags.

    `tables`: `"module:attribute"` of a sequence of `shared.tables.table.LogTable`, for the records of its
    logs; only the pipeline imports it. `actions`: the actions that rules of users can allow. `topics`: names
    are topics with levels, and readers subscribe to patterns. `replays`: `"module:attribute"` of a
    `shared.replaying.Replays`. `unrecorded`: why the protocol is not recorded; None: its service uses
    `Context.recorder`. `keeps(settings)`: whether the service writes to the store with these settings; if no
    protocol does, the journal is made small. `command_variables`: the keys that its commands read from the
    environment beside the settings: `"user"` is `BROKERS_<NAME>_USER`, which a server then ignores.
    `own_folder`: the data folder of the protocol's own `serve`. Its commands mean that one if nothing names
    another and the host's usual one does not exist.
    """

    name: str
    summary: str
    settings: type[Any]
    open: Callable[[Context, Any], Awaitable[Service]]
    cli: str
    tables: str | None = None
    replays: str | None = None
    bridges: str | None = None
    unrecorded: str | None = "it has nothing that can be recorded"
    keeps: Callable[[Any], bool] = lambda settings: True
    command_variables: Sequence[str] = ()
    actions: Sequence[str] = ("read", "write", "manage")
    topics: bool = False
    own_folder: str = ""


def opened_by(where: str) -> Callable[[Context, Any], Awaitable[Service]]:
    """`Plugin.open` as `"module:function"`, imported when the service is opened: commands load plugins, too,
    and need no server."""
    return lambda context, settings: resolve_name(where)(context, settings)


@attrs.frozen
class ServeRequest:
    """The result of a protocol's own `serve` command: the host then serves that protocol alone.

    `settings`: section -> key -> value; they override file and environment, like flags. `flags`: the flag of
    a key, where their names differ. `defaults`: as `settings`, but below file and environment: this command's
    own defaults. `says`: standard output gets the lines that the service says, and nothing else.
    """

    protocol: str
    settings: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Mapping[str, Any]] = {}
    flags: Mapping[str, str] = {}
    says: bool = False


class AdminApi(Protocol):
    """The API of a running server. `parts`: the parts of a path, not escaped. Raises BrokerError."""

    def get(self, *parts: str, **query: Any) -> Any:
        """Get a list, an object, or the answer of an action that changes nothing."""

    def rows(self, kind: str, **query: Any) -> Sequence[Mapping[str, Any]]:
        """All rows of a list."""

    def post(self, *parts: str, dry_run: bool = False, **arguments: Any) -> Any:
        """Run an action on an object, or create one."""

    def delete(self, *parts: str, dry_run: bool = False) -> Any:
        """Delete an object."""

    def path(self, path: "Path") -> str:
        """A path as the server takes it: absolute on this machine; elsewhere a name in its `backups`."""


@attrs.frozen
class ApiRequest:
    """The result of a protocol's command that asks the API of a running server: the host calls `ask`, and
    shows its result. If the flags name the API of a server, the command's parameter `server: Server | None`
    is None. `lists`: the kind whose rows `ask` returns. `server`, `folder` and `name` belong to the host: the
    server that the flags name, and the data folder that is meant where they name none.
    """

    ask: Callable[[AdminApi], Any]
    lists: str | None = None
    server: Any = None
    folder: "Path | None" = None
    name: str | None = None
