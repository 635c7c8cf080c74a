"""Verbs that read or mend data folders without a server: fsck, log, restore."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from brokers.commands.flags import ConfigFile, host_app, host_command
from brokers.commands.render import CommandResult, Several, cell
from brokers.commands.server import copied
from brokers.commands.server_address import DataDir, local_folder, require_folder
from brokers.errors import ExitCode, Failure, copy_errors, folder_errors
from shared.cli.options import Json, flag
from shared.cli.progress import progress
from shared.errors import UsageError
from shared.local_path import local_path

Namespace = Annotated[str, Parameter(help="The log's namespace: the folder it is in, as logmq.")]
_REPAIR = (
    "Put right what can be: rebuild lost indexes (marked unverified), move what no log owns aside. Damaged "
    "data is never deleted."
)
_NEXT = (
    "these ranges are lost here and cannot be repaired: brokers restore brings them from a backup. A server "
    "can run on the folder: what is damaged costs its own range, and all else is served"
)
Name = Annotated[str, Parameter(help="The log's name, as a LogMQ topic's.")]


@host_command("fsck", "brokers fsck", "brokers fsck --repair --data-dir /var/lib/brokers")
def fsck(
    *,
    repair: Annotated[bool, Parameter(help=_REPAIR, negative="", show_default=False)] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> CommandResult:
    """Check a data folder that no server uses.

    Everything is read, and what is wrong is listed. Exit code 1: data is damaged.
    """
    folder = require_folder(local_folder(data_dir, config))
    with progress(f"checking {folder}"), folder_errors(folder):
        if repair:
            from shared.storage.tools.repair import repair as mend

            report = mend(folder)
        else:
            from shared.storage.tools.fsck import check

            report = check(folder)
    code = ExitCode.OK if report.ok else ExitCode.FAILED
    if json:
        return CommandResult(report, code)
    sums = {
        "folder": folder,
        "logs": report.logs,
        "records": report.records,
        "bytes_read": report.bytes_read,
        "result": "in order" if report.ok else "damaged",
    }
    if not report.ok:
        sums["next"] = _NEXT if repair else "brokers fsck --repair puts right what can be"
    repairs = [{"repair": text} for text in report.repairs]
    return CommandResult(Several((*filter(None, (report.findings, repairs)), sums)), code)


log, command = host_app(
    "log", "Look into the logs of a data folder; a server may be running.", "ls", "dump logmq orders"
)


@command("ls --json | jq -s 'map(.records) | add'")
def ls(*, data_dir: DataDir = None, config: ConfigFile = None, json: Json = False) -> Any:
    """List the logs: offsets, records, and room on disk."""
    from shared.storage.tools.logs import log_ls

    return log_ls(require_folder(local_folder(data_dir, config)))


@command(
    "dump logmq orders",
    "dump recorded pubsub",
    "dump logmq orders --from 1048576 --json | jq -r .payload",
)
def dump(
    namespace: Namespace,
    name: Name,
    *,
    start: Annotated[int, Parameter(name="--from", help="First offset.", show_default=False)] = 0,
    stop: Annotated[int | None, Parameter(name="--to", help="Offset to stop before.")] = None,
    raw: Annotated[bool, flag("The records' bytes as they are, not taken apart.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> Iterator[Any]:
    """Print a log's records.

    A topic's, each with its offset, a time it is no later than, and its payload;
    those of other logs as what they say, a row a message or an event, where the
    protocol has a table of them. What could not be read is in the row's fault.
    Exit code 1: a part of the log is damaged, or in the bucket only (a row says
    where, and the rest follows).
    """
    from shared.storage.tools.logs import DamagedRow, log_dump

    decode = None if raw else _decoder(namespace, name)
    records = log_dump(require_folder(local_folder(data_dir, config)), namespace, name, start, stop)
    damaged = 0
    rows: Iterator[Any] = records if decode is None else decode(records)
    for row in rows:
        damaged += isinstance(row, DamagedRow)
        yield _said(row) if isinstance(row, Mapping) and not json else row
    if damaged:
        raise Failure(f"{damaged} ranges of {namespace}/{name} cannot be read here")


def _decoder(namespace: str, name: str) -> Any:
    from brokers.commands.dumping import decoder

    try:
        return decoder(namespace, name)
    except ImportError as error:
        print(
            f"brokers: records are shown as bytes: {error} (`pip install 'brokers[spark]'` brings it)",
            file=sys.stderr,
        )
        return None


def _said(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row like a line of the server's log: where and when, then all values by name."""
    first = {name: row.get(name) for name in ("offset", "time")}
    values = {name: value for name, value in row.items() if value is not None and name not in first}
    return {**first, **{name: f"{name}={cell(value)}" for name, value in values.items()}}


@host_command(
    "restore",
    "brokers restore /backups/2026-03-01 --data-dir /var/lib/brokers",
    "brokers restore s3://bucket/prefix --data-dir /var/lib/brokers",
    "brokers restore s3://bucket --at '10m ago' --only 'logmq:*' --data-dir d",
)
def restore(
    source: Annotated[str, Parameter(help="A backup, as `brokers backup` made it, or a bucket's URL.")],
    *,
    strict: Annotated[bool, flag("Of a backup: stop at the first file that is not as it was.")] = False,
    at: Annotated[str | None, Parameter(help="Of a bucket: the instant, as 10m ago, or a time.")] = None,
    lsn: Annotated[int | None, Parameter(help="Of a bucket: the instant, as a place in the journal.")] = None,
    only: Annotated[
        tuple[str, ...],
        Parameter(
            help="Of a bucket: these logs, as logmq:orders*. Repeatable.", negative="", show_default=False
        ),
    ] = (),
    verify: Annotated[
        Literal["quick", "full"],
        Parameter(help="Of a bucket: full reads all of the folder again at the end."),
    ] = "quick",
    whole: Annotated[
        bool, flag("Of a bucket: bring what the server had in the bucket only, too. So do --at, --only.")
    ] = False,
    dry_run: Annotated[bool, flag("Of a bucket: say what would be done.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> CommandResult:
    """Make a data folder from a backup, or from what a server shipped to a bucket.

    It must not exist yet, or be empty. Every byte is checked on the way: the rest is brought, and what is
    damaged or missing is said, with exit code 1. A folder from a bucket is as of one instant of all
    protocols; the newest unless --at or --lsn says which.
    """
    folder = local_folder(data_dir, config)
    path = _backup_path(source)
    if path is None:
        from brokers.ship.cli import restore_bucket

        return restore_bucket(
            source,
            folder,
            at=at,
            lsn=lsn,
            only=only,
            verify=verify,
            whole=whole,
            dry_run=dry_run,
            config=config,
            json=json,
        )
    from shared.storage.tools.backup import restore as put_back

    with progress(f"restoring {folder}"), copy_errors(folder, "data folder"):
        report = put_back(require_folder(path), folder, strict=strict)
    return copied(report, json)


def _backup_path(source: str) -> Path | None:
    """The folder of a backup; None for a bucket, which may be a folder, too."""
    try:
        path = local_path(source)
    except ValueError as error:
        if "://" not in source:
            raise UsageError("SOURCE", str(error)) from None
        return None
    return None if source.lower().startswith("file://") and (path / "manifest.json").exists() else path


restore.help_format = None  # of the root: completion scripts show its help without backticks
