"""Verbs that read or mend data folders without a server: fsck, log, restore."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.commands.flags import ConfigFile, host_app, host_command
from brokers.commands.render import CommandResult, Several, cell
from brokers.commands.server import copied
from brokers.commands.server_address import DataDir, local_folder, require_folder
from brokers.errors import ExitCode, Failure, copy_errors, folder_errors
from shared.cli.options import Json, a_path, flag
from shared.cli.progress import progress

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
    Exit code 1: a part of the log is damaged (a row says where, and the rest
    follows).
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
        raise Failure(f"{damaged} ranges of {namespace}/{name} are damaged")


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


@host_command("restore", "brokers restore /backups/2026-03-01 --data-dir /var/lib/brokers")
def restore(
    source: Annotated[Path, Parameter(help="A backup, as `brokers backup` made it.", converter=a_path)],
    *,
    strict: Annotated[bool, flag("Stop at the first file that is not as it was backed up.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> CommandResult:
    """Make a data folder from a backup.

    It must not exist yet, or be empty. Every file is checked on the way: the rest is brought, and what is
    damaged or missing is said, with exit code 1.
    """
    from shared.storage.tools.backup import restore as put_back

    folder = local_folder(data_dir, config)
    with progress(f"restoring {folder}"), copy_errors(folder, "data folder"):
        report = put_back(require_folder(source), folder, strict=strict)
    return copied(report, json)


restore.help_format = None  # of the root: completion scripts show its help without backticks
