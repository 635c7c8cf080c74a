"""The manifest says what is in an archive. It is a value, made anew for each commit. No files here.

It has the offset up to which each log is in the archive, and the files that it brings to their final places.
Files that are there already are not in it, since only a commit brings them there. So the manifest stays small
however large the archive grows.

Every commit is checked. It begins where the log's records end in the archive. Its files and allowed gaps
cover the bytes up to the new end exactly. So no two commits have the same record.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from brokers.pipeline.archiving import names
from shared.errors import BrokerError
from shared.storage import format

FORMAT_NUMBER = 1


class NotContinuous(BrokerError):
    """A commit would leave out records or have some twice: a bug, or another log under the same name."""


class ByteRange(NamedTuple):
    """Bytes [start, end) of a log. Both are starts of records."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@attrs.frozen
class Part:
    """One Parquet file with the records [start, end) of a log, all of one day, or hour (UTC).

    `date`: as paths have it, `2026-11-21` or `2026-11-21/hour=07`. `token`: a part of its fresh name.
    """

    key: str
    topic: str
    date: str
    start: int
    end: int
    records: int
    file_bytes: int
    token: str

    @property
    def written_name(self) -> str:
        """The path that no other file ever has, below whatever folder it is written to."""
        name = names.FileName(self.start, self.end, self.key, self.token)
        return f"{names.folder(self.topic, self.date)}/{name}"

    @property
    def fresh_path(self) -> str:
        return f"{names.FRESH}/{self.written_name}"

    @property
    def path(self) -> str:
        """The file's final place."""
        return f"{names.folder(self.topic, self.date)}/{names.FileName(self.start, self.end, self.key)}"


@attrs.frozen
class ArchivedSpan:
    """A range of a log that was read and written. `parts` and `gaps` cover it. See LogState."""

    identity: str
    name: str
    topic: str
    seen: str
    range: ByteRange
    parts: Sequence[Part]
    gaps: Sequence[ByteRange] = ()


@attrs.frozen
class LogState:
    """A log's records [start, end) are in the archive except `gaps`.

    `name`: the log's name among all sources of the archive. `topic`: the name for readers, which logs of
    several brokers may share. `identity`: unique, even if a log is deleted and made again by its name.
    `seen`: the id by which the source knew the log at the last read.
    """

    identity: str
    name: str
    topic: str
    seen: str
    start: int
    end: int
    records: int = 0
    gaps: tuple[ByteRange, ...] = ()

    @property
    def key(self) -> str:
        return names.log_key(self.identity)

    @property
    def lost_bytes(self) -> int:
        return sum(gap.length for gap in self.gaps)


@attrs.frozen
class Manifest:
    """One commit.

    `origin`: the kind of source of its logs. `logs`: by key. `moves`: files that this commit takes to their
    final places. `hot`: fresh files that an archiver of an older release has left, to be moved as they are.
    `columns`: those made of what is in the records, and their types (`columns.py`).
    """

    version: int = 0
    origin: str = ""
    written_ms: int = 0
    logs: Mapping[str, LogState] = attrs.field(factory=dict)
    moves: tuple[Part, ...] = ()
    hot: tuple[Part, ...] = ()
    columns: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def records(self) -> int:
        return sum(log.records for log in self.logs.values())

    def current(self) -> Mapping[str, LogState]:
        """Return each name's log: the newest one, if it was made again."""
        return {log.name: log for log in self.logs.values()}

    def advance(
        self, spans: Iterable[ArchivedSpan], now_ms: int, columns: Mapping[str, str] | None = None
    ) -> "Manifest":
        """Return the next commit, with these spans added, at most one for a log. Raises NotContinuous.

        `columns`: all that files have from now on; None: as before.
        """
        logs = dict(self.logs)
        moves = list(self.hot)
        for span in spans:
            key = names.log_key(span.identity)
            at = span.range.start
            log = logs.get(key) or LogState(span.identity, span.name, span.topic, span.seen, at, at)
            _check_tiles(log, key, span)
            moves += span.parts
            logs[key] = attrs.evolve(
                log,
                seen=span.seen,
                end=span.range.end,
                records=log.records + sum(part.records for part in span.parts),
                gaps=_joined([*log.gaps, *span.gaps]),
            )
        columns = self.columns if columns is None else columns
        return Manifest(self.version + 1, self.origin, now_ms, logs, tuple(moves), columns=columns)

    def pack(self, by: str = "") -> bytes:
        """Return UTF-8 lines of JSON: a head, a line for each log, file and move, and the CRC of all.

        `by`: who writes it, so that no other archiver's is the same.
        """
        head = {
            "archive": FORMAT_NUMBER,
            "version": self.version,
            "origin": self.origin,
            "written_ms": self.written_ms,
        }
        lines: list[dict[str, Any]] = [head]
        lines += [{"log": attrs.asdict(log, recurse=False)} for log in self.logs.values()]
        lines += [{"move": attrs.asdict(part, recurse=False)} for part in self.moves]
        if self.columns:
            lines.append({"columns": dict(self.columns)})
        if by:
            lines.append({"by": by})
        return format.pack_lines(lines)


def was_whole(data: bytes) -> bool:
    """Whether bytes that are no manifest end as one does: they are damaged then, not torn off."""
    return data.rpartition(b"\n{")[2].startswith(b'"crc32c"') and data.endswith(b"}\n")


def unpack(data: bytes) -> Manifest | None:
    """Return the manifest, or None for bytes that are not a whole one."""
    lines = format.unpack_lines(data)
    try:
        if not lines or lines[0]["archive"] != FORMAT_NUMBER:
            return None
        head, rest = lines[0], lines[1:]
        logs = [_unpack_log(line["log"]) for line in rest if "log" in line]
        return Manifest(
            version=head["version"],
            origin=head["origin"],
            written_ms=head["written_ms"],
            logs={log.key: log for log in logs},
            moves=tuple(_unpack_part(line["move"]) for line in rest if "move" in line),
            hot=tuple(_unpack_part(line["hot"]) for line in rest if "hot" in line),
            columns=next((line["columns"] for line in rest if "columns" in line), {}),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _unpack_log(fields: dict[str, Any]) -> LogState:
    fields.pop("settled", None)  # of an older release, as `made_ms`
    return LogState(**{**fields, "gaps": tuple(ByteRange(*gap) for gap in fields["gaps"])})


def _unpack_part(fields: dict[str, Any]) -> Part:
    fields.pop("made_ms", None)
    return Part(**fields)


def _check_tiles(log: LogState, key: str, span: ArchivedSpan) -> None:
    at = log.end
    for start, end in sorted([*((part.start, part.end) for part in span.parts), *span.gaps]):
        if start != at or end <= start:
            raise NotContinuous(f"{log.topic}: [{start}, {end}) does not continue {at}")
        at = end
    if span.range.start != log.end or at != span.range.end or any(part.key != key for part in span.parts):
        raise NotContinuous(f"{log.topic}: written up to {at}, not {span.range}, after {log.end}")


def _joined(gaps: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    joined: list[ByteRange] = []
    for gap in gaps:
        if joined and joined[-1].end == gap.start:
            joined[-1] = ByteRange(joined[-1].start, gap.end)
        else:
            joined.append(ByteRange(*gap))
    return tuple(joined)
