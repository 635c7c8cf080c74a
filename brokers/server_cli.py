"""Verbs that ask the running server, over its control socket: status, metrics, call, backup."""

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from cyclopts import App, Parameter

from brokers.errors import ExitCode, Refusal, copy_errors
from brokers.flags import ConfigFile
from brokers.render import CommandResult, Several, json_value
from shared.cli.app import examples
from shared.cli.options import Json, a_path
from shared.cli.progress import progress, waiting
from shared.local_path import local_path

if TYPE_CHECKING:
    from shared.plugin import VerbRequest

DataDir = Annotated[
    Path | None,
    Parameter(
        help="The data folder; else BROKERS_SERVE_DATA_DIR, else that of --config, else ./data.",
        converter=a_path,
    ),
]


def add_commands(app: App) -> None:
    """Put these verbs into `app`."""
    app.command(
        status,
        help_epilogue=examples(
            "brokers", "brokers status", "brokers status --data-dir /var/lib/brokers --json | jq .state"
        ),
    )
    app.command(metrics, help_epilogue="Examples:\n\n    brokers metrics | grep brokers_connections")
    app.command(
        reload,
        help_epilogue=examples("brokers", "brokers reload", "brokers reload --data-dir /srv/brokers"),
    )
    app.command(
        call, help_epilogue=examples("brokers", "brokers call", "brokers call logmq VERB topic=orders")
    )
    app.command(
        backup,
        help_epilogue=examples(
            "brokers",
            "brokers backup /backups/2026-03-01",
            "brokers backup --data-dir /var/lib/brokers /backups/today",
        ),
    )


USUAL = Path("data")
"""Below the folder where a server was started, if nobody has said otherwise."""


