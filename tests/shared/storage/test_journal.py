"""The journal: batches, segments, laps, and what a reader makes of a bad end or a bad middle."""

import errno

import pytest

from shared.storage import format, journal, replay
from shared.storage.format import EntryKind
from shared.storage.journal import Journal, PoisonError, segment_path
from shared.storage.replay import Damage
from tests.support.fake_disk import FakeDisk, Operation

SEGMENT = 8 << 10


def start(disk: FakeDisk, lsn: int = 0, *, bytes_max: int = 1 << 20) -> Journal:
    disk.make_folder(journal.FOLDER)
    return Journal.start(disk, 77, lsn, segment_bytes=SEGMENT, bytes_max=bytes_max, zero_fill=False)


def add(writer: Journal, body: bytes) -> int:
    """One batch with one append; returns its LSN."""
    parts = [format.pack_entry(EntryKind.APPEND, 1, 0, len(body), 1), body]
    writer.write(parts, 1, sum(map(len, parts)), 5)
    assert writer.previous is not None
    return writer.previous


def bodies(disk: FakeDisk, found: replay.Replay) -> list[bytes]:
    return [payload[format.ENTRY_HEADER_BYTES :] for _, payload in replay.read_payloads(disk, found.batches)]


def flip(disk: FakeDisk, segment_lsn: int, position: int) -> None:
    fd = disk.open(segment_path(segment_lsn))
    byte = disk.read(fd, 1, position)[0]
    disk.write(fd, bytes([byte ^ 1]), position)
    disk.close(fd)


def fail(disk: FakeDisk, kinds: str, error: int, times: int = 1) -> None:
    """The next operations of these kinds fail."""
    left = times

    def before(operation: Operation) -> None:
        nonlocal left
        if left and operation.kind in kinds.split():
            left -= 1
            raise OSError(error, "injected")

    disk.before = before


def test_a_freed_segment_is_reused_and_its_old_batches_never_parse() -> None:
    disk = FakeDisk()
    writer = start(disk)
    for n in range(9):
        add(writer, bytes([n]) * 3000)
    replay_lsn = writer.position
    segments = len(writer.old)
    assert segments >= 2
    writer.release(replay_lsn)
    assert writer.old == []
    assert writer.spare is not None
    assert writer.spare.lsn == writer.current.end
    assert journal.segment_lsns(disk) == [writer.current.lsn, writer.spare.lsn]
    written = [bytes([n]) * 2000 for n in range(4)]
    for body in written:
        add(writer, body)
    assert bodies(disk, replay.scan(disk, 77, replay_lsn)) == written


def test_of_the_segments_that_are_shipped_one_is_kept_and_written_anew() -> None:
    disk = FakeDisk()
    writer = start(disk)
    writer.let_go(0)
    for n in range(6):  # two a segment
        add(writer, bytes([n]) * 3000)
    writer.release(writer.position)
    writer.let_go(writer.position)
    kept = len(disk.names(journal.FOLDER))
    assert kept == 3  # the current one, the spare, and the next
    fail(disk, "allocate unlink", errno.EIO)
    for n in range(9):
        writer.release(writer.position)  # a checkpoint, and another one before the next segment
        writer.prepare()
        add(writer, bytes([n]) * 3000)
        writer.let_go(writer.position)
    assert len(disk.names(journal.FOLDER)) == kept
    assert writer.held == []
    writer.let_go(None)
    disk.before = lambda operation: None
    writer.release(writer.position)
    assert len(disk.names(journal.FOLDER)) == 2


def test_an_earlier_laps_batch_just_behind_the_end_is_no_torn_tail() -> None:
    disk = FakeDisk()
    writer = start(disk)
    for n in range(9):  # two a segment, and the next lap's are as long
        add(writer, bytes([n]) * 3000)
    writer.release(writer.position)
    while add(writer, bytes(3000)) % SEGMENT:
        pass
    end = writer.position
    old = disk.read(disk.open(segment_path(writer.current.lsn)), 16, end - writer.current.lsn)
    assert old[:4] == format.BATCH_MAGIC
    found = replay.scan(disk, 77, end)
    assert (found.end_lsn, found.torn_bytes) == (end, 0)


@pytest.mark.parametrize("position", [0, 5, 20, 70])
def test_a_bad_batch_below_a_later_ones_synced_lsn_is_damage_and_the_rest_is_applied(position: int) -> None:
    disk = FakeDisk()
    writer = start(disk)
    lsns = []
    for n in range(5):
        lsns.append(add(writer, bytes([n]) * 100))
        writer.sync()
    flip(disk, 0, lsns[2] + position)
    found = replay.scan(disk, 77, 0)
    assert found.damage == [Damage(lsns[2], lsns[3])]
    assert bodies(disk, found) == [bytes([n]) * 100 for n in (0, 1, 3, 4)]
    assert [segment.lsn for segment in found.damaged_segments()] == [0]


def test_a_missing_segment_is_damage() -> None:
    disk = FakeDisk()
    writer = start(disk)
    for n in range(6):
        add(writer, bytes([n]) * 3500)
        writer.sync()
    disk.unlink(segment_path(SEGMENT))
    found = replay.scan(disk, 77, 0)
    assert [body[0] for body in bodies(disk, found)] == [0, 1, 4, 5]
    assert len(found.damage) == 1


def test_a_journal_at_its_bound_is_full_until_a_checkpoint() -> None:
    disk = FakeDisk()
    writer = start(disk, bytes_max=3 * SEGMENT)
    for _ in range(3):
        add(writer, bytes(5000))
    with pytest.raises(OSError, match="full until a checkpoint") as raised:
        add(writer, bytes(5000))
    assert raised.value.errno == errno.ENOSPC
    writer.release(writer.position)
    add(writer, bytes(5000))


def test_a_new_segments_failed_sync_is_final_and_a_full_disk_is_not() -> None:
    disk = FakeDisk()
    writer = start(disk)
    add(writer, bytes(5000))
    fail(disk, "allocate", errno.ENOSPC)
    with pytest.raises(OSError, match="injected"):
        add(writer, bytes(5000))
    fail(disk, "sync_folder", errno.EIO)
    with pytest.raises(PoisonError):
        add(writer, bytes(5000))


def test_an_empty_segment_in_the_way_of_a_reused_one_goes_and_takes_nothing_with_it() -> None:
    """A power cut may leave the next segment's name without its length: its LSN is where the journal ends."""
    disk = FakeDisk()
    add(start(disk), b"old")
    disk.close(disk.open(segment_path(SEGMENT), create=True))
    writer = Journal.start(
        disk, 77, SEGMENT, segment_bytes=SEGMENT, bytes_max=1 << 20, free=[(0, SEGMENT), (SEGMENT, 0)]
    )
    add(writer, b"new")
    assert disk.names(journal.FOLDER) == [f"{SEGMENT:020d}.wal"]
    assert bodies(disk, replay.scan(disk, 77, SEGMENT)) == [b"new"]
