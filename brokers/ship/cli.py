"""Commands of buckets: restore, follow, promote, and `brokers ship status|ls|verify|drill|adopt`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import trio
from cyclopts import Parameter

from brokers.commands.flags import (
    ConfigFile,
    Flag,
    ServeCommand,
    host_app,
    host_command,
    port_flags,
    with_host_flags,
)
from brokers.commands.render import CommandResult, Several
from brokers.commands.server_address import DataDir, ServerAddress, local_folder, require_folder
from brokers.errors import ExitCode, Failure, copy_errors, folder_errors
from shared.cli.options import Json, flag
from shared.cli.progress import progress
from shared.units import KIB, MIB

Verify = Literal["quick", "full"]
Url = Annotated[str, Parameter(help="The bucket and a prefix in it, as ship.url: s3://bucket/prefix.")]
KEPT_BYTES, BLOCK_BYTES_MAX = 1 * MIB, 256 * KIB
"""Of what a restore has freed. Malloc would keep the objects that passed, in an arena for each thread: 180
MiB in all for 300 MiB that are restored. It is 95 MiB for these and for 900 MiB, and 160 with `encrypt`."""
PROMOTED_SECONDS = 60.0
"""So long `promote` waits for the follower; asked once more it goes on waiting."""


def restore_bucket(
    url: str,
    folder: Path,
    *,
    at: str | None,
    lsn: int | None,
    only: Sequence[str],
    verify: Verify,
    whole: bool,
    dry_run: bool,
    config: Path | None,
    json: bool,
) -> CommandResult:
    """Make a data folder from a bucket, and say what stands there."""
    from brokers.host import logs
    from brokers.ship.assembling import Cut
    from brokers.ship.restore import Restore
    from shared.errors import UsageError
    from shared.process_limits import keep_freed_memory
    from shared.units import moment_ms

    if at is not None and lsn is not None:
        raise UsageError("--at", "an instant is named by --at or by --lsn, not by both")
    try:
        cut = Cut(lsn, None if at is None else moment_ms(at, time.time_ns() // 1_000_000))
    except ValueError as error:
        raise UsageError("--at", str(error)) from None
    logs.configure("warning", "text")
    keep_freed_memory(KEPT_BYTES, BLOCK_BYTES_MAX)
    bucket = _bucket(url, config)
    with progress(f"restoring {folder}") as tell, copy_errors(folder, "data folder"), folder_errors(folder):
        work = Restore(bucket, folder, cut=cut, only=only, whole=whole or None, progress=tell)
        if dry_run:
            return CommandResult(trio.run(work.look), ExitCode.OK)
        report = trio.run(lambda: work.run(verify_full=verify == "full"))
    damaged = bool(report.missing) or (report.check is not None and not report.check.ok)
    code = ExitCode.FAILED if damaged else ExitCode.OK
    if json:
        return CommandResult(report, code)
    summary = {
        "folder": report.folder,
        "as_of": _said(report.time_ms),
        "lsn": report.lsn,
        "snapshot": report.snapshot,
        "wal_objects": report.wal_objects,
        "fetched_bytes": report.fetched_bytes,
        "stays_in_bucket_bytes": report.stays_in_bucket_bytes,
        "seconds": round(report.seconds, 3),
        "files": ", ".join(report.files) or "none",
        "users": "passwords are not in the bucket: put users.toml back, or set them with brokers user passwd",
    }
    if report.check is not None:
        summary["verified"] = "in order" if report.check.ok else "damaged"
    missing = [{"missing": line} for line in report.missing]
    found = [] if report.check is None else list(report.check.findings)
    tables = [each for each in (list(report.stands), missing, found) if each]
    return CommandResult(Several((*tables, summary)), code)


def _said(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms / 1000)) + f".{ms % 1000:03d}Z"


def _bucket(url: str | None, config: Path | None) -> Any:
    """The bucket of a URL, or of the settings. Raises Failure and ConfigError."""
    from brokers.settings.config import as_served
    from brokers.ship.stores import open_bucket

    settings = as_served(config).ship
    try:
        settings = settings if url is None else attrs.evolve(settings, url=url)
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if not settings.url:
        raise Failure("which bucket? Give its URL, or set ship.url", ExitCode.USAGE)
    return open_bucket(settings)


@host_command(
    "follow",
    "brokers follow s3://bucket/prefix --data-dir /var/lib/brokers --enable logmq",
    "brokers follow file:///mnt/bucket --port logmq=9000",
)
@with_host_flags
def follow(
    url: Url,
    *,
    enable: Annotated[str | None, Parameter(help="Protocols to serve: all, or names with commas.")] = None,
    port: Annotated[
        tuple[str, ...],
        Parameter(
            help="Bind a protocol to this port; 0 picks one. Repeatable.", negative="", show_default=False
        ),
    ] = (),
) -> ServeCommand:
    """Follow a bucket: serve readers what another server ships, as it comes.

    An empty data folder is restored first. Writes are refused as read-only, until
    brokers promote makes this server the one that ships.
    """
    chosen = [Flag(("serve", "enable"), enable, "--enable")] if enable is not None else []
    follows = (Flag(("ship", "url"), url, "URL"), Flag(("ship", "follow"), "true", "brokers follow"))
    return ServeCommand(flags=(*follows, *chosen, *port_flags(port)))


@host_command("promote", "brokers promote --data-dir /var/lib/brokers")
def promote(*, data_dir: DataDir = None, config: ConfigFile = None, json: Json = False) -> CommandResult:
    """Make a follower the server that ships and takes writes.

    It takes the bucket, which stops the server before from shipping, applies all
    that is there, and starts again as a server of its own. A follower that is not
    running does so when it is started.
    """
    from brokers.ship.follow import read_follow
    from brokers.ship.names import PROMOTE_PATH
    from shared.storage.disk import replace_file
    from shared.storage.os_disk import OsDisk

    folder = require_folder(local_folder(data_dir, config))
    before = read_follow(folder)
    if before is None:
        raise Failure(f"{folder} follows no bucket: there is nothing to promote", ExitCode.USAGE)
    with folder_errors(folder), OsDisk(folder, create=False) as disk:
        replace_file(disk, PROMOTE_PATH, b"")
    began = time.monotonic()
    with progress(f"promoting {folder}"):
        while read_follow(folder) is not None:
            if time.monotonic() - began > PROMOTED_SECONDS:
                raise Failure(
                    f"not promoted in {PROMOTED_SECONDS:g} s: it is, once the follower runs and the bucket "
                    "answers; its log says more",
                    ExitCode.TEMPORARY,
                )
            time.sleep(0.05)
    mark = _mark_of(folder)
    result = {"folder": str(folder), **mark, "seconds": round(time.monotonic() - began, 3)}
    return CommandResult(result, ExitCode.OK)


def _mark_of(folder: Path) -> Mapping[str, Any]:
    from brokers.ship.formats import SHIP_PATH, unpack_mark

    mark = unpack_mark((folder / SHIP_PATH).read_bytes())
    return {} if mark is None else {"url": mark.url, "epoch": mark.epoch, "lsn": mark.lsn}


ship, command = host_app(
    "ship",
    "The bucket to which a server ships.",
    "status",
    "ls s3://bucket/prefix",
    "verify",
    "drill",
    "adopt",
)


@command("status", "status --json")
def status(*, at: ServerAddress, json: Json = False) -> CommandResult:
    """Show how far a running server has shipped.

    Lag, what is in the bucket and which instants it has, requests and their
    number a month at this pace, the last error. Exit code 1: nothing is shipped.
    """
    server = at.client().request("GET", "/status")
    found = server.get("ship")
    if found is None and "follow" in server:
        follow = server["follow"]
        raise Failure(
            f"this server follows {follow['follows']} and ships nothing: it is {follow['state']}, "
            f"{follow['lag_seconds']:.1f} s behind",
            ExitCode.CONFIGURATION,
        )
    if found is None:
        raise Failure("this server ships to no bucket: ship.url is not set", ExitCode.CONFIGURATION)
    code = ExitCode.OK if found["state"] in ("shipping", "starting") else ExitCode.FAILED
    if json:
        return CommandResult(found, code)
    requests = [{"operation": name, **count} for name, count in found.pop("requests").items()]
    for name in ("retained_from", "retained_to"):
        found[name] = "nothing yet" if found[name] is None else _said(found[name])
    return CommandResult(Several((found, requests)), code)


@command("ls s3://bucket/prefix", "ls --json")
def ls(
    url: Annotated[str | None, Parameter(help="The bucket; ship.url of the settings unless given.")] = None,
    *,
    config: ConfigFile = None,
    json: Json = False,
) -> Any:
    """List the snapshots of a bucket, and which instants can be restored."""
    from brokers.ship.restore import read_manifest

    bucket = _bucket(url, config)

    async def look() -> Any:
        manifest = await read_manifest(bucket)
        sizes = [each.bytes for each in await bucket.listed("wal/")]
        return manifest, sizes

    manifest, sizes = trio.run(look)
    rows = [
        {"snapshot": line.key, "as_of": _said(line.time_ms), "lsn": line.lsn, "bytes": line.bytes}
        for line in manifest.snapshots
    ]
    newest = manifest.snapshots[-1] if manifest.snapshots else None
    summary = {
        "epoch": manifest.epoch,
        "journal_id": manifest.journal_id,
        "wal_objects": len(sizes),
        "wal_bytes": sum(sizes),
        "from": _said(manifest.snapshots[0].time_ms) if newest else "nothing can be restored yet",
        "newest_snapshot": _said(newest.time_ms) if newest else "",
    }
    return {"snapshots": rows, **summary} if json else Several((*([rows] if rows else []), summary))


@command("verify s3://bucket/prefix")
def verify(
    url: Annotated[str | None, Parameter(help="The bucket; ship.url of the settings unless given.")] = None,
    *,
    config: ConfigFile = None,
    json: Json = False,
) -> CommandResult:
    """Read every object of a bucket and check its CRCs.

    Exit code 1: something is damaged or missing.
    """
    from brokers.ship.verify import verify_bucket

    bucket = _bucket(url, config)
    with progress("reading the bucket") as tell:
        report = trio.run(verify_bucket, bucket, tell)
    code = ExitCode.FAILED if report.faults else ExitCode.OK
    if json:
        return CommandResult(report, code)
    faults = [{"fault": line} for line in report.faults]
    summary = {**attrs.asdict(report), "faults": len(faults)}
    return CommandResult(Several((*([faults] if faults else []), summary)), code)


@command("drill", "drill --json")
def drill(*, at: ServerAddress, json: Json = False) -> CommandResult:
    """Have a running server try a restore of its bucket.

    It restores the bucket as of this moment to a temporary folder (TMPDIR of the
    server says where; it needs the room), compares each log's offsets and bytes
    with what it serves, and says how long that took. Exit code 1: something is
    missing, or not the same.
    """
    with progress("restoring, and comparing"):
        drilled = at.client().post("drill")
    code = ExitCode.OK if drilled["ok"] else ExitCode.FAILED
    if json:
        return CommandResult(drilled, code)
    faults = [{"fault": line} for line in (*drilled.pop("differences"), *drilled.pop("missing"))]
    for name in ("seconds", "compared_seconds"):
        drilled[name] = round(drilled[name], 3)
    return CommandResult(Several((*([faults] if faults else []), drilled)), code)


@command("adopt", "adopt s3://bucket/prefix --data-dir /var/lib/brokers")
def adopt(
    url: Annotated[str | None, Parameter(help="The bucket; ship.url of the settings unless given.")] = None,
    *,
    yes: Annotated[bool, flag("Do it: what only the bucket has is given up for this folder.")] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: Json = False,
) -> CommandResult:
    """Have a data folder ship to a bucket that has another history.

    No server may use the folder. The bucket's older instants stay as long as
    retention keeps them; the next start ships this folder anew.
    """
    from brokers.ship.verify import adopt_bucket

    folder = require_folder(local_folder(data_dir, config))
    if not yes:
        raise Failure(
            "this gives up what only the bucket has, and stops the server that ships there: --yes does it",
            ExitCode.USAGE,
        )
    bucket = _bucket(url, config)
    with folder_errors(folder):
        return CommandResult(trio.run(adopt_bucket, bucket, _url(url, config), folder), ExitCode.OK)


def _url(url: str | None, config: Path | None) -> str:
    from brokers.settings.config import as_served

    return url or str(as_served(config).ship.url)
