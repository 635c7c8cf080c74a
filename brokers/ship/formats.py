"""The objects in a bucket, packed and unpacked. Source: SHIP.md.

Unpacking raises `BadObject` where bytes are not what a shipper wrote.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs
from crc32c import crc32c

from brokers.ship.cipher import MAGIC as ENCRYPTED
from shared.errors import EXIT_LOST, BrokerError
from shared.storage.catalog import Catalog
from shared.storage.catalog import unpack as unpack_catalog
from shared.storage.format import (
    BATCH_HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    Batch,
    IndexEntry,
    batch_is_good,
    pack_index_entry,
    pack_lines,
    unpack_batch,
    unpack_index_entry,
    unpack_lines,
)

FORMAT = 1
MANIFEST_KEY = "manifest.json"
WAL_PREFIX, PARTS_PREFIX, SNAPSHOTS_PREFIX, PROBE_PREFIX = "wal/", "parts/", "snapshots/", "probe/"
SHIP_PATH = "SHIP"
"""In the data folder: what the folder knows of its bucket."""

_WAL_MAGIC, _PART_MAGIC, _SNAPSHOT_MAGIC = b"BRSHWAL1", b"BRSHPRT1", b"BRSHSNP1"
_WAL = struct.Struct(">8sIIQQQQQQQQIII36x")
_PIECE = struct.Struct(">QQQII")
_PART = struct.Struct(">8sIIQQQQQ8x")
_SNAPSHOT = struct.Struct(">8sIIQQQ24x")
WAL_HEAD_BYTES, PART_HEAD_BYTES, SNAPSHOT_HEAD_BYTES = _WAL.size, _PART.size, _SNAPSHOT.size
PIECE_HEAD_BYTES = _PIECE.size
_CRC_FROM = 12
"""An object's CRC covers all behind the field itself."""
_GONE = 1


class BadObject(BrokerError):
    """An object's bytes are not what a shipper wrote, or a newer version wrote them."""

    exit_code = EXIT_LOST


def wal_key(number: int) -> str:
    return f"{WAL_PREFIX}{number:020d}"


def wal_number(key: str) -> int | None:
    """The number of a WAL object; None where the key is not one's."""
    name = key.removeprefix(WAL_PREFIX)
    return int(name) if key.startswith(WAL_PREFIX) and len(name) == 20 and name.isdecimal() else None


def part_key(epoch: int, lsn: int, number: int) -> str:
    return f"{PARTS_PREFIX}{epoch:010d}-{lsn:020d}-{number:06d}"


def snapshot_key(epoch: int, lsn: int) -> str:
    return f"{SNAPSHOTS_PREFIX}{epoch:010d}-{lsn:020d}"


def _checked(data: bytes | memoryview, magic: bytes, what: str) -> None:
    """Check an object's magic, CRC and format. Raises BadObject."""
    head = bytes(data[:16])
    if len(head) < 16 or head[:8] != magic:
        raise BadObject(f"{what}: no such object of a shipper")
    if int.from_bytes(head[12:16], "big") > FORMAT:
        raise BadObject(f"{what}: written by a newer version")
    if crc32c(memoryview(data)[_CRC_FROM:]) != int.from_bytes(head[8:12], "big"):
        raise BadObject(f"{what}: damaged, its CRC differs")


def _seal(data: memoryview) -> None:
    data[8:12] = crc32c(data[_CRC_FROM:]).to_bytes(4, "big")


# -- wal/<number>


class WalHead(NamedTuple):
    """What a WAL object says in front: the journal's batches from `first_lsn` to `next_lsn`.

    Where both are equal the object is empty, and begins an epoch. `first_ms`, `last_ms`: times of its first
    and last batch; of an empty one, when it was made.
    """

    number: int
    epoch: int
    journal_id: int
    first_lsn: int
    next_lsn: int
    first_ms: int
    last_ms: int
    batch_bytes: int = 0
    batches: int = 0
    pieces: int = 0
    crc32c: int = 0

    @property
    def empty(self) -> bool:
        return self.first_lsn == self.next_lsn


