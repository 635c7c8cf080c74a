"""The flags of serving, for `brokers serve` and for every protocol's own `serve`, and of other commands.

Flags pass text on to `config.load`, which reads all settings, so a value is checked in one place.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import App, Parameter

import shared
from brokers.commands.server_address import DataDir, ServerAddress
from brokers.errors import InvalidSettings, Problem
from shared.cli.app import examples, protocol_app
from shared.cli.options import (
    AdminUrl,
    Ca,
    Certificate,
    Context,
    Hidden,
    Host,
    Key,
    KeyFile,
    PasswordFile,
    Port,
    Tls,
    TokenFile,
    User,
    a_path,
    flag,
)

if TYPE_CHECKING:
    from shared.plugin import ServeRequest

ConfigFile = Annotated[
    Path | None, Parameter(help="A TOML file of settings (or BROKERS_CONFIG).", converter=a_path)
]

# The names are those of the settings in `[serve]`, except `config`, `admin_port` and `ready_file`.
HOST_FLAGS: Mapping[str, Any] = {
    "config": ConfigFile,
    "host": Annotated[str | None, Parameter(help="Address to bind; 127.0.0.1 unless set.")],
    "data_dir": Annotated[
        Path | None,
        Parameter(name=("--data-dir", "-D"), help="The data folder; ./data unless set.", converter=a_path),
    ],
    "durability": Annotated[
        str | None,
        Parameter(help="When a write is acknowledged: always (it is on disk), interval:50ms, or none."),
    ],
    "log_level": Annotated[
        Literal["debug", "info", "warning", "error"] | None, Parameter(help="Least to log.")
    ],
    "log_format": Annotated[Literal["text", "json"] | None, Parameter(help="Form of the log lines.")],
    "insecure": Annotated[
        bool | None,
        Parameter(help="Serve everybody who reaches the address from other machines.", negative=""),
    ],
    "admin_port": Annotated[
        str | None,
        Parameter(help="Port of the page and the API for operating; 0 picks one. 15800 unless set."),
    ],
    "ready_file": Annotated[
        Path | None,
        Parameter(help="Write the bound addresses here, as JSON, once all are ready.", converter=a_path),
    ],
}

RECORD_FLAG: Mapping[str, Any] = {
    "record": Annotated[
        bool | None, Parameter(help="Write down what passes through, as [record] has it.", negative="")
    ]
}
"""The flag of protocols that can be recorded."""


@attrs.frozen
class Flag:
    """A setting given on the command line; `source` is the flag as it was written (`--port`)."""

    key: tuple[str, ...]
    value: Any = attrs.field(repr=False)  # it may be a secret
    source: str


@attrs.frozen
class ServeCommand:
    """What to serve, by the command line: settings that are given, and not read yet.

    `defaults`: the command's own, which the file and the environment override. `says`: services' own lines go
    to standard output. `words`: the whole command line.
    """

    config: Path | None = None
    ready_file: Path | None = None
    flags: tuple[Flag, ...] = ()
    defaults: tuple[Flag, ...] = ()
    says: bool = False
    words: tuple[str, ...] = ()


def port_flags(ports: Iterable[str]) -> Iterator[Flag]:
    """Yield settings from `--port PROTO=PORT`. Raises InvalidSettings."""
    for text in ports:
        protocol, equals, port = text.partition("=")
        if not (equals and protocol and port):
            raise InvalidSettings(
                (Problem("--port", f"{text!r} is not PROTOCOL=PORT, as logmq=8080", "--port"),)
            )
        yield Flag((protocol, "port"), port, "--port")


def with_host_flags(command: Callable[..., Any], *, recordable: bool = False) -> Callable[..., ServeCommand]:
    """Add the host's flags to a `serve` command.

    It returns a ServeCommand, or a protocol's ServeRequest. `recordable`: the protocol can be recorded.
    """

    def serve(own: Callable[[], Any], given: dict[str, Any]) -> ServeCommand:
        record = bool(given.pop("record", None))
        result = own()
        serving = result if isinstance(result, ServeCommand) else _requested(result, record)
        files = {name: given.pop(name) for name in ("config", "ready_file") if name in given}
        settings = []
        if (port := given.pop("admin_port", None)) is not None:
            settings += [
                Flag(("admin", "port"), port, "--admin-port"),
                Flag(("admin", "enabled"), "true", "--admin-port"),
            ]
        settings += [
            Flag(
                ("serve", name),
                str(value).lower() if value is True else str(value),
                f"--{name}".replace("_", "-"),
            )
            for name, value in given.items()
            if value is not None
        ]
        return attrs.evolve(serving, flags=(*settings, *serving.flags), **files)

    kinds = {**HOST_FLAGS, **(RECORD_FLAG if recordable else {})}
    return with_flags(command, {name: (kind, None) for name, kind in kinds.items()}, serve)


def with_admin_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add flags to a host's command with a parameter of the class `ServerAddress`, which gets what they
    say; or to one that returns an ApiRequest, which is for that server."""
    parameters = inspect.signature(command, eval_str=True).parameters
    wanted = next((name for name, each in parameters.items() if each.annotation is ServerAddress), None)

    def wrapped(own: Callable[..., Any], given: dict[str, Any]) -> Any:
        server = ServerAddress.of_flags(given)
        return attrs.evolve(own(), server=server) if wanted is None else own(**{wanted: server})

    return with_flags(command, server_flags(command, speaks=False), wrapped, without=wanted)


