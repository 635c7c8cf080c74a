"""The commands of installed protocols: a module attribute for each protocol, made when it is first used.

cyclopts imports a command from `"module:attribute"` when it is called. `"brokers.plugin_cli:logmq"` works for
protocols that this package does not know by name.
"""

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cyclopts import App

from brokers import plugins
from brokers.errors import Refusal
from brokers.flags import with_admin_flags, with_host_flags, with_server_flags, with_table_flags
from shared.cli.options import Place
from shared.plugin import ApiRequest, Plugin, VerbRequest

ASKING = (ApiRequest, VerbRequest, "ApiRequest", "VerbRequest")
"""What verbs return that ask a running server."""


def __getattr__(name: str) -> App:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return _app(name)
    except Refusal as error:
        # A broken protocol gets a command that says so. A list of commands must not fail for one of them.
        return _broken(name, error)


def _app(name: str) -> App:
    plugin = plugins.load(name)
    module, _, attribute = plugin.cli.partition(":")
    try:
        app = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise Refusal(f"the commands of protocol {name!r} cannot be used: {plugins.said(error)}") from None
    if not isinstance(app, App) or app.name != (name,):
        raise Refusal(
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
    """Add the host's flags to the verbs of an app, and of the apps in it."""
    for word in app:
        own = app[word]
        verb = own.default_command
        if verb is not None:
            if inspect.signature(verb).return_annotation in ASKING:
                verb = with_admin_flags(verb)
            own.default_command = with_table_flags(with_server_flags(verb, plugin, _find))
        if not word.startswith("-"):
            _prepare(own, plugin)


def _find(kind: type[Place], plugin: Plugin, given: Mapping[str, Any], config: Path | None) -> Place:
    """Imported only by a command that runs, because reading settings takes as long as the command."""
    from brokers.finding import find

    return find(kind, plugin, given, config)


def _broken(name: str, error: Refusal) -> App:
    app = App(name=name, help=str(error), help_epilogue="", help_format="plaintext")

    @app.default
    def refuse(*_: str) -> Any:
        raise error

    return app
