"""Plans a round: from where the logs end, and where the archive ends, to ranges to read. No files here."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from brokers.errors import ExitCode, Refusal
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, LogState, Manifest, Part
from brokers.pipeline.archiving.parquet import Work, Written


@attrs.frozen
class Extent:
    """A log whose records from `first` to `end` can be read. LogState explains the other fields.

    `spot`: by it an executor finds the log again.
    """

    name: str
    topic: str
    first: int
    end: int
    seen: str = ""
    spot: Any = None


class Overtaken(Refusal):
    """Records are gone before they were archived, and loss was not allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text} (--allow-loss goes on, and keeps account of it)", ExitCode.FAILED)


@attrs.frozen
class RoundTarget:
    """One log's part of a round: the `range` to read, and the gap before it, if there is one.

    `event`: what happened to the log, in words. `loss`: whether records are lost by that.
    """

    identity: str
    extent: Extent
    range: ByteRange
    gap: ByteRange | None = None
    event: str = ""
    loss: bool = False


IsAnother = Callable[[LogState, Extent], bool]
"""Whether a log is not the one that the archive has under its name."""


def targets(
    manifest: Manifest, extents: Sequence[Extent], is_another: IsAnother, *, allow_loss: bool
) -> list[RoundTarget]:
    """Return what is new in each log. Logs with nothing new are left out.

    Raises Overtaken if records are gone before they were archived, unless loss is allowed.
    """
    current = manifest.current()
    found = (_target(current.get(extent.name), extent, is_another) for extent in extents)
    wanted = [target for target in found if target is not None]
    for target in wanted:
        if target.loss and not allow_loss:
            raise Overtaken(f"{target.extent.topic}: {target.event}")
    return wanted


def _target(log: LogState | None, extent: Extent, is_another: IsAnother) -> RoundTarget | None:
    here = ByteRange(extent.first, extent.end)
    if log is None:
        return RoundTarget(f"{extent.name}#1", extent, here) if extent.end > extent.first else None
    if is_another(log, extent):
        event = f"made again since it was archived up to {log.end}: another log from here on"
        return RoundTarget(_following(log), extent, here, event=event)
    if extent.end < log.end:
        # The log has lost records at its end that the archive has (a power cut, in a mode other than
        # always). New records get the same offsets and are not the same, so it counts as another log.
        event = f"it ends at {extent.end}, and was archived up to {log.end}: another log from here on"
        return RoundTarget(_following(log), extent, ByteRange(extent.end, extent.end), event=event, loss=True)
    if extent.first > log.end:
        gap = ByteRange(log.end, extent.first)
        event = f"offsets {gap.start} to {gap.end} were dropped (retention) before they were archived"
        return RoundTarget(log.identity, extent, here, gap, event, loss=True)
    if extent.end == log.end:
        return None
    return RoundTarget(log.identity, extent, ByteRange(log.end, extent.end))


def _following(log: LogState) -> str:
    number = int(log.identity.rpartition("#")[2])
    return f"{log.name}#{number + 1}"


TaskPiece = tuple[Extent, Work]
"""Which log a part of a task reads, and what it writes."""
Cuts = Callable[[Extent, int, int, int], Sequence[int]]
"""`cuts(log, start, stop, bytes_each)` returns offsets of records that cut a range into such pieces."""


def limited(wanted: Sequence[RoundTarget], bytes_max: int, cuts: Cuts) -> list[RoundTarget]:
    """Cut the work to what a round may read, at records' boundaries.

    Each log has the same share of bytes, and at least a piece. Large logs get what small ones leave.
    """
    left = bytes_max
    found = {}
    by_size = sorted(wanted, key=lambda target: target.range.end - target.range.start)
    for number, target in enumerate(by_size):
        share = max(left // (len(by_size) - number), 1)
        start, end = target.range
        if end - start > share:
            places = cuts(target.extent, start, end, share)
            end = places[0] if places else end
        left -= end - start
        found[target.identity] = attrs.evolve(target, range=ByteRange(start, end))
    return [found[target.identity] for target in wanted]


def shares(
    wanted: Sequence[RoundTarget], tasks: int, token: str, cuts: Cuts, *, gaps_allowed: bool, bytes_least: int
) -> list[list[TaskPiece]]:
    """Cut the work into about `tasks` shares of about the same size, in order. Small logs share one."""
    total = sum(target.range.end - target.range.start for target in wanted)
    size = max(-(-total // tasks), bytes_least, 1)
    found: list[list[TaskPiece]] = []
    room = 0
    for target in wanted:
        start, end = target.range
        places = [place for place in cuts(target.extent, start, end, size) if start < place < end]
        edges = [start, *places, end]
        for low, high in pairwise(edges):
            if high == low:
                continue
            if not found or high - low > room:
                found.append([])
                room = size + size // 8
            room -= high - low
            work = Work(target.identity, target.extent.topic, ByteRange(low, high), token, gaps_allowed)
            found[-1].append((target.extent, work))
    return found


def spans(
    wanted: Sequence[RoundTarget], written: Mapping[tuple[str, ByteRange], Written]
) -> list[ArchivedSpan]:
    """Put together what was written of each log. `written`: by identity and range of the pieces."""
    found = []
    for target in wanted:
        pieces = sorted(
            (range_, each) for (identity, range_), each in written.items() if identity == target.identity
        )
        parts = [part for _, each in pieces for part in each.parts]
        gaps = [gap for _, each in pieces for gap in each.gaps]
        start = target.range.start
        if target.gap is not None:
            gaps.insert(0, target.gap)
            start = target.gap.start
        log = target.extent
        range_ = ByteRange(start, target.range.end)
        found.append(ArchivedSpan(target.identity, log.name, log.topic, log.seen, range_, parts, gaps))
    return found


@attrs.frozen
class Ripe:
    """When a log's fresh files are settled: at so many bytes or files, or when the oldest is so old."""

    file_bytes: int = 128 << 20
    files: int = 600
    seconds: float = 300.0


def ripe(manifest: Manifest, rule: Ripe, now_ms: int, *, everything: bool = False) -> list[list[Part]]:
    """Return, for each log that is ripe, its fresh files in order."""
    by_log: dict[str, list[Part]] = {}
    for part in manifest.hot:
        by_log.setdefault(part.key, []).append(part)
    return [
        parts
        for parts in by_log.values()
        if everything
        or sum(part.file_bytes for part in parts) >= rule.file_bytes
        or len(parts) >= rule.files
        or now_ms - parts[0].made_ms >= rule.seconds * 1000
    ]
