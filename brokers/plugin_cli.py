"""The commands of installed protocols: a module attribute for each protocol, made when it is first used.

cyclopts imports a command from `"module:attribute"` when it is called. `"brokers.plugin_cli:logmq"` works for
protocols that this package does not know by name.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

import attrs
from cyclopts import App, Parameter

from brokers import plugins
from brokers.errors import Failure
from brokers.flags import (
    ADMIN_FLAGS,
    CONFIG_FLAG,
    LOGIN_FLAGS,
    with_admin_flags,
    with_flags,
    with_host_flags,
    with_table_flags,
)
from brokers.server_address import ServerAddress
from shared.cli.options import Ca, Certificate, Host, Key, KeyFile, Place, Port, Server, Tls
from shared.errors import UsageError
from shared.plugin import ApiRequest, Plugin, VerbRequest

ASKING = (ApiRequest, VerbRequest, "ApiRequest", "VerbRequest")
"""What commands return that ask a running server."""
PLACE_FLAGS: Mapping[str, Any] = {"host": (Host, None), "port": (Port, None)}
SERVER_FLAGS: Mapping[str, Any] = {
    **PLACE_FLAGS,
    **LOGIN_FLAGS,
    "tls": (Tls, False),
    "ca": (Ca, None),
    "certificate": (Certificate, None),
    "key_file": (Key, None),
}
"""The names are those in `Server`, except `key_file`: a command may have a `--key` of its own."""
API_FLAGS: Mapping[str, Any] = {name: ADMIN_FLAGS[name] for name in ("data_dir", "context", "token_file")}
"""The flags for the API of a command that may ask a protocol's server, too; it has the others already."""
ServerOrApi = Annotated[
    Host, Parameter(name=("--host", "--url"), help="Its address; or the admin port, http(s)://HOST:15800.")
]


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
        command = own.default_command
        if command is not None:
            if inspect.signature(command).return_annotation in ASKING:
                command = with_admin_flags(command)
            own.default_command = with_table_flags(_with_server_flags(command, plugin))
        if not word.startswith("-"):
            _prepare(own, plugin)


def _with_server_flags(command: Callable[..., Any], plugin: "Plugin") -> Callable[..., Any]:
    """Add flags to a protocol's command that say where its server is.

    A command without a parameter of the class `Place` or `Server` stays as it is.
    """
    asked = {
        name: (kind, type(None) in get_args(parameter.annotation))
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        for kind in (parameter.annotation, *get_args(parameter.annotation))
        if isinstance(kind, type) and issubclass(kind, Place)
    }
    if not asked:
        return command
    ((wanted, (kind, has_api)),) = asked.items()

    def wrapped(own: Callable[..., Any], given: dict[str, Any]) -> Any:
        from brokers.finding import find  # reading settings takes as long as the command

        if has_api:
            api = {name: given.pop(name) for name in API_FLAGS}
            flags = _api_flags(given, api)
            if flags is not None:
                return _asked_by_api(own(**{wanted: None}), flags)
        config = given.pop("config")
        said = {"key" if name == "key_file" else name: value for name, value in given.items()}
        return own(**{wanted: find(kind, plugin, said, config)})

    variable = f"BROKERS_{plugin.name}_PORT".upper().replace("-", "_")
    usual = f"Its port; {plugin.settings().port} unless set ({plugin.name}.port, {variable})."
    port = Annotated[Port, Parameter(name=("--port", "-p"), help=usual)]
    flags = SERVER_FLAGS if issubclass(kind, Server) else PLACE_FLAGS
    if flags is SERVER_FLAGS and "key" in inspect.signature(command).parameters:
        flags = {**flags, "key_file": (KeyFile, None)}
    if has_api:
        flags = {**flags, **API_FLAGS, "host": (ServerOrApi, None)}
    return with_flags(command, {**flags, "port": (port, None), **CONFIG_FLAG}, wrapped, without=wanted)


def _api_flags(given: Mapping[str, Any], api: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The flags of `ServerAddress` where a command is to ask the API; None: it asks the protocol's server."""
    host = given["host"]
    by_url = host is not None and host.startswith(("http://", "https://"))
    if not by_url and not any(api.values()):
        if host is not None or given["port"] is not None:
            return None
        if ServerAddress(config=given["config"]).resolved().url is None:  # no context is in use
            return None
    elif host is not None and not by_url:
        raise UsageError("--host", "names another server than the flags for the API do")
    common = ("config", "user", "password_file", "ca", "certificate")
    said = {name: given[name] for name in common}
    return {**said, "key": given["key_file"], "url": host, **api}


async def _asked_by_api(request: Any, flags: Mapping[str, Any]) -> Any:
    return attrs.evolve(await request, flags=flags)


def _broken(name: str, error: Failure) -> App:
    app = App(name=name, help=str(error), help_epilogue="", help_format="plaintext")

    @app.default
    def refuse(*_: str) -> Any:
        raise error

    return app