def data_folder(given: Path | None, config: Path | None = None, usual: Path = USUAL) -> Path:
    """The folder that a verb is about, as `brokers serve` with the same flags and environment would take it.

    The full settings are not read: that needs every protocol's module, and a health check runs every few
    seconds. Raises Refusal.
    """
    if given is not None:
        return given
    if said := os.environ.get("BROKERS_SERVE_DATA_DIR"):
        try:
            return local_path(said).expanduser()
        except ValueError as error:
            raise Refusal(f"{error} (BROKERS_SERVE_DATA_DIR)", ExitCode.CONFIGURATION) from None
    if file := config or os.environ.get("BROKERS_CONFIG"):
        try:
            path = local_path(file)
            serve = tomllib.loads(path.read_text()).get("serve", {})
            if "data_dir" not in serve:
                return usual
            return path.parent / local_path(serve["data_dir"]).expanduser()
        except (OSError, ValueError, AttributeError, TypeError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            said = "--config" if config else "BROKERS_CONFIG"
            raise Refusal(f"{file}: {why} ({said})", ExitCode.CONFIGURATION) from None
    return usual


def existing(folder: Path) -> Path:
    """`folder` itself. Raises Refusal where it does not exist."""
    if not folder.is_dir():
        raise Refusal(f"there is no folder {folder}", ExitCode.DATA_FOLDER)
    return folder


def status(*, data_dir: DataDir = None, config: ConfigFile = None, json: Json = False) -> CommandResult:
    """Show what runs on a data folder.

    State, addresses, connections, and how the store is. The exit code is 0 where
    it is ready, 1 where it is not (starting, draining, read-only, a protocol down,
    no answer in 30 s), 69 where no server runs.
    """
    from brokers import control

    found = control.request(data_folder(data_dir, config), "GET", "/status")
    code = ExitCode.OK if found["state"] == "ready" else ExitCode.FAILED
    if json:
        return CommandResult(found, code)
    found = dict(found)
    protocols = found.pop("protocols")
    store = found.pop("store")
    return CommandResult(Several((found, protocols, store)), code)


def metrics(*, data_dir: DataDir = None, config: ConfigFile = None) -> str:
    """Print the running server's metrics, as Prometheus reads them."""
    from brokers import control

    return str(control.request(data_folder(data_dir, config), "GET", "/metrics"))


def reload(*, data_dir: DataDir = None, config: ConfigFile = None) -> str:
    """Have the running server take up what changed: the users file. All or nothing.

    The same as SIGHUP, but it says whether it was done, or why not.
    """
    from brokers import control

    found = control.request(data_folder(data_dir, config), "POST", "/reload", {})
    return f"reloaded: {found['users']} users"


def call(
    protocol: Annotated[str | None, Parameter(help="A protocol that the server runs.")] = None,
    verb: Annotated[str | None, Parameter(help="One of its administrative verbs.")] = None,
    *arguments: Annotated[str, Parameter(help="KEY=VALUE; a value that is JSON is taken as such.")],
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> Any:
    """Call a protocol's administrative verb; without one, list them.

    These have no word on the protocol's wire; they go over the control socket.
    """
    from brokers import control
    from shared.cli.commands import keyed

    folder = data_folder(data_dir, config)
    if protocol is None or verb is None:
        listed = control.request(folder, "GET", "/verbs")
        found = [each for each in listed if protocol in (None, each["protocol"])]
        if protocol is not None and not found:
            raise Refusal(f"no protocol that runs here is called {protocol} and has such verbs")
        return found
    return control.request(folder, "POST", f"/{quote(protocol)}/{quote(verb)}", keyed("ARGUMENTS", arguments))


def ask(request: "VerbRequest") -> Any:
    """Call an administrative verb for a protocol's own command; None is no argument. Raises BrokerError."""
    from brokers import control

    arguments = {name: value for name, value in request.arguments.items() if value is not None}
    own = request.own_dir
    usual = own if own and own.is_dir() and not USUAL.exists() else USUAL
    folder = data_folder(request.data_dir, request.config, usual)
    with waiting(request.verb):
        try:
            return control.request(folder, "POST", f"/{request.protocol}/{request.verb}", arguments)
        except Refusal as error:
            if not request.cold or error.code != ExitCode.UNAVAILABLE or not folder.is_dir():
                raise
        from brokers import cold

        return cold.call(folder, request.protocol, request.verb, arguments, request.config)


def backup(
    target: Annotated[
        Path, Parameter(help="A folder that does not exist yet, or is empty.", converter=a_path)
    ],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> Any:
    """Copy a data folder, while it is served or not.

    The copy is consistent and checked; `brokers restore` makes a data folder of it
    again.
    """
    from brokers import control

    folder = existing(data_folder(data_dir, config))
    with progress(f"backing up {folder}"), copy_errors(target):
        try:
            report = control.request(folder, "POST", "/backup", {"target": str(target.absolute())})
        except Refusal as error:
            if error.code != ExitCode.UNAVAILABLE:
                raise
            report = _cold_backup(folder, target)
    return copied(report, json)


def _cold_backup(folder: Path, target: Path) -> Any:
    """Copy a folder that nobody serves. Raises StoreInUse where somebody does, and only starts or stops."""
    from time import time_ns

    from shared.storage.tools.backup import backup as copy

    return copy(folder, target, now_ms=time_ns() // 1_000_000)


def copied(report: Any, json: bool) -> CommandResult:
    """A BackupReport, or its JSON, as a backup or a restore shows it. Exit code 1: there is damage in it."""
    from json import dumps, loads

    report = loads(dumps(report, default=json_value))
    check = report.pop("check")
    damaged = any(finding["severity"] == "damage" for finding in check["findings"])
    code = ExitCode.FAILED if damaged else ExitCode.OK
    summary = {**report, "logs": check["logs"], "records": check["records"], "damaged": damaged}
    if json:
        return CommandResult({**summary, "findings": check["findings"]}, code)
    return CommandResult(Several((*filter(None, [check["findings"]]), summary)), code)
