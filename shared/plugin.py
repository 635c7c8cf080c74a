"""The contract between the host and a protocol: the one object that a protocol package shows.

A protocol is a package with an entry point in the group `brokers.protocols` that names a `Plugin`. The host
finds it, reads its settings, opens its service, binds its endpoints and runs them; it knows no protocol by
name. Nothing in here is any one protocol's word.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from shared.budget import Account, unbounded
from shared.metrics import Sample

if TYPE_CHECKING:  # a protocol's commands import this module, and have no use for a store
    import structlog

    from shared.access import Guard
    from shared.net.connection import Connection, Session
    from shared.net.datagram_sink import DatagramSink, SlotSink
    from shared.recording.recorder import Recorder
    from shared.storage.store import Store


@attrs.frozen
class TcpEndpoint:
    """A TCP listener to bind: `open_session` is called once for each accepted connection.

    `pushes` is True where the server sends unasked (TAIL, fan-out): such connections get no user timeout,
    since it would end a living peer whose window stays closed (PROMISES: half-open peer).
    """

    name: str
    port: int
    open_session: "Callable[[Connection], Session]"
    pushes: bool = False


@attrs.frozen
class UdpEndpoint:
    """A UDP socket to bind; received datagrams go to `sink` in bulk.

    `port_of`: the endpoint of this service, before it in `endpoints`, whose port it has, picked or not.
    """

    name: str
    port: int
    sink: "DatagramSink | SlotSink"
    port_of: str | None = None


@attrs.frozen
class Verb:
    """An administrative verb that has no word on the protocol's wire, served on the control socket.

    `POST /<protocol>/<name>` with a JSON object as arguments; the result is JSON. Raise `BrokerError` for a
    refusal that the user should read.
    """

    name: str
    summary: str
    call: Callable[[Mapping[str, Any]], Awaitable[Any]]
    takes: Sequence[str] | None = None
    """The arguments that there are: another is refused before the call. None: `call` looks itself."""
    changes: str | None = None
    """The argument that names what it changes or writes: each call leaves a line in the audit log. None:
    nothing."""
    paths: Sequence[str] = ()
    """The arguments that are paths on the server's machine: over TCP only what is below the data folder's
    `backups` can be named."""


class Service(Protocol):
    """One running protocol. It may have `objects: Sequence[Objects]`: what it has, for lists and actions.

    `definitions: Sequence[DefinitionSection]`: what is written down of it, and made again from that.

    `async def trace(self, tap)`: give copies of what passes to a `shared.tracing.Tap`, until cancelled.

    `async def take_settings(self, settings)`: take those from now on, at a reload. Fields that say `restart`
    in their metadata are as they were. It has nothing to refuse. Without it nothing of its section changes
    before the next start but `tls` and `access`.
    """

    endpoints: Sequence[TcpEndpoint | UdpEndpoint]
    admin_verbs: Sequence[Verb]

    async def run(self) -> None:
        """Background work; may return at once. It is cancelled after the drain."""

    def drain(self) -> None:
        """The host stops accepting: end waits as if they had timed out, say goodbye where one can."""

    def samples(self) -> Iterable[Sample]:
        """Metrics, read at scrape time from plain ints."""


@attrs.frozen
class Context:
    """What the host lends a service.

    `say`: a line for whoever watches this protocol (`ServeRequest.says`); it must not hold control
    characters. None: nobody does, and the service logs it. `budget`: the protocol's account; what its clients
    make grow is taken from it. `access`: what its sessions ask about their clients (`SessionBase.admit`);
    None: everything is allowed.
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

    `settings`: a frozen attrs class, every field with a default; it is the TOML section named `name`, and has
    `port: int`. It may have `tls: TlsSettings`, which then stands instead of the section `[tls]`, `host`
    (`host_setting`), `access: ProtocolAccessSettings`, and `logs_in`, true where every client has to log in.
    A class in it that reads itself from text (`parse`) and is a secret says so with `secret = True`.
    `open(context, settings)`: load state, return the service; nothing is bound yet.

    `cli`: `"module:attribute"` of a cyclopts App, named as the plugin, with the protocol's own commands; it
    is imported only when one is called. A verb prints nothing: it returns what it found (None, text, bytes,
    a mapping or attrs object, a sequence of these for a table, an iterator or async iterator for rows as
    they come), or is async and does so, and the host shows it. A verb with a parameter `json: bool = False`
    gets JSON lines from the host when it is given. One with a parameter of the class
    `shared.cli.options.Server` (or `Place`) gets the flags that say where the server is, and in it what they
    and the settings come to. One whose help begins with `List the queues` gets `--wide` and `--columns`, and
    says `no queues` for an empty list; its columns stand in order of what matters. For a refusal raise
    `BrokerError`; a refused connection may simply escape (exit 69). `serve`, if there is one, returns a
    `ServeRequest`; the host adds its own flags to it.

    `tables`: `"module:attribute"` of the `shared.tables.table.Table`s that the records of its logs are,
    imported by the pipeline alone. `actions`: what the rules of users can allow here. `topics`: names are
    topics with levels, and who reads subscribes to patterns of them. `replays`: the same as `tables` of a
    `shared.replaying.Replays`: how messages of the past can be sent again. `unrecorded`: why nothing
    of it is recorded; None: its service uses `Context.recorder`. `keeps(settings)`: whether, so set, it
    writes anything to the store; where nobody
    does, the journal is made small. `command_variables`: what its commands take from the environment beside
    the settings: `"user"` is `BROKERS_<NAME>_USER`, which is no mistake then where something is served.
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


