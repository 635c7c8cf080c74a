"""Plans a round: from where the logs end, and where the archive ends, to ranges to read. No files here."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, LogState, Manifest
from brokers.pipeline.archiving.parquet import Work, Written
from brokers.pipeline.source import ranges
from brokers.pipeline.source.ranges import Cut, LogRange, fair_shares

NamedLog = tuple[str, LogRange]
"""A log as found, behind its name among all sources of the archive."""


class Overtaken(Failure):
    """Records are gone before they were archived, and loss was not allowed."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text} (--allow-loss goes on, and keeps account of it)", ExitCode.FAILED)


@attrs.frozen
class RoundTarget:
    """One log's part of a round: the `range` to read, and the gap before it, if there is one.

    `event`: what happened to the log, in words. `loss`: whether records are lost by that.
    """

    identity: str
    name: str
    log: LogRange
    range: ByteRange
    gap: ByteRange | None = None
    event: str = ""
    loss: bool = False


IsAnother = Callable[[LogState, LogRange], bool]
"""Whether a log is not the one that the archive has under its name."""


def targets(
    manifest: Manifest, logs: Iterable[NamedLog], is_another: IsAnother, *, allow_loss: bool
) -> list[RoundTarget]:
    """Return what is new in each log. Logs with nothing new are left out.

    Raises Overtaken if records are gone before they were archived, unless loss is allowed.
    """
    current = manifest.current()
    found = (_target(current.get(name), name, log, is_another) for name, log in logs)
    wanted = [target for target in found if target is not None]
    for target in wanted:
        if target.loss and not allow_loss:
            raise Overtaken(f"{target.log.topic}: {target.event}")
    return wanted


def _target(known: LogState | None, name: str, log: LogRange, is_another: IsAnother) -> RoundTarget | None:
    here = ByteRange(log.start, log.stop)
    if known is None:
        return RoundTarget(f"{name}#1", name, log, here) if log.length > 0 else None
    if is_another(known, log):
        event = f"made again since it was archived up to {known.end}: another log from here on"
        return RoundTarget(_following(known), name, log, here, event=event)
    if log.stop < known.end:
        # The log has lost records at its end that the archive has (a power cut, in a mode other than
        # always). New records get the same offsets and are not the same, so it counts as another log.
        event = f"it ends at {log.stop}, and was archived up to {known.end}: another log from here on"
        nothing = ByteRange(log.stop, log.stop)
        return RoundTarget(_following(known), name, log, nothing, event=event, loss=True)
    if log.start > known.end:
        gap = ByteRange(known.end, log.start)
        event = f"offsets {gap.start} to {gap.end} were dropped (retention) before they were archived"
        return RoundTarget(known.identity, name, log, here, gap, event, loss=True)
    if log.stop == known.end:
        return None
    return RoundTarget(known.identity, name, log, ByteRange(known.end, log.stop))


def _following(log: LogState) -> str:
    number = int(log.identity.rpartition("#")[2])
    return f"{log.name}#{number + 1}"


def limited(wanted: Sequence[RoundTarget], bytes_max: int, cut: Cut) -> list[RoundTarget]:
    """Cut the work to what a round may read, at records' boundaries.

    Each log has the same share of bytes, and at least a piece. Large logs get what small ones leave.
    """
    by_size = sorted(wanted, key=lambda target: target.range.length)
    sizes = fair_shares(bytes_max, [target.range.length for target in by_size], least=1)
    most = {target.identity: size for target, size in zip(by_size, sizes, strict=True)}
    return [_cut_off(target, most[target.identity], cut) for target in wanted]


def _cut_off(target: RoundTarget, most: int, cut: Cut) -> RoundTarget:
    start, end = target.range
    whole = target.log.part(start, end)
    places = (cut(whole, at) for at in range(start + most, end, most))
    stop = next((place for place in places if start < place < end), end)
    return attrs.evolve(target, range=ByteRange(start, stop))


TaskPiece = tuple[LogRange, Work]
"""What a part of a task reads, and what it writes."""


def shares(
    wanted: Sequence[RoundTarget],
    tasks: int,
    token: str,
    cut: Cut | None,
    *,
    gaps_allowed: bool,
    bytes_least: int,
) -> list[list[TaskPiece]]:
    """Cut the work into about `tasks` shares of about the same size, in order. Small logs share one.

    `cut`: None makes a share of each range, as it is.
    """
    total = sum(target.range.length for target in wanted)
    identities = {(target.log.source, target.log.topic): target.identity for target in wanted}

    def piece(part: LogRange) -> TaskPiece:
        identity = identities[part.source, part.topic]
        return part, Work(identity, part.topic, ByteRange(part.start, part.stop), token, gaps_allowed)

    whole = [target.log.part(*target.range) for target in wanted]
    if cut is None:
        return [[piece(each)] for each in whole]
    divided = ranges.shares(whole, None, cut, size=max(-(-total // tasks), bytes_least, 1))
    return [list(map(piece, share)) for share in divided]


def spans(wanted: Sequence[RoundTarget], written: Sequence[tuple[str, Written]]) -> list[ArchivedSpan]:
    """Put together what was written of each log. `written`: by identity, in any order."""
    archived = []
    by_identity: dict[str, list[Written]] = {}
    for identity, each in written:
        by_identity.setdefault(identity, []).append(each)
    for target in wanted:
        mine = by_identity.get(target.identity, [])
        parts = sorted((part for each in mine for part in each.parts), key=attrgetter("start"))
        gaps = sorted(gap for each in mine for gap in each.gaps)
        whole = target.range
        if target.gap is not None:
            gaps.insert(0, target.gap)
            whole = ByteRange(target.gap.start, whole.end)
        topic, seen = target.log.topic, str(target.log.log_id)
        archived.append(ArchivedSpan(target.identity, target.name, topic, seen, whole, parts, gaps))
    return archived