class Piece(NamedTuple):
    """Bytes of a log's file to which a REFERENCE in the batches refers. `data` is None where they were gone
    when they were shipped: retention had dropped them, or the log was deleted.
    """

    log_id: int
    offset: int
    length: int
    crc32c: int
    data: bytes | memoryview | None


@attrs.frozen
class Wal:
    """A WAL object, checked."""

    head: WalHead
    data: memoryview

    def batches(self) -> Iterator[tuple[Batch, memoryview]]:
        """Each batch, and all its bytes as on disk, padding included. Raises BadObject."""
        position, end = WAL_HEAD_BYTES, WAL_HEAD_BYTES + self.head.batch_bytes
        while position < end:
            batch = unpack_batch(bytes(self.data[position : position + BATCH_HEADER_BYTES]))
            if batch is None or position + batch.size > end:
                raise BadObject(f"{wal_key(self.head.number)}: its batches do not fill it")
            yield batch, self.data[position : position + batch.size]
            position += batch.size

    def pieces(self) -> Iterator[Piece]:
        """The bytes to which batches refer, in the batches' order. Raises BadObject."""
        position = WAL_HEAD_BYTES + self.head.batch_bytes
        for _ in range(self.head.pieces):
            if position + _PIECE.size > len(self.data):
                raise BadObject(f"{wal_key(self.head.number)}: a piece is missing")
            log_id, offset, length, crc, flags = _PIECE.unpack_from(self.data, position)
            position += _PIECE.size
            if flags & _GONE:
                yield Piece(log_id, offset, length, crc, None)
                continue
            yield Piece(log_id, offset, length, crc, self.data[position : position + length])
            position += length


def seal_wal(data: memoryview, head: WalHead, pieces: Sequence[Piece]) -> None:
    """Make a WAL object of `data`, which has whole batches, each with its padding, and the pieces' bytes, all
    behind room for their heads. The same content makes the same bytes: so a shipper knows its own object.
    """
    _WAL.pack_into(data, 0, _WAL_MAGIC, 0, FORMAT, *head[:-1], 0)
    position = WAL_HEAD_BYTES + head.batch_bytes
    for *place, found in pieces:
        _PIECE.pack_into(data, position, *place, _GONE if found is None else 0)
        position += _PIECE.size + (0 if found is None else len(found))
    _seal(data)


def pack_wal(head: WalHead, batches: Sequence[bytes] = (), pieces: Sequence[Piece] = ()) -> bytearray:
    """A WAL object. Of `head` the sizes and counts are made here."""
    parts: list[bytes | memoryview] = [bytes(WAL_HEAD_BYTES), *batches]
    for piece in pieces:
        parts += [bytes(PIECE_HEAD_BYTES), piece.data or b""]
    data = bytearray().join(parts)
    sizes = {"batch_bytes": sum(map(len, batches)), "batches": len(batches), "pieces": len(pieces)}
    seal_wal(memoryview(data), head._replace(**sizes), pieces)
    return data


def unpack_wal_head(data: bytes | memoryview, key: str = "wal") -> WalHead:
    """The head alone, as from a range request of `WAL_HEAD_BYTES`; nothing is checked but magic and format.

    Raises BadObject.
    """
    if len(data) < WAL_HEAD_BYTES or bytes(data[:8]) != _WAL_MAGIC:
        raise BadObject(f"{key}: not a WAL object")
    _, crc, number, *fields, _ = _WAL.unpack_from(data)
    if number > FORMAT:
        raise BadObject(f"{key}: written by a newer version")
    numbers = dict(zip(WalHead._fields, fields, strict=False))
    return WalHead(**numbers, crc32c=crc)