def opened_by(where: str) -> Callable[[Context, Any], Awaitable[Service]]:
    """`Plugin.open` as `"module:function"`, which is imported once a service is opened: commands load plugins
    too, and have no use for a server."""
    return lambda context, settings: resolve_name(where)(context, settings)


@attrs.frozen
class ServeRequest:
    """What a protocol's own `serve` verb returns: the host then serves just that protocol.

    `settings`: section -> key -> value, laid over file and environment like flags. `flags`: by which flag a
    key was given, where that is not named as the key. `defaults`: as `settings`, but laid below both, where
    this verb's own defaults differ from those of the settings. `says`: what the service has to `say` is
    written to standard output, a line each, and nothing else is.
    """

    protocol: str
    settings: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Mapping[str, Any]] = {}
    flags: Mapping[str, str] = {}
    says: bool = False


class AdminApi(Protocol):
    """The API of a running server. `parts`: of a path, as they are written. Raises BrokerError."""

    def get(self, *parts: str, **query: Any) -> Any:
        """Ask for a list, an object, or what an action that changes nothing says."""

    def rows(self, kind: str, **query: Any) -> Sequence[Mapping[str, Any]]:
        """All of a list."""

    def post(self, *parts: str, dry_run: bool = False, **arguments: Any) -> Any:
        """Do something with an object, or make one."""

    def delete(self, *parts: str, dry_run: bool = False) -> Any:
        """Delete an object."""


@attrs.frozen
class ApiRequest:
    """What a protocol's own command returns to ask the API of a running server: the host calls `ask`, and
    shows what it returns. `flags` is the host's: what was given of the flags that it adds to every verb that
    is said to return this. A verb with a parameter `server: Server | None` gets None there where these name
    the API of a server.
    """

    ask: Callable[[AdminApi], Any]
    flags: Mapping[str, Any] = {}


@attrs.frozen
class VerbRequest:
    """What a protocol's own command returns to have one of its administrative verbs called.

    The host asks the server that runs on the data folder (None: the one that settings and environment name)
    and shows what it answers. `cold`: where none runs, the host opens the folder itself, serves nothing, and
    calls the verb of the service that it opened; without it that is an error (exit 69). `own_dir`: the folder
    of the protocol's own `serve`, for where nobody has named one and the host's usual one is not there.
    `flags` is the host's: what was given of the flags that it adds to every verb that is said to return this.
    `paths`: the arguments that are paths; those of another machine are for the server to read.
    """

    protocol: str
    verb: str
    arguments: Mapping[str, Any]
    data_dir: Path | None = None
    cold: bool = False
    own_dir: Path | None = None
    flags: Mapping[str, Any] = {}
    paths: Sequence[str] = ()
