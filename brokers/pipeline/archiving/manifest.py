"""The manifest says what is in an archive. It is a value, made anew for each commit. No files here.

It has the offset up to which each log is in the archive, and every file that is not at its final place yet.
Files at their final places are not in it, since only a commit brings them there. So the
manifest stays small however large the archive grows.

Every commit is checked. It begins where the log's records end in the archive. Its files and allowed gaps
cover the bytes up to the new end exactly. So no two commits have the same record.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
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
    """One Parquet file with the records [start, end) of a log, all of one day (UTC).

    `token`: a part of its fresh name. `made_ms`: when it was committed.
    """

    key: str
    topic: str
    date: str
    start: int
    end: int
    records: int
    file_bytes: int
    token: str
    made_ms: int = 0

    @property
    def fresh_path(self) -> str:
        name = names.FileName(self.start, self.end, self.key, self.token)
        return f"{names.FRESH}/{names.folder(self.topic, self.date)}/{name}"

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
    """A log's records [start, end) are in the archive except `gaps`; [start, settled) at final places.

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
    settled: int
    records: int = 0
    gaps: tuple[ByteRange, ...] = ()

    @property
    def key(self) -> str:
        return names.log_key(self.identity)

    @property
    def lost_bytes(self) -> int:
        return sum(gap.length for gap in self.gaps)


@attrs.frozen
class Retired:
    """A fresh file whose records are in a settled file now. Earlier readers may read it until then."""

    path: str
    until_ms: int


@attrs.frozen
class Settlement:
    """`replaced`, a log's oldest fresh parts, were written anew as `parts`."""

    parts: Sequence[Part]
    replaced: Sequence[Part]