def server_flags(command: Callable[..., Any], *, speaks: bool, port: Any = Port) -> Mapping[str, Any]:
    """The flags that say which server a command means: the same for all, by the fields of `ServerAddress`.

    `speaks`: it speaks a protocol. Another command shows fewer of them in its help, and refuses the rest.
    """
    has_key = "key" in inspect.signature(command).parameters
    return {
        "host": (Host if speaks else AdminUrl, None),
        "port": (port if speaks else Annotated[Port, Hidden], None),
        "context": (Context, None),
        "data_dir": (DataDir, None),
        **CONFIG_FLAG,
        "token_file": (TokenFile, None),
        "user": (User, None),
        "password_file": (PasswordFile, None),
        "tls": (Tls if speaks else Annotated[Tls, Hidden], False),
        "ca": (Ca, None),
        "certificate": (Certificate, None),
        "key_file": (KeyFile if has_key else Key, None),  # a command may have a `--key` of its own
    }


def host_command(name: str, *lines: str, before: str = "") -> Callable[[Callable[..., Any]], App]:
    """Make an app of a command of the host, with the flags that it is to have.

    A command with a parameter of the class `ServerAddress` asks a running server; one whose help begins with
    `List the queues` lists them. `lines`: examples; `before`: the help above them.
    """
    app = App(name=name, help_format="plaintext", help_epilogue=before + examples("brokers", *lines))

    def add(command: Callable[..., Any]) -> App:
        app.default(_with_own_flags(command))
        return app

    return add


def host_app(name: str, help_: str, *lines: str) -> tuple[App, Callable[..., Callable[[Any], Any]]]:
    """Make an app for commands below one word of the host's: the app, and a decorator for its commands."""
    app, add = protocol_app(name, help_, *lines)

    def command(*lines: str, name: str | None = None) -> Callable[[Any], Any]:
        return lambda command: add(*lines, name=name)(_with_own_flags(command))

    return app, command


def _with_own_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)
    asks = any(each.annotation is ServerAddress for each in signature.parameters.values())
    # The import is slow. While nobody has imported the module, no command returns such a request.
    plugin = sys.modules.get(f"{shared.__name__}.plugin")
    asks = asks or (plugin is not None and signature.return_annotation is plugin.ApiRequest)
    command = with_table_flags(command)
    return with_admin_flags(command) if asks else command


CONFIG_FLAG: Mapping[str, Any] = {"config": (ConfigFile, None)}

TABLE_FLAGS: Mapping[str, Any] = {
    "wide": (Annotated[bool, flag("All columns on a terminal, however wide.")], False),
    "columns": (Annotated[str | None, Parameter(help="Show these columns: names with commas.")], None),
}
_LISTED = re.compile(r"List the (\w+)")


def listed(command: Callable[..., Any]) -> str | None:
    """Return what a command lists, by its help (`List the queues ...`); None for another command."""
    match = _LISTED.match(command.__doc__ or "")
    return match[1] if match else None


def with_table_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add flags for the form of the table to a command that lists something.

    The host reads these flags when it shows what the command returns.
    """
    return command if listed(command) is None else with_flags(command, TABLE_FLAGS, lambda own, given: own())


def with_flags(
    command: Callable[..., Any],
    flags: Mapping[str, tuple[Any, Any]],
    use: Callable[[Callable[..., Any], dict[str, Any]], Any],
    without: str | None = None,
) -> Callable[..., Any]:
    """Add `flags` (type, default) to a command. A flag of the command's own stays.

    `use(own, given)` calls the command, whose own arguments are bound in `own`, and returns the command's
    result. `without`: a parameter that is not on the command line, because `use` sets it.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != without]
    names = {parameter.name for parameter in own}
    added = {name: flag for name, flag in flags.items() if name not in names}
    if not added and without is None:
        return command  # it has them already: a protocol's commands may be prepared twice

    @functools.wraps(command)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        given = {name: keywords.pop(name, default) for name, (_, default) in added.items()}
        return use(functools.partial(command, *arguments, **keywords), given)

    parameters = [
        *own,
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in added.items()
        ),
    ]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _requested(request: "ServeRequest", record: bool) -> ServeCommand:
    command = f"brokers {request.protocol} serve"
    recorded = [Flag(("record", "protocols"), request.protocol, "--record")] if record else []
    settings = [
        Flag((section, name), value, request.flags.get(name, f"--{name}".replace("_", "-")))
        for section, name, value in _said(request.settings)
    ]
    return ServeCommand(
        flags=(Flag(("serve", "enable"), request.protocol, command), *recorded, *settings),
        defaults=(
            Flag(("admin", "enabled"), "false", command),
            *(Flag((section, name), value, command) for section, name, value in _said(request.defaults)),
        ),
        says=request.says,
    )


def _said(sections: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    for section, settings in sections.items():
        for name, value in settings.items():
            if value is not None:
                yield section, name, value
