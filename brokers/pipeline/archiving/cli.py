"""`brokers pipeline archive` and `archived`: the package says how it is done."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from brokers.commands.render import CommandResult, Following
from brokers.errors import ExitCode, Failure
from brokers.pipeline.reading import ReadOptions, a_folder, pair
from brokers.pipeline.running import check_master, innermost_error, spark_for
from shared.cli.options import Json
from shared.cli.progress import counting
from shared.errors import UsageError

if TYPE_CHECKING:
    from brokers.pipeline.archiving.feed import ArchiveInput
    from brokers.pipeline.archiving.job import ArchiveAccount, Round, Settings
    from brokers.pipeline.archiving.places import ArchivePlace

Compression = Literal["zstd", "snappy", "lz4", "none"]

READ_DEFAULTS = ReadOptions()
_OURS = ("path", "servers", "namespace", "subscribe", "assign", "starting", "ending", "max", "min", "failon")
"""How options of the source begin that have flags here, or that make no sense here."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ShapeOptions:
    """The options of what an archive is made of, and how it is cut."""

    table: Annotated[
        str | None,
        Parameter(
            help="Add to a table instead: iceberg:CATALOG.NAMESPACE.TABLE or delta:URL. A new one begins "
            "with the files of an archive in FOLDER.",
            show_default=False,
        ),
    ] = None
    partition: Annotated[
        Literal["day", "hour"], Parameter(help="What files are cut by, beside the topic.")
    ] = "day"
    parse: Annotated[
        Literal["json"] | None,
        Parameter(help="Make columns of the keys of records that are JSON objects.", show_default=False),
    ] = None
    since: Annotated[
        str | None,
        Parameter(help="Leave out what is older: Unix milliseconds, or ISO 8601.", show_default=False),
    ] = None
    keep_days: Annotated[
        int | None,
        Parameter(help="Delete what is older, by whole days, from the archive.", show_default=False),
    ] = None
    rebuild: Annotated[
        str | None,
        Parameter(help="Write the files of a day anew, from the logs: date=2026-11-21.", show_default=False),
    ] = None


SHAPE_DEFAULTS = ShapeOptions()


def archive(
    folder: Annotated[
        str,
        Parameter(help="The archive: a folder that every executor reaches there, or s3://bucket/prefix."),
    ] = "",
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
    trigger: Annotated[float, Parameter(help="Seconds from one commit to the next.")] = 300.0,
    compression: Annotated[Compression, Parameter(help="Of the Parquet files.")] = "zstd",
    allow_loss: Annotated[
        bool,
        Parameter(help="Go on where records were lost before.", negative="", show_default=False),
    ] = False,
    shape: ShapeOptions = SHAPE_DEFAULTS,
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
        ("--keep-days", 1 if shape.keep_days is None else shape.keep_days, 1),
    ):
        if not number >= least:
            raise UsageError(flag, f"it is {least} at least")
    if bool(path) == bool(reading.servers):
        raise UsageError("--path", "give either data folders (--path) or --servers")
    day = _a_day(shape.rebuild) if shape.rebuild is not None else None
    if not str(folder) and shape.table is None:
        raise UsageError("FOLDER", "say where the archive is, or --table")
    place = _a_place(str(folder)) if str(folder) else None
    if shape.table is not None:
        from brokers.pipeline.archiving.lake import check_table

        check_table(shape.table)
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
    if shape.since is not None:
        options |= {"startingTimestamp": shape.since, "startingOffsetsByTimestampStrategy": "latest"}
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
        compression=compression,
        allow_loss=allow_loss,
        by_hour=shape.partition == "hour",
        parse_json=shape.parse == "json",
        keep_days=shape.keep_days,
    )
    rounds = _rounds(place, shape.table, feed, settings, reading, once=once, day=day)
    return Following(rounds) if json else _summary(rounds)


def archived(
    folder: Annotated[str, Parameter(help="The archive's folder, or s3://bucket/prefix.")],
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

    files = _a_place(folder)
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


def _a_place(text: str) -> "ArchivePlace":
    from brokers.pipeline.archiving.places import place_of

    try:
        return place_of(text)
    except ValueError as error:
        raise UsageError("FOLDER", str(error)) from None


def _a_day(text: str) -> date:
    try:
        key, day = text.split("=")
        if key == "date":
            return date.fromisoformat(day)
    except ValueError:
        pass
    raise UsageError("--rebuild", "it is date=YEAR-MONTH-DAY")


@contextmanager
def _opened(
    place: "ArchivePlace | None", table: str | None, origin: str, *, by_hour: bool
) -> Iterator[tuple["ArchiveAccount", "ArchivePlace"]]:
    """Open what the archive is kept in, and where its files go."""
    from brokers.pipeline.archiving.folder import opened

    if table is None:
        assert place is not None
        with opened(place, origin) as folder:
            yield folder, place
        return
    from brokers.pipeline.archiving.lake import open_table, register

    account = open_table(table, origin, by_hour=by_hour)
    if place is not None and not account.manifest.version:
        with opened(place, origin) as folder:
            register(account, folder, place)
    yield account, account.place


def _rounds(
    place: "ArchivePlace | None",
    table: str | None,
    feed: "ArchiveInput",
    settings: "Settings",
    reading: ReadOptions,
    *,
    once: bool,
    day: date | None,
) -> Iterator["Round"]:
    """Yield each round when it is done. The archive's folder is locked, and Spark runs, until the last."""
    from brokers.pipeline.archiving.job import Archiver

    # The command counts records itself, so Spark shows no tasks.
    reading = attrs.evolve(reading, conf=("spark.ui.showConsoleProgress=false", *reading.conf))
    stop = threading.Event()
    with (
        _opened(place, table, feed.origin, by_hour=settings.by_hour) as (account, root),
        until_told(stop, signal.SIGTERM),  # so that it ends in order, with 0
        spark_for(f"archive {table or root.url('')}", reading) as spark,
    ):

        def warn(text: str) -> None:
            print(f"brokers: {innermost_error(text)}; trying again", file=sys.stderr, flush=True)

        archiver = Archiver(spark, feed, account, root, settings, stop, warn=warn)
        with until_told(stop, signal.SIGTERM, signal.SIGINT):
            if day is not None:
                yield archiver.rebuild(day)
            else:
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
    records = size = commits = conflicts = unparsed = 0
    with counting("records archived") as update:
        for done in rounds:
            for event in done.events:
                print(f"brokers: {event}", file=sys.stderr)
            records, size, commits = records + done.records, size + done.bytes, commits + 1
            conflicts, unparsed = conflicts + done.conflicts, unparsed + done.unparsed
            update(records, size)
    seconds = round(time.monotonic() - begun, 1)
    found = {"records": records, "bytes": size, "commits": commits, "seconds": seconds}
    if conflicts or unparsed:
        found |= {"conflicts": conflicts, "unparsed": unparsed}
    return found