@attrs.frozen
class Manifest:
    """One commit.

    `origin`: the kind of source of its logs. `logs`: by key. `hot`: the fresh files, for each log in the
    order of its records. `moves`: files that this commit takes to their final places.
    """

    version: int = 0
    origin: str = ""
    written_ms: int = 0
    logs: Mapping[str, LogState] = attrs.field(factory=dict)
    hot: tuple[Part, ...] = ()
    retired: tuple[Retired, ...] = ()
    moves: tuple[Part, ...] = ()

    @property
    def records(self) -> int:
        return sum(log.records for log in self.logs.values())

    def current(self) -> Mapping[str, LogState]:
        """Return each name's log: the newest one, if it was made again."""
        return {log.name: log for log in self.logs.values()}

    def advance(self, spans: Iterable[ArchivedSpan], now_ms: int, direct_bytes: int) -> "Manifest":
        """Return the next commit, with these spans added, at most one for a log. Raises NotContinuous.

        A log's files go to their final places at once if they have `direct_bytes` together, and no older file
        of the log is still fresh.
        """
        logs, hot = dict(self.logs), list(self.hot)
        moves: list[Part] = []
        fresh = {part.key for part in self.hot}
        for span in spans:
            key = names.log_key(span.identity)
            at = span.range.start
            log = logs.get(key) or LogState(span.identity, span.name, span.topic, span.seen, at, at, at)
            _check_tiles(log, key, span)
            big = sum(part.file_bytes for part in span.parts) >= direct_bytes
            settles = key not in fresh and (big or not span.parts)
            parts = [attrs.evolve(part, made_ms=now_ms) for part in span.parts]
            (moves if settles else hot).extend(parts)
            logs[key] = attrs.evolve(
                log,
                seen=span.seen,
                end=span.range.end,
                settled=span.range.end if settles else log.settled,
                records=log.records + sum(part.records for part in span.parts),
                gaps=_joined([*log.gaps, *span.gaps]),
            )
        return self._next(now_ms, logs=logs, hot=tuple(hot), moves=tuple(moves))

    def settle(self, settlements: Iterable[Settlement], now_ms: int, kept_ms: int) -> "Manifest":
        """Return the next commit, with fresh files replaced by settled ones. Raises NotContinuous."""
        logs = dict(self.logs)
        hot: dict[str, list[Part]] = {}
        for part in self.hot:
            hot.setdefault(part.key, []).append(part)
        moves: list[Part] = []
        retired = [each for each in self.retired if each.until_ms > now_ms]
        for settlement in settlements:
            old, new = settlement.replaced, settlement.parts
            key = old[0].key
            log = logs[key]
            is_prefix = list(old) == hot.get(key, [])[: len(old)]
            if not is_prefix or not _same_records(old, new, log.gaps):
                raise NotContinuous(f"{log.topic}: what was settled at {new[0].start} is not what was fresh")
            left = hot[key] = hot[key][len(old) :]
            retired += [Retired(part.fresh_path, now_ms + kept_ms) for part in old]
            moves += new
            logs[key] = attrs.evolve(log, settled=left[0].start if left else log.end)
        fresh = tuple(part for parts in hot.values() for part in parts)
        return self._next(now_ms, logs=logs, hot=fresh, retired=tuple(retired), moves=tuple(moves))

    def without_retired(self, now_ms: int) -> "Manifest":
        """Return the next commit, without retired files whose time is over; itself if there are none."""
        left = tuple(each for each in self.retired if each.until_ms > now_ms)
        return self if left == self.retired else self._next(now_ms, retired=left)

    def _next(self, now_ms: int, **changes: Any) -> "Manifest":
        made: dict[str, Any] = {"version": self.version + 1, "written_ms": now_ms, "moves": ()}
        return attrs.evolve(self, **made | changes)

    def pack(self) -> bytes:
        """Return UTF-8 lines of JSON: a head, a line for each log, file and move, and the CRC of all."""
        head = {
            "archive": FORMAT_NUMBER,
            "version": self.version,
            "origin": self.origin,
            "written_ms": self.written_ms,
        }
        lines: list[dict[str, Any]] = [head]
        lines += [{"log": attrs.asdict(log, recurse=False)} for log in self.logs.values()]
        lines += [{"hot": attrs.asdict(part, recurse=False)} for part in self.hot]
        lines += [{"retired": attrs.asdict(each, recurse=False)} for each in self.retired]
        lines += [{"move": attrs.asdict(part, recurse=False)} for part in self.moves]
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
            hot=tuple(Part(**line["hot"]) for line in rest if "hot" in line),
            retired=tuple(Retired(**line["retired"]) for line in rest if "retired" in line),
            moves=tuple(Part(**line["move"]) for line in rest if "move" in line),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _unpack_log(fields: dict[str, Any]) -> LogState:
    return LogState(**{**fields, "gaps": tuple(ByteRange(*gap) for gap in fields["gaps"])})


def _check_tiles(log: LogState, key: str, span: ArchivedSpan) -> None:
    at = log.end
    for start, end in sorted([*((part.start, part.end) for part in span.parts), *span.gaps]):
        if start != at or end <= start:
            raise NotContinuous(f"{log.topic}: [{start}, {end}) does not continue {at}")
        at = end
    if span.range.start != log.end or at != span.range.end or any(part.key != key for part in span.parts):
        raise NotContinuous(f"{log.topic}: written up to {at}, not {span.range}, after {log.end}")


def _same_records(old: Sequence[Part], new: Sequence[Part], gaps: Sequence[ByteRange]) -> bool:
    """Whether the new files have as many records of the same range, without holes except the gaps."""
    holes = set(gaps)
    follows = all(
        before.end == after.start or ByteRange(before.end, after.start) in holes
        for before, after in pairwise(new)
    )
    return (
        follows
        and (old[0].start, old[-1].end) == (new[0].start, new[-1].end)
        and sum(part.records for part in old) == sum(part.records for part in new)
        and {part.key for part in new} == {old[0].key}
    )


def _joined(gaps: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    found: list[ByteRange] = []
    for gap in gaps:
        if found and found[-1].end == gap.start:
            found[-1] = ByteRange(found[-1].start, gap.end)
        else:
            found.append(ByteRange(*gap))
    return tuple(found)
