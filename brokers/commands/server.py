"""Commands that ask the running server: status, metrics, reload, backup; and protocols' own that do."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from brokers.commands.flags import host_command
from brokers.commands.render import CommandResult, Listing, Several, json_value
from brokers.commands.server_address import (
    DEFAULT_FOLDER,
    ServerAddress,
    require_folder,
    with_server,
)
from brokers.errors import ExitCode, Failure, copy_errors
from shared.cli.confirm import DryRun
from shared.cli.options import Json, a_path, flag
from shared.cli.progress import progress, waiting
from shared.objects import KINDS

if TYPE_CHECKING:
    from shared.plugin import ApiRequest


STORE_SHOWN = (
    *("full", "read_only", "damaged_ranges", "free_bytes", "journal_bytes", "logs"),
    *("sync_seconds_median", "sync_seconds_p99", "retention_paused"),
)
"""Of the store's statistics those that an operator acts on: with the others the state scrolls away."""


TROUBLE_SHOWN = ("kind", "object", "severity", "since", "means", "advice")


@host_command("status", "status", "brokers status --data-dir /var/lib/brokers --json | jq .state")
def status(
    *,
    ready: Annotated[bool, flag("Exit with 0 where it is ready, whatever needs a person.")] = False,
    at: ServerAddress,
    json: Json = False,
) -> CommandResult:
    """Show what runs on a data folder, or behind a URL, and what needs a person.

    State, addresses, connections, how the store is, and at last what needs a
    person; of each kind five (`brokers attention` lists all). The exit code is 0
    where it is ready, and 69 where no server runs. It is 1 where it is not
    ready: starting, draining, read-only, a protocol down, or no answer in 30
    s. It is 3 where it is ready, and something needs a person. --json has all
    numbers of the store.
    """
    answer = at.client().request("GET", "/status")
    answer.pop("client", None)
    attention = answer.get("attention", {"count": 0, "items": []})  # a server of the release before has none
    code = ExitCode.OK if answer["state"] == "ready" else ExitCode.FAILED
    if code == ExitCode.OK and attention["count"] and not ready:
        code = ExitCode.ATTENTION
    if json:
        return CommandResult(answer, code)
    answer = {**answer, "attention": attention["count"]}
    protocols = answer.pop("protocols")
    store = {name: value for name, value in answer.pop("store").items() if name in STORE_SHOWN}
    troubles = [{name: row[name] for name in TROUBLE_SHOWN} for row in attention["items"]]
    return CommandResult(Several((answer, protocols, store, *([troubles] if troubles else []))), code)


@host_command("metrics", "brokers metrics | grep brokers_connections")
def metrics(*, at: ServerAddress) -> str:
    """Print the running server's metrics, as Prometheus reads them."""
    return str(at.client().request("GET", "/metrics"))


@host_command("reload", "reload", "brokers reload --data-dir /srv/brokers")
def reload(*, at: ServerAddress) -> str:
    """Have the running server take up what changed. All or nothing.

    It reads its settings, the users file and certificates again. The same as
    SIGHUP, but it says what changed, what takes a restart, or why nothing was taken
    up.
    """
    answer = at.client().request("POST", "/reload", {})
    lines = [f"reloaded: {answer['users']} users", f"changed: {', '.join(answer['changed']) or 'no setting'}"]
    lines += [f"these take a restart: {', '.join(answer['restart'])}"] if answer["restart"] else []
    return "\n".join(lines)


@host_command("drain", "drain --dry-run")
def drain(*, dry_run: DryRun = False, at: ServerAddress, json: Json = False) -> CommandResult:
    """Stop the running server as SIGTERM does.

    It accepts nothing more, sends all answers, and ends. --dry-run says what that
    ends and what would be lost, which is nothing where all is durable: is it safe
    to restart?
    """
    path = "/api/v1/drain?dry_run=1" if dry_run else "/api/v1/drain"
    return CommandResult(at.client().request("POST", path), ExitCode.OK)


def ask(request: "ApiRequest") -> Any:
    """Ask the API for a protocol's own command. Raises BrokerError."""
    client = request.server.client(request.folder or DEFAULT_FOLDER)
    with waiting("asking"):
        answer = request.ask(client)
    if request.lists is not None:
        return Listing(answer, {column.name: column.unit for column in KINDS[request.lists].columns})
    return with_server(answer, request.name)


@host_command(
    "backup", "backup /backups/2026-03-01", "brokers backup --data-dir /var/lib/brokers /backups/today"
)
def backup(
    target: Annotated[
        Path, Parameter(help="A folder that does not exist yet, or is empty.", converter=a_path)
    ],
    *,
    at: ServerAddress,
    json: Json = False,
) -> Any:
    """Copy a data folder, while it is served or not.

    The copy is consistent and checked; `brokers restore` makes a data folder of it
    again. With --url the target is a name in the folder `backups` of the server's
    data folder.
    """
    server = at.resolved()
    client = server.client()
    folder = server.data_dir if server.url is None else None
    if folder is not None:
        require_folder(folder)
    server_path = target if folder is None else target.absolute()
    with progress(f"backing up {folder or server.url}"), copy_errors(target):
        try:
            report = client.request("POST", "/backup", {"target": str(server_path)})
        except Failure as error:
            if error.code != ExitCode.UNAVAILABLE or folder is None:
                raise
            from shared.storage.tools.backup import backup as copy

            report = copy(folder, target, now_ms=time.time_ns() // 1_000_000)
    return copied(report, json)


def copied(report: Any, json: bool) -> CommandResult:
    """A BackupReport, or its JSON, as a backup or a restore shows it. Exit code 1: there is damage in it."""
    from json import dumps, loads

    report = loads(dumps(report, default=json_value))
    check = report.pop("check")
    changed = report.pop("changed", [])
    damaged = bool(changed) or any(finding["severity"] == "damage" for finding in check["findings"])
    code = ExitCode.FAILED if damaged else ExitCode.OK
    summary = {**report, "logs": check["logs"], "records": check["records"], "damaged": damaged}
    if json:
        return CommandResult({**summary, "changed": changed, "findings": check["findings"]}, code)
    lines = [{"changed": line} for line in changed]
    return CommandResult(Several((*filter(None, [lines, check["findings"]]), summary)), code)