def unpack_wal(data: bytes | bytearray | memoryview, key: str = "wal") -> Wal:
    """A whole WAL object, its CRC and those of its batches checked. Raises BadObject."""
    _checked(memoryview(data), _WAL_MAGIC, key)
    wal = Wal(unpack_wal_head(memoryview(data), key), memoryview(data).toreadonly())
    last = -1
    for batch, raw in wal.batches():
        inside = max(last + 1, wal.head.first_lsn) <= batch.lsn <= wal.head.next_lsn - batch.size
        if not inside or not batch_is_good(batch, raw):
            raise BadObject(f"{key}: a batch in it is damaged")
        last = batch.lsn
    return wal


# -- parts/<epoch>-<lsn>-<number>


class Section(NamedTuple):
    """Bytes of a log, from `first` to `end`, in an object of parts: `at` is their place there.

    `crc32c` is over these bytes. `entries`: how many index entries cover them, whose place is `entries_at`.
    """

    log_id: int
    namespace: str
    name: str
    first: int
    end: int
    at: int
    crc32c: int
    entries_at: int
    entries: int

    @property
    def length(self) -> int:
        return self.end - self.first


class NewSection(NamedTuple):
    """A section that is to be packed."""

    log_id: int
    namespace: str
    name: str
    first: int
    end: int
    entries: Sequence[IndexEntry]

    @property
    def length(self) -> int:
        return self.end - self.first

    def placed(self, at: int, crc: int, entries_at: int) -> Section:
        """The section where it stands in an object."""
        return Section(*self[:5], at, crc, entries_at, len(self.entries))


def pack_part(
    sections: Sequence[NewSection],
    read: Callable[[NewSection, memoryview], None],
    *,
    journal_id: int,
    epoch: int,
    memory: bytearray | None = None,
) -> tuple[memoryview, list[Section]]:
    """An object of parts, and its directory: head, directory, index entries, bytes. `read` fills a section's
    place with its bytes. The object is made in `memory` where it fits, else in new memory.
    """
    entries = b"".join(pack_index_entry(each, new.log_id) for new in sections for each in new.entries)
    # A directory's numbers depend on its own length: they have room for any.
    room = len(_directory([new.placed(1 << 40, (1 << 32) - 1, 1 << 40) for new in sections]))
    entries_at = PART_HEAD_BYTES + room
    at = entries_at + len(entries)
    size = at + sum([new.length for new in sections])
    if memory is None or len(memory) < size:
        memory = bytearray(size)
    data = memoryview(memory)[:size]
    data[entries_at:at] = entries
    directory: list[Section] = []
    for new in sections:
        place = data[at : at + new.length]
        read(new, place)
        directory.append(new.placed(at, crc32c(place), entries_at))
        at += new.length
        entries_at += len(new.entries) * INDEX_ENTRY_BYTES
    packed = _directory(directory).ljust(room)
    data[PART_HEAD_BYTES : PART_HEAD_BYTES + room] = packed
    fields = epoch, journal_id, room, len(entries), crc32c(packed)
    _PART.pack_into(data, 0, _PART_MAGIC, 0, FORMAT, *fields)
    _seal(data)
    return data, directory


def _directory(sections: Iterable[Section]) -> bytes:
    return json.dumps([section._asdict() for section in sections], separators=(",", ":")).encode()


def unpack_directory(data: bytes | memoryview, key: str = "parts") -> list[Section] | int:
    """The directory of an object of parts, of which `data` is the front; if that is too short, how long it
    must be. Raises BadObject.
    """
    if len(data) < PART_HEAD_BYTES or bytes(data[:8]) != _PART_MAGIC:
        raise BadObject(f"{key}: not an object of parts")
    _, _, number, _, _, size, _, crc = _PART.unpack_from(data)
    if number > FORMAT:
        raise BadObject(f"{key}: written by a newer version")
    end = PART_HEAD_BYTES + size
    if len(data) < end:
        return int(end)
    packed = bytes(data[PART_HEAD_BYTES:end])
    if crc32c(packed) != crc:
        raise BadObject(f"{key}: its directory is damaged")
    return [Section(**fields) for fields in json.loads(packed)]


