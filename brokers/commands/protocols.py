"""The commands of installed protocols: a module attribute for each protocol, made when it is first used.

cyclopts imports a command from `"module:attribute"` when it is called. `"brokers.commands.protocols:logmq"`
works for protocols that this package does not know by name.
"""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import attrs
from cyclopts import App, Parameter

from brokers import plugins
from brokers.commands.flags import server_flags, with_flags, with_host_flags, with_table_flags
from brokers.commands.server_address import ServerAddress, folder_of, with_server
from brokers.errors import Failure
from shared.cli.confirm import Yes, confirm
from shared.cli.options import Place, Port
from shared.plugin import ApiRequest, Plugin


def __getattr__(name: str) -> App:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return _app(name)
    except Failure as error:
        # A broken protocol gets a command that says so. A list of commands must not fail for one of them.
        return _broken(name, error)


def _app(name: str) -> App:
    plugin = plugins.load(name)
    module, _, attribute = plugin.cli.partition(":")
    try:
        app = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise Failure(f"the commands of protocol {name!r} cannot be used: {plugins.said(error)}") from None
    if not isinstance(app, App) or app.name != (name,):
        raise Failure(
            f"the commands of protocol {name!r} cannot be used: {plugin.cli} is no App of that name"
        )
    if app.help_epilogue is None:
        app.help_epilogue = ""  # otherwise it shows the host's examples
    if "serve" in app:
        serve = app["serve"]
        if serve.default_command is not None:
            serve.default_command = with_host_flags(
                serve.default_command, recordable=plugin.unrecorded is None
            )
    _prepare(app, plugin)
    return app


def _prepare(app: App, plugin: Plugin) -> None:
    """Add the host's flags to the commands of an app, and of the apps in it."""
    for word in app:
        own = app[word]
        if own.default_command is not None:
            own.default_command = with_table_flags(_with_server(own.default_command, plugin))
        if not word.startswith("-"):
            _prepare(own, plugin)


def _with_server(command: Callable[..., Any], plugin: Plugin) -> Callable[..., Any]:
    """Add the flags that say which server a protocol's command means, and what asks before it destroys.

    A command without a parameter of the class `Place` or `Server` that returns no request stays as it is.
    """
    signature = inspect.signature(command, eval_str=True)
    wanted, kind, may_ask = next(
        (
            (name, each, type(None) in get_args(parameter.annotation))
            for name, parameter in signature.parameters.items()
            for each in (parameter.annotation, *get_args(parameter.annotation))
            if isinstance(each, type) and issubclass(each, Place)
        ),
        (None, Place, True),
    )
    if wanted is None and signature.return_annotation is not ApiRequest:
        return command
    destroys: str | None = getattr(command, "destroys", None)
    speaks_for: tuple[str, ...] = getattr(command, "speaks_for", ())

    def wrapped(own: Callable[..., Any], given: dict[str, Any]) -> Any:
        is_sure = given.pop("yes", True)
        server = ServerAddress.of_flags(given)
        place = None
        arguments = signature.bind_partial(*own.args, **own.keywords).arguments  # type: ignore[attr-defined]
        asks = may_ask and not any(map(arguments.get, speaks_for))
        if wanted is None or (asks and server.is_admin()):
            name = server.name(folder_of(plugin)) if destroys else ""
        else:
            place = server.protocol(kind, plugin)
            name = f"{place.host}:{place.port}"
        if destroys is not None and not is_sure and not arguments.get("dry_run"):
            confirm(f"{destroys.format(**arguments)} on the server {name}")
        result = own() if wanted is None else own(**{wanted: place})
        return _for_server(result, server, folder_of(plugin), name if destroys else None)

    usual = f"Its port; {plugin.settings().port} unless set ({plugin.name}.port, {_port_variable(plugin)})."
    port = Annotated[Port, Parameter(name=("--port", "-p"), help=usual)]
    flags = server_flags(command, speaks=wanted is not None, port=port)
    if destroys is not None:
        flags = {**flags, "yes": (Yes, False)}
    return with_flags(command, flags, wrapped, without=wanted)


def _port_variable(plugin: Plugin) -> str:
    return f"BROKERS_{plugin.name}_PORT".upper().replace("-", "_")


def _for_server(result: Any, server: ServerAddress, folder: Path, name: str | None) -> Any:
    """A command's result, for the server that it asks; with the server's `name`, if there is one."""
    if inspect.iscoroutine(result):
        return _awaited(result, server, folder, name)
    if isinstance(result, ApiRequest):
        return attrs.evolve(result, server=server, folder=folder, name=name)
    return with_server(result, name)


async def _awaited(result: Any, server: ServerAddress, folder: Path, name: str | None) -> Any:
    return _for_server(await result, server, folder, name)


def _broken(name: str, error: Failure) -> App:
    app = App(name=name, help=str(error), help_epilogue="", help_format="plaintext")

    @app.default
    def refuse(*_: str) -> Any:
        raise error

    return app
