"""What a bucket holds, put together by the simplest means: snapshot, parts, journal, entry by entry.

It knows nothing of a restore. Every hole, overlap or damaged object is an error.
"""

import attrs

from brokers.ship.formats import (
    MANIFEST_KEY,
    Manifest,
    check_part,
    continues,
    unpack_manifest,
    unpack_snapshot,
    unpack_wal,
    wal_key,
)
from shared.storage.catalog import unpack_create
from shared.storage.format import BATCH_HEADER_BYTES, EntryKind, unpack_entries


@attrs.define
class Assembled:
    """Each log's bytes by (namespace, name), from its first kept offset on; and where the journal ends."""

    manifest: Manifest
    logs: dict[tuple[str, str], bytes]
    lsn: int
    number: int


@attrs.define
class _Log:
    namespace: str
    name: str
    first: int
    data: bytearray


def assembled(objects: dict[str, bytes]) -> Assembled:
    """What the bucket has as of its end."""
    manifest = unpack_manifest(objects[MANIFEST_KEY])
    line = manifest.snapshots[-1]
    snapshot = unpack_snapshot(objects[line.key])
    assert (snapshot.lsn, snapshot.wal, snapshot.whole_from) == (line.lsn, line.wal, line.whole_from)
    logs: dict[int, _Log] = {}
    for each in snapshot.catalog.logs:
        data = bytearray(each.end)
        position = None
        for key, section in snapshot.sections.get(each.id, []):
            assert section in check_part(objects[key])
            assert position in (None, section.first), "sections of a log follow each other"
            position = section.end
            data[section.first : section.end] = objects[key][section.at : section.at + section.length]
        if each.end > each.first and position is not None:
            assert position == each.end
        logs[each.id] = _Log(each.namespace, each.name, each.first, data)
    number, lsn, before = line.wal, snapshot.lsn, None
    while wal_key(number) in objects:
        wal = unpack_wal(objects[wal_key(number)])
        assert wal.head.number == number
        assert before is None or continues(before, wal.head), f"a hole before {wal_key(number)}"
        if before is None:
            assert wal.head.first_lsn <= snapshot.lsn or wal.head.first_lsn <= line.whole_from
        before = wal.head
        pieces = wal.pieces()
        for batch, raw in wal.batches():
            payload = raw[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + batch.payload_bytes]
            for entry in unpack_entries(payload, batch.entries) or ():
                body = payload[entry.body_start : entry.body_end]
                if entry.kind == EntryKind.REFERENCE:
                    piece = next(pieces)
                    assert (piece.log_id, piece.offset) == (entry.log_id, entry.offset)
                    body = memoryview(b"" if piece.data is None else piece.data)
                if batch.lsn < snapshot.lsn:
                    continue
                if entry.kind == EntryKind.CREATE:
                    made = unpack_create(entry.log_id, bytes(body))
                    logs[entry.log_id] = _Log(made.namespace, made.name, 0, bytearray())
                elif entry.kind == EntryKind.DELETE:
                    logs.pop(entry.log_id, None)
                elif entry.log_id not in logs:
                    continue
                elif entry.kind == EntryKind.FIRST:
                    logs[entry.log_id].first = entry.offset
                elif entry.kind in (EntryKind.APPEND, EntryKind.REFERENCE):
                    log = logs[entry.log_id]
                    assert entry.offset <= len(log.data), "a hole in a log"
                    log.data[entry.offset : entry.offset + len(body)] = body
        lsn = wal.head.next_lsn
        number += 1
    found = {(log.namespace, log.name): bytes(log.data[log.first :]) for log in logs.values()}
    return Assembled(manifest, found, lsn, number - 1)
