"""Objects of a bucket: what is packed is read back, and any other bytes are refused."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.ship import formats
from brokers.ship.cipher import Cipher
from brokers.ship.formats import (
    MANIFEST_KEY,
    BadObject,
    FolderMark,
    Manifest,
    NewSection,
    Piece,
    Section,
    Snapshot,
    SnapshotLine,
    Wal,
    WalHead,
    check_part,
    continues,
    pack_part,
    pack_wal,
    section_entries,
    unpack_directory,
    unpack_manifest,
    unpack_mark,
    unpack_snapshot,
    unpack_wal,
    unpack_wal_head,
)
from shared.storage.catalog import Catalog, LogLine
from shared.storage.format import IndexEntry, pack_batch, pack_entry
from tests.brokers.ship.apart import reads

JOURNAL = 0x1234


def batch(lsn: int, payload: bytes, time_ms: int = 5) -> bytes:
    entry = pack_entry(1, 7, 0, len(payload), 1)
    return bytes(pack_batch(lsn, 0, time_ms, JOURNAL, len(entry) + len(payload), 1, lsn, [entry, payload]))


def wal(payloads: list[bytes], pieces: list[Piece], first: int = 1024) -> bytearray:
    batches, lsn = [], first
    for number, payload in enumerate(payloads):
        batches.append(batch(lsn, payload, 100 + number))
        lsn += len(batches[-1])
    head = WalHead(3, 2, JOURNAL, first, lsn, 100, 99 + len(payloads))
    return pack_wal(head, batches, pieces)


payloads = st.lists(st.binary(max_size=2000), min_size=1, max_size=4)
some_pieces = st.lists(
    st.builds(
        lambda log_id, offset, crc, data, length: Piece(
            log_id, offset, length if data is None else len(data), crc, data
        ),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**63),
        st.integers(0, 2**32 - 1),
        st.none() | st.binary(max_size=100),
        st.integers(0, 2**40),
    ),
    max_size=3,
)


@given(payloads, some_pieces)
def test_a_wal_object_is_read_back(texts: list[bytes], pieces: list[Piece]) -> None:
    found = unpack_wal(wal(texts, pieces))
    assert found.head == unpack_wal_head(bytes(found.data[: formats.WAL_HEAD_BYTES]))
    assert (found.head.number, found.head.epoch, found.head.journal_id) == (3, 2, JOURNAL)
    assert (found.head.first_ms, found.head.last_ms) == (100, 99 + len(texts))
    raw = [bytes(data) for _, data in found.batches()]
    assert b"".join(raw) == b"".join(
        batch(each.lsn, text, 100 + number)
        for number, ((each, _), text) in enumerate(zip(found.batches(), texts, strict=True))
    )
    assert list(found.pieces()) == pieces


@given(payloads, some_pieces, st.data())
def test_a_wal_object_with_one_bit_flipped_is_refused(
    texts: list[bytes], pieces: list[Piece], data: st.DataObject
) -> None:
    packed = wal(texts, pieces)
    at = data.draw(st.integers(0, len(packed) * 8 - 1))
    packed[at // 8] ^= 1 << at % 8
    with pytest.raises(BadObject):
        unpack_wal(packed)


def test_an_empty_object_begins_an_epoch() -> None:
    head = unpack_wal(pack_wal(WalHead(9, 4, 1, 512, 512, 77, 77))).head
    assert head.empty
    assert (head.epoch, head.first_ms, head.batches) == (4, 77, 0)


def test_two_objects_follow_each_other_only_without_a_hole() -> None:
    before = unpack_wal(wal([b"x"], [])).head
    after = before._replace(number=4, first_lsn=before.next_lsn, next_lsn=before.next_lsn + 512)
    assert continues(before, after)
    assert continues(before, after._replace(epoch=3))
    assert not continues(before, after._replace(number=5))
    assert not continues(before, after._replace(first_lsn=after.first_lsn + 512))
    assert not continues(before, after._replace(journal_id=1))
    assert not continues(before, after._replace(epoch=1))


def sections() -> list[NewSection]:
    entries = [IndexEntry(100, 1, 2, 50, 3, 9), IndexEntry(150, 2, 3, 10, 1, 8, 1)]
    return [
        NewSection(7, "logmq", "orders", 100, 160, entries),
        NewSection(8, "dms", "q\N{SNOWMAN}", 0, 0, []),
        NewSection(2**63, "dms", "r", 2**60, 2**60 + 5, [IndexEntry(2**60, 1, 2, 5, 3, 9)]),
    ]


TEXTS = {7: b"a" * 60, 8: b"", 2**63: b"b" * 5}


def packed_part(epoch: int = 3) -> tuple[memoryview, list[Section]]:
    return pack_part(sections(), reads(TEXTS), journal_id=JOURNAL, epoch=epoch)


def test_an_object_of_parts_is_read_back_by_ranges() -> None:
    packed, directory = packed_part()
    assert check_part(packed) == directory
    needed = unpack_directory(packed[: formats.PART_HEAD_BYTES])
    assert isinstance(needed, int)
    assert unpack_directory(packed[:needed]) == directory
    for new, section in zip(sections(), directory, strict=True):
        assert packed[section.at : section.at + section.length] == TEXTS[new.log_id]
        assert section_entries(packed[section.entries_at :], section) == new.entries
        assert (section.log_id, section.namespace, section.name) == (new.log_id, new.namespace, new.name)


def test_a_flipped_bit_in_any_byte_of_an_object_of_parts_is_found() -> None:
    packed, _ = packed_part()
    for at in range(len(packed)):
        packed[at] ^= 4
        with pytest.raises(BadObject):
            check_part(packed)
        packed[at] ^= 4


def snapshot() -> bytearray:
    _, (first, _, third) = packed_part()
    lines = [LogLine(7, "logmq", "orders", "orders", "always", 1, 100, 160)]
    catalog = Catalog(JOURNAL, 2048, 9, 1, False, lines)
    sections = {7: [("parts/a", first), ("parts/b", first)], 2**63: [("parts/a", third)]}
    return Snapshot(3, 12, 99, 4096, catalog, catalog.pack(), sections).pack()


def test_a_snapshot_is_read_back() -> None:
    found = unpack_snapshot(snapshot())
    _, (first, _, third) = packed_part()
    assert (found.lsn, found.wal, found.time_ms, found.whole_from, found.epoch) == (2048, 12, 99, 4096, 3)
    assert found.catalog.logs[0].name == "orders"
    assert found.catalog.pack() == found.catalog_text
    assert found.sections == {7: [("parts/a", first), ("parts/b", first)], 2**63: [("parts/a", third)]}


def test_a_manifest_is_read_back_and_a_newer_one_refused() -> None:
    line = SnapshotLine("snapshots/x", 1, 2, 3, 4, 5, "0a", 6)
    manifest = Manifest(7, "ab", "0a", 1, 2, 1, (line,), 10, 11, 12, "s3://b/p")
    assert unpack_manifest(manifest.pack()) == manifest
    with pytest.raises(BadObject, match="it is encrypted, and"):
        unpack_manifest(Cipher(bytes(32)).encrypt(MANIFEST_KEY, manifest.pack()))
    for bad in (b"", b"[]", b"{}", b'{"format": 2, "snapshots": []}', b'{"format": 1}', b"\xff"):
        with pytest.raises(BadObject):
            unpack_manifest(bad)


def test_what_a_folder_knows_is_read_back() -> None:
    mark = FolderMark("s3://b/p", "0a", 3, 17, 4096, starts=((5, 6), (7, 8)))
    assert unpack_mark(mark.pack()) == mark
    assert unpack_mark(mark.pack()[:-9]) is None
    assert unpack_mark(b"") is None


def _wal(data: bytes) -> Wal:
    return unpack_wal(data)


@pytest.mark.parametrize("unpack", [_wal, check_part, unpack_snapshot, unpack_wal_head, unpack_directory])
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(unpack: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadObject):
        unpack(data)
    with pytest.raises(BadObject):
        unpack(b"BRSHWAL1" + data[:100])


def test_keys_sort_by_number_and_are_read_back() -> None:
    keys = [formats.wal_key(number) for number in (0, 9, 10, 12345)]
    assert keys == sorted(keys)
    assert [formats.wal_number(key) for key in keys] == [0, 9, 10, 12345]
    assert formats.wal_number("parts/00000000000000000001") is None
    assert formats.wal_number("wal/1") is None