def check_part(data: bytes | memoryview, key: str = "parts") -> list[Section]:
    """The directory of a whole object of parts, whose CRC is checked. Raises BadObject."""
    _checked(data, _PART_MAGIC, key)
    found = unpack_directory(data, key)
    if isinstance(found, int):
        raise BadObject(f"{key}: cut short")
    return found


def section_entries(data: bytes | memoryview, section: Section, key: str = "parts") -> list[IndexEntry]:
    """The section's index entries. `data`: their bytes, from `entries_at` on. Raises BadObject."""
    raw = bytes(data[: section.entries * INDEX_ENTRY_BYTES])
    entries = []
    for number in range(section.entries):
        entry = unpack_index_entry(raw, section.log_id, number * INDEX_ENTRY_BYTES)
        if entry is None:
            raise BadObject(f"{key}: an index entry of {section.namespace}/{section.name} is damaged")
        entries.append(entry)
    return entries


# -- snapshots/<epoch>-<lsn>


@attrs.frozen
class Snapshot:
    """All logs as of `lsn`, where replay goes on with WAL object `wal`. `sections`: by log id, in order, the
    part object's key and the section in it. They cover each log from the entry in which its `first` lies up
    to its `end` in the catalog, but for what was gone when it was read.
    """

    epoch: int
    wal: int
    time_ms: int
    whole_from: int
    catalog: Catalog
    catalog_text: bytes
    sections: dict[int, list[tuple[str, Section]]]

    @property
    def lsn(self) -> int:
        return self.catalog.replay_lsn

    @property
    def part_keys(self) -> frozenset[str]:
        """The objects that it needs."""
        return frozenset(key for each in self.sections.values() for key, _ in each)

    def pack(self) -> bytearray:
        """A snapshot object: head, the catalog's text, lines of JSON."""
        placed = self.sections.values()
        keys = {
            key: number for number, key in enumerate(dict.fromkeys(k for each in placed for k, _ in each))
        }
        head = {"epoch": self.epoch, "wal": self.wal, "time_ms": self.time_ms, "whole_from": self.whole_from}
        lines: list[dict[str, Any]] = [{**head, "parts": list(keys)}]
        for log_id, each in self.sections.items():
            rows = [[keys[k], s.first, s.end, s.at, s.crc32c, s.entries_at, s.entries] for k, s in each]
            of = each[0][1]
            lines.append({"id": log_id, "namespace": of.namespace, "name": of.name, "sections": rows})
        text = pack_lines(lines)
        data = bytearray().join((bytes(SNAPSHOT_HEAD_BYTES), self.catalog_text, text))
        sizes = len(self.catalog_text), len(text)
        _SNAPSHOT.pack_into(data, 0, _SNAPSHOT_MAGIC, 0, FORMAT, self.epoch, *sizes)
        _seal(memoryview(data))
        return data


def unpack_snapshot(data: bytes | memoryview, key: str = "snapshot") -> Snapshot:
    """Raises BadObject."""
    _checked(data, _SNAPSHOT_MAGIC, key)
    *_, size, _ = _SNAPSHOT.unpack_from(data)
    text = bytes(data[SNAPSHOT_HEAD_BYTES : SNAPSHOT_HEAD_BYTES + size])
    catalog = unpack_catalog(text)
    lines = unpack_lines(bytes(data[SNAPSHOT_HEAD_BYTES + size :]))
    if catalog is None or not lines:
        raise BadObject(f"{key}: its catalog does not parse")
    head, *logs = lines
    keys = head["parts"]
    sections = {
        log["id"]: [
            (keys[part], Section(log["id"], log["namespace"], log["name"], *rest))
            for part, *rest in log["sections"]
        ]
        for log in logs
    }
    return Snapshot(head["epoch"], head["wal"], head["time_ms"], head["whole_from"], catalog, text, sections)


