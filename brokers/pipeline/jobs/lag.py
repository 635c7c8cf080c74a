"""How far readers are behind: groups with a position in a log, and sessions that messages are kept for.

The tables in a data folder say where each reader is. The logs' indexes say how far that is from the end, so
no records are read. Of a running broker the newest 200 ms may be missing. What it keeps for sessions is in
its memory; the folder has that after a clean stop.

A server is asked for the positions of the named groups, and for index entries. The wire knows no sessions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from brokers.pipeline.jobs import tables
from brokers.pipeline.jobs.frames import BROKER, Frame, grouped, ordered, readable, rows_of
from brokers.pipeline.jobs.job_input import SERVED, JobInput
from brokers.pipeline.jobs.tables import Offered, read
from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import Server, TopicChoice
from brokers.pipeline.source.origin import Origin
from brokers.pipeline.source.servers import Served
from brokers.pipeline.source.spans import LogSpot
from brokers.pipeline.source.stretch import Stretch
from shared.storage.format import LENGTH_BYTES
from shared.tables.table import KEPT, PLACES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


@attrs.frozen
class Lag:
    """A reader, and what it has not read. `name`: a log, or what a session is subscribed to.

    `bytes`: of the messages themselves. `lost_bytes`: unread bytes of the log that retention has dropped.
    `seconds`: from the oldest unread message to the newest. None: the reader has no position, or it is not
    known. `messages` and `bytes` are None if the position is in a damaged range, which hides how many there
    are.
    """

    protocol: str
    reader: str
    name: str
    position: int | None
    end: int | None
    messages: int | None
    bytes: int | None
    lost_bytes: int | None
    seconds: float | None


def sources() -> Sequence[Offered]:
    """Return the tables that folders are asked for."""
    return [*tables.offered(PLACES), *tables.offered_if_any(KEPT)]


def of_folders(spark: "SparkSession | None", job_input: JobInput) -> Rows:
    """Return every reader that the folders know. Raises StoreFormat, OSError."""
    found = {}
    for folder in job_input.folders:
        only = JobInput((folder,), None, job_input.options)
        places = rows_of(newest(read(spark, only, tables.offered(PLACES))))
        kept = [rows_of(waiting(read(spark, only, [each]))) for each in tables.offered_if_any(KEPT)]
        found[str(folder)] = lag(folder, places, [row for some in kept for row in some])
    return _with_broker_names(found)


def of_servers(job_input: JobInput, groups: Sequence[str]) -> Rows:
    """Return these groups. Raises OSError that names a server which does not answer."""
    options = job_input.parsed()
    found = {}
    for source in options.sources:
        with closing(Served(Server.parse(source), options.reach)) as served:
            spots = served.spots(TopicChoice(pattern=".*"))
            readers = [
                (SERVED, group, spots[topic], position)
                for (group, topic), position in served.committed(groups, sorted(spots)).items()
            ]
            found[source] = _in_logs(served, readers)
    return _with_broker_names(found)


def uncounted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text for each row whose messages damage hides."""
    return [
        f"{row['name']}: the place of {row['reader']}, {row['position']}, is in a damaged range: how many "
        "messages are behind it cannot be counted; `brokers fsck` names what is damaged"
        for row in rows
        if row["messages"] is None
    ]


def _with_broker_names(found: Mapping[str, list[Lag]]) -> Rows:
    """Return the rows of all brokers, with their names if there are several."""
    apart = len(found) > 1
    return [
        ({BROKER: source} if apart else {}) | attrs.asdict(row)
        for source, rows in found.items()
        for row in sorted(rows, key=lambda row: (row.protocol, row.reader, row.name))
    ]


def _in_logs(origin: Origin, readers: Sequence[tuple[str, str, LogSpot, int]]) -> list[Lag]:
    """Compare positions with their logs. `readers`: protocol, reader, log, position."""
    ahead = [Stretch(spot, min(max(position, spot.first), spot.end)) for _, _, spot, position in readers]
    origin.advance(ahead)
    found = []
    for reader, stretch, ms in zip(readers, ahead, origin.unread_ms(ahead), strict=True):
        protocol, name, spot, position = reader
        messages = stretch.records if stretch.is_exact else None
        size = None if messages is None else spot.end - stretch.start - LENGTH_BYTES * messages
        dropped = max(spot.first - position, 0)
        found.append(Lag(protocol, name, spot.name, position, spot.end, messages, size, dropped, ms / 1000))
    return found


def newest(places: Frame) -> Frame:
    """Return the last row of `places` for each reader and what it reads, unless the reader has ended."""
    by = ("protocol", "reader", "read_namespace", "log_id", "name")
    if isinstance(places, pa.Table):
        found = readable(places).sort_by("offset").to_pylist()
        last = {tuple(row[name] for name in by): row for row in found}
        rows = [{name: row[name] for name in (*by, "position")} for row in last.values() if not row["ended"]]
        schema = pa.schema([places.schema.field(name) for name in (*by, "position")])
        return ordered(pa.Table.from_pylist(rows, schema=schema), *by)
    from pyspark.sql import functions as fn

    return ordered(
        readable(places)
        .groupBy(*by)
        .agg(fn.max_by(fn.struct("position", "ended"), "offset").alias("last"))
        .where(~fn.coalesce("last.ended", fn.lit(False)))
        .select(*by, "last.position"),
        *by,
    )


def waiting(kept: Frame) -> Frame:
    """Add up what is kept for each reader: `protocol`, `reader`, `messages`, `bytes`."""
    sums = {name: (name, "sum") for name in ("messages", "bytes")}
    return grouped(readable(kept), ("protocol", "reader"), **sums)


def lag(path: Path, places: Sequence[Any], kept: Sequence[Any]) -> list[Lag]:
    """Compare rows of `newest` and `waiting` with the logs of a folder. Raises StoreFormat, OSError."""
    found = list(_places(path, [row for row in places if row["position"] is not None]))
    return [*found, *_sessions([row for row in places if row["position"] is None], kept)]


def _places(path: Path, rows: Sequence[Any]) -> Iterator[Lag]:
    for namespace in sorted({row["read_namespace"] for row in rows}):
        with closing(Folder(str(path), namespace)) as folder:
            logs = {spot.id: spot for spot in folder.spots(TopicChoice(pattern=".*")).values()}
            yield from _in_logs(
                folder,
                [
                    (row["protocol"], row["reader"], logs[row["log_id"]], row["position"])
                    for row in rows
                    # The log of a row may be deleted. The broker forgets the row at its next start.
                    if row["read_namespace"] == namespace and row["log_id"] in logs
                ],
            )


def _sessions(places: Sequence[Any], kept: Sequence[Any]) -> Iterator[Lag]:
    names: dict[tuple[str, str], list[str]] = {}
    for row in places:
        names.setdefault((row["protocol"], row["reader"]), []).append(row["name"])
    waits = {(row["protocol"], row["reader"]): (row["messages"], row["bytes"]) for row in kept}
    for protocol, reader in sorted(names.keys() | waits.keys()):
        messages, size = waits.get((protocol, reader), (0, 0))
        what = ", ".join(names.get((protocol, reader), ()))
        yield Lag(protocol, reader, what, None, None, messages, size, None, None)
