"""`brokers pipeline archive` and `archived`: the package says how it is done."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from brokers.commands.render import CommandResult, Following
from brokers.errors import ExitCode, Failure
from brokers.pipeline.reading import ReadOptions, a_folder, pair
from brokers.pipeline.running import check_master, innermost_error, spark_for
from shared.cli.options import Json, a_path
from shared.cli.progress import counting
from shared.errors import UsageError

if TYPE_CHECKING:
    from brokers.pipeline.archiving.feed import ArchiveInput
    from brokers.pipeline.archiving.job import Round, Settings

Compression = Literal["zstd", "snappy", "lz4", "none"]

READ_DEFAULTS = ReadOptions()
_OURS = ("path", "servers", "namespace", "subscribe", "assign", "starting", "ending", "max", "min", "failon")
"""How options of the source begin that have flags here, or that make no sense here."""


def archive(
    folder: Annotated[
        Path,
        Parameter(help="The archive's folder; every executor has to reach it there.", converter=a_path),
    ],
    /,
    *,
    path: Annotated[
        tuple[str, ...], Parameter(help="A data folder; repeatable.", negative="", show_default=False)
    ] = (),
    topics: Annotated[str | None, Parameter(help="Topics, with commas between.")] = None,
    pattern: Annotated[str, Parameter(help="Without --topics: those whose whole name matches.")] = ".*",
    namespace: Annotated[str, Parameter(help="With --path: another protocol's logs.")] = "logmq",
    once: Annotated[
        bool, Parameter(help="Archive what is there and end.", negative="", show_default=False)
    ] = False,
    trigger: Annotated[float, Parameter(help="Seconds from one look at the logs to the next.")] = 1.0,
    settle_seconds: Annotated[float, Parameter(help="What is new is archived after so long,")] = 300.0,
    settle_bytes: Annotated[int, Parameter(help="or once a log has so many new bytes.")] = 128 << 20,
    compression: Annotated[Compression, Parameter(help="Of the Parquet files.")] = "zstd",
    allow_loss: Annotated[
        bool,
        Parameter(help="Go on where records were lost before.", negative="", show_default=False),
    ] = False,
    reading: ReadOptions = READ_DEFAULTS,
    json: Json = False,
) -> Following | Mapping[str, Any]:
    """Write logs to Parquet, by topic and date, each record exactly once.

    It follows the logs until SIGTERM or SIGINT, and archives then what is there;
    a second one does not wait for that. With --once it ends when all that was
    there is archived. Killed at any moment, it goes on where it was. With --json
    each commit is a line.
    """
    from brokers.pipeline.session import require_spark

    require_spark()
    from json import dumps

    from brokers.commands.server_address import require_folder
    from brokers.pipeline.archiving.feed import ArchiveInput
    from brokers.pipeline.archiving.job import Settings
    from brokers.pipeline.archiving.manifest import Manifest
    from brokers.pipeline.source.options import parse

    for flag, number, least in (
        ("--trigger", trigger, 0.01),
        ("--settle-seconds", settle_seconds, 0),
        ("--settle-bytes", settle_bytes, 1),
    ):
        if not number >= least:
            raise UsageError(flag, f"it is {least} at least")
    if bool(path) == bool(reading.servers):
        raise UsageError("--path", "give either data folders (--path) or --servers")
    check_master(reading.master)
    reading.config()  # reports a mistake before anything is read
    path = tuple(str(a_folder(each, "--path")) for each in path)
    options = {"failOnDataLoss": "false" if allow_loss else "true"}
    options |= {"subscribe": topics} if topics is not None else {"subscribePattern": pattern}
    options |= (
        {"servers": reading.servers} if reading.servers else {"paths": dumps(path), "namespace": namespace}
    )
    options |= reading.connection.options
    for key, value in (pair("--option", each) for each in reading.option):
        if key.lower().startswith(_OURS):
            raise UsageError("--option", f"{key} is set by the command itself")
        options[key] = value
    feed = ArchiveInput(parse(options))
    for each in path:
        require_folder(Path(each))
    if once:
        with feed.look() as look:
            there = {log.topic for _, log in look.logs(Manifest())}
        if missing := [name for name in feed.options.topics.names if name not in there]:
            raise Failure(f"there is no topic {missing[0]}", ExitCode.MISSING)
    settings = Settings(
        trigger_seconds=trigger,
        file_bytes=settle_bytes,
        file_seconds=settle_seconds,
        compression=compression,
        allow_loss=allow_loss,
    )
    rounds = _rounds(folder, feed, settings, reading, once=once)
    return Following(rounds) if json else _summary(rounds)


def archived(
    folder: Annotated[Path, Parameter(help="The archive's folder.", converter=a_path)],
    /,
    *,
    json: Json = False,
) -> CommandResult | Sequence[Mapping[str, Any]]:
    """Show what is in an archive, and hold its files against its manifest.

    The exit code is 1 where one is missing, but for what is older than the first
    file: an archive has an age. Offsets are those of the log:
    everything from "first" up to "end" is there.
    """
    from brokers.pipeline.archive import REMOVED, committed, faults
    from brokers.pipeline.archiving.files import LocalFiles

    files = LocalFiles(folder)
    rows = [
        {
            "topic": log.topic,
            "log": log.key,
            "records": log.records,
            "first": log.start,
            "end": log.end,
            "lost_bytes": log.lost_bytes,
        }
        for log in committed(files).manifest.logs.values()
    ]
    wrong = faults(files)
    for fault in wrong:
        print(f"brokers: {fault.topic}: {fault.what}: offsets {fault.range}", file=sys.stderr)
    return CommandResult(rows, ExitCode.FAILED) if any(fault.what != REMOVED for fault in wrong) else rows


def _rounds(
    folder: Path, feed: "ArchiveInput", settings: "Settings", reading: ReadOptions, *, once: bool
) -> Iterator["Round"]:
    """Yield each round when it is done. The archive's folder is locked, and Spark runs, until the last."""
    from brokers.pipeline.archiving.folder import opened
    from brokers.pipeline.archiving.job import Archiver

    folder = folder.absolute()
    # The command counts records itself, so Spark shows no tasks.
    reading = attrs.evolve(reading, conf=("spark.ui.showConsoleProgress=false", *reading.conf))
    stop = threading.Event()
    with (
        opened(folder, feed.origin) as place,
        until_told(stop, signal.SIGTERM),  # so that it ends in order, with 0
        spark_for(f"archive {folder}", reading) as spark,
    ):

        def warn(text: str) -> None:
            print(f"brokers: {innermost_error(text)}; trying again", file=sys.stderr, flush=True)

        archiver = Archiver(spark, feed, place, folder, settings, stop, warn=warn)
        with until_told(stop, signal.SIGTERM, signal.SIGINT):
            yield from archiver.once() if once else archiver.follow()


@contextmanager
def until_told(stop: threading.Event, *numbers: signal.Signals) -> Iterator[None]:
    """Make the round under way the last one after one of these signals. A second one ends that round, too.

    The second is needed because a round waits for as long as a cluster has no workers.
    """

    def tell(number: int, _: object) -> None:
        if stop.is_set():
            restore()
            signal.raise_signal(number)
        stop.set()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, tell) for number in numbers}
    try:
        yield
    finally:
        restore()


def _summary(rounds: Iterator["Round"]) -> Mapping[str, Any]:
    """Run all rounds, with a running count on a terminal, and add them up."""
    begun = time.monotonic()
    records = size = commits = 0
    with counting("records archived") as update:
        for done in rounds:
            for event in done.events:
                print(f"brokers: {event}", file=sys.stderr)
            records, size, commits = records + done.records, size + done.bytes, commits + 1
            update(records, size)
    seconds = round(time.monotonic() - begun, 1)
    return {"records": records, "bytes": size, "commits": commits, "seconds": seconds}
