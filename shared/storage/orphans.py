"""Logs whose CREATE is lost: what their files and the rest of the journal still say of them.

Nothing is deleted because it is not on record. A log's files name it, so it comes back under its own name.
Where there are no files its records in the journal come back as a log of the namespace `recovered`.
"""

from collections.abc import Container, Iterator, Mapping

import attrs
import structlog

from shared.storage import index, rebuild
from shared.storage.catalog import LogLine
from shared.storage.disk import Disk
from shared.storage.log_recovery import Pieces, Segments, holds

logger = structlog.stdlib.get_logger("brokers.storage")

NAMESPACE = "recovered"


@attrs.define
class Orphans:
    """Logs that were found, by id. `replaced`: logs that were deleted, since a later one has their files."""

    found: dict[int, LogLine] = attrs.Factory(dict)
    replaced: set[int] = attrs.Factory(set)


def find(
    disk: Disk,
    segments: Segments,
    lines: Mapping[int, LogLine],
    pieces: Mapping[int, Pieces],
    deleted: Container[int],
    next_log_id: int,
    *,
    damaged: bool,
) -> Orphans:
    """Look for the logs made since the catalog was written, whose ids begin at `next_log_id`.

    `lines`: those that are known. `damaged`: the journal has a hole, so a file under a known log's name may
    be another's.
    """
    orphans = Orphans()
    owners = {(line.namespace, line.file): line.id for line in lines.values()}
    nameless: list[tuple[str, str]] = []
    for namespace, file in rebuild.files(disk):
        owner = owners.get((namespace, file))
        if owner is not None and not damaged:
            continue
        log_id = index.owner(disk, f"{namespace}/{file}.idx")
        if log_id is None:
            if owner is None:
                nameless.append((namespace, file))
            continue
        if log_id < next_log_id or log_id in lines or log_id in deleted:
            continue
        line = rebuild.line_of(disk, namespace, file)
        if line is None or line.end == line.first:
            continue
        if owner is not None:
            orphans.replaced.add(owner)
        orphans.found[log_id] = line._replace(end=line.first)
    for log_id, those in sorted(pieces.items()):
        if log_id >= next_log_id and not (log_id in lines or log_id in deleted or log_id in orphans.found):
            where = next(_holding(disk, segments, nameless, those), (NAMESPACE, f"log-{log_id}"))
            created_ms = those[0].time_ms
            orphans.found[log_id] = LogLine(
                log_id, where[0], rebuild.name_of(where[1]), where[1], "always", created_ms, 0, 0
            )
    say = logger.error if damaged else logger.warning  # a cut may have come before it was synced
    for line in orphans.found.values():
        say(
            "the making of a log is lost: what its files and the journal have of it is recovered",
            log=f"{line.namespace}/{line.name}",
            id=line.id,
        )
    return orphans


def _holding(
    disk: Disk, segments: Segments, nameless: list[tuple[str, str]], pieces: Pieces
) -> Iterator[tuple[str, str]]:
    """Files, of nobody and without an index, that have what the journal has."""
    for namespace, file in nameless:
        fd = disk.open(f"{namespace}/{file}.log")
        try:
            if holds(disk, fd, segments, pieces[0]):
                yield namespace, file
        finally:
            disk.close(fd)