# -- manifest.json


@attrs.frozen
class SnapshotLine:
    """A snapshot as the manifest has it. Instants from `whole_from` on can be restored with it, which is its
    `lsn` unless something was gone while its parts were read. `wal`: the WAL object where replay begins.
    """

    key: str
    lsn: int
    whole_from: int
    time_ms: int
    wal: int
    epoch: int
    journal_id: str
    bytes: int


@attrs.frozen
class Manifest:
    """What is in the bucket. `writer`: random, one per process that took an epoch, so that no two processes
    ever write the same manifest. `wal_next` is a hint: the first number that does not exist is the truth.
    """

    epoch: int
    writer: str
    journal_id: str
    wal_first: int
    wal_next: int
    wal_deleted: int = 1
    """Below this number no WAL object is left."""
    snapshots: tuple[SnapshotLine, ...] = ()
    retained_from_ms: int | None = None
    retained_to_ms: int | None = None
    written_ms: int = 0
    url: str = ""
    format: int = FORMAT

    def pack(self) -> bytes:
        return json.dumps(attrs.asdict(self), indent=1).encode() + b"\n"


def unpack_manifest(data: bytes) -> Manifest:
    """Raises BadObject."""
    try:
        fields = json.loads(data)
        if fields["format"] > FORMAT:
            raise BadObject(f"{MANIFEST_KEY}: written by a newer version")
        known = {field.name for field in attrs.fields(Manifest)}
        lines = tuple(SnapshotLine(**line) for line in fields.pop("snapshots"))
        return Manifest(**{name: value for name, value in fields.items() if name in known}, snapshots=lines)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        advice = ": it is encrypted, and ship.encrypt is not set" if data.startswith(ENCRYPTED) else ""
        raise BadObject(f"{MANIFEST_KEY}: not a shipper's manifest{advice}") from error


# -- SHIP, in the data folder


@attrs.frozen
class FolderMark:
    """What a data folder knows of its bucket: which epoch was its own, and that all below `lsn` is there, in
    the objects up to `number`. The folder's journal has all from `lsn` on, unless `anew`: then shipping goes
    on from a snapshot. `starts`: where the journal went on after each start since: `[end, begin]`. `writer`:
    that of the manifest that the folder wrote last, or was about to write.
    """

    url: str
    journal_id: str
    epoch: int
    number: int
    lsn: int
    anew: bool = False
    starts: tuple[tuple[int, int], ...] = ()
    writers: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    """Ids of logs that have left bytes to the bucket: it says so before the catalog does."""

    def pack(self) -> bytes:
        fields = attrs.asdict(self)
        if not self.left:  # as older versions know it
            del fields["left"]
        return pack_lines([{"ship": FORMAT, **fields}])


def left_in(catalog: Catalog) -> tuple[int, ...]:
    """The logs that have left bytes to the bucket."""
    return tuple(line.id for line in catalog.logs if line.local > line.first)


def unpack_mark(data: bytes) -> FolderMark | None:
    """None where the file is damaged."""
    lines = unpack_lines(data)
    try:
        fields = dict((lines or [{}])[0])
        if fields.pop("ship") != FORMAT:
            return None
        starts = tuple((end, begin) for end, begin in fields.pop("starts"))
        writers, left = tuple(fields.pop("writers")), tuple(fields.pop("left", ()))
        return FolderMark(**fields, starts=starts, writers=writers, left=left)
    except (KeyError, TypeError, ValueError):
        return None


def continues(before: WalHead, after: WalHead) -> bool:
    """Whether nothing of the journal is missing between two WAL objects, one number after the other."""
    return (
        after.number == before.number + 1
        and after.journal_id == before.journal_id
        and after.first_lsn == before.next_lsn
        and after.epoch >= before.epoch
    )
