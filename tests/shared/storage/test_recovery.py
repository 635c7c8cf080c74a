"""Starting after an unclean end: torn tails, damage, deletions, laps, what interval and none may lose."""

import attrs
import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from shared.errors import CorruptRecord
from shared.storage import format, replay
from shared.storage.catalog import PATH as CATALOG
from shared.storage.catalog import read as read_catalog
from shared.storage.disk import opened, replace_file, write_all
from shared.storage.format import EntryKind, IndexEntry
from shared.storage.journal import segment_path
from shared.storage.store import Store
from shared.storage.tools.fsck import Severity, check_disk
from shared.units import KIB
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    HandClock,
    append,
    ask,
    fresh_store,
    open_store,
    payloads,
    read_all,
    records,
    reopen,
)

ROOMY = attrs.evolve(SMALL, segment_bytes=1024 * KIB)
LOST = "bytes that were once synced no longer parse; what they held is lost"


def flip(disk: FakeDisk, path: str, position: int) -> None:
    fd = disk.open(path)
    byte = disk.read(fd, 1, position)[0]
    disk.write(fd, bytes([byte ^ 1]), position)
    disk.close(fd)


def batches(disk: FakeDisk) -> replay.Replay:
    catalog = read_catalog(disk)
    assert catalog is not None
    return replay.scan(disk, catalog.journal_id, catalog.replay_lsn)


async def append_each(store: Store, name: str, count: int, size: int = 100) -> None:
    log = store.namespace("logmq", ALWAYS).logs[name]
    for n in range(count):
        await append(store, log, b"%d" % n + bytes(size))


async def test_a_torn_tail_is_cut_and_counted_and_the_rest_is_there() -> None:
    disk, store = await fresh_store(ROOMY)
    store.namespace("logmq", ALWAYS).create("orders")
    await append_each(store, "orders", 10)
    store.abandon()
    disk = disk.kill()
    last = batches(disk).batches[-1]
    flip(disk, segment_path(last.segment.lsn), last.position + 100)
    with capture_logs() as logged:
        store = await open_store(disk, ROOMY)
    assert [line["of"] for line in logged if line["log_level"] == "warning"] == ["logmq/orders.log"]
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert [p.rstrip(b"\0") for p in await read_all(log)] == [b"%d" % n for n in range(9)]
    assert store.statistics().torn_bytes == 512
    assert store.statistics().journal_damages == 0
    await append_each(store, "orders", 1)
    assert len(await read_all(log)) == 10


@pytest.mark.parametrize("has_index_entry", [True, False])
async def test_what_a_log_file_has_is_kept_where_the_journals_newest_batch_is_not_good(
    has_index_entry: bool,
) -> None:
    """In mode `always` it was synced there before it came into the file."""
    disk, store = await fresh_store(attrs.evolve(ROOMY, tail_log_bytes=0))
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    await append_each(store, "orders", 1)
    await store.checkpoint()
    await append_each(store, "orders", 3)
    whole, size = await read_all(log), log.end
    if has_index_entry:
        await store.flush()
    store.abandon()
    disk = disk.kill()
    last = batches(disk).batches[-1]
    flip(disk, segment_path(last.segment.lsn), last.position + 100)
    with capture_logs() as logged:
        store = await open_store(disk, ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert (log.end, await read_all(log)) == (size, whole)
    (told,) = [line for line in logged if line["event"].startswith("the journal has lost")]
    assert told["bytes"] == size // 4
    store, _ = await reopen(store, disk, ROOMY)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["orders"]) == whole


@pytest.mark.parametrize("before", [b"", b"a", b"a\0\0\0\0\0\0"], ids=["nothing", "a record", "zeros in it"])
async def test_zeros_behind_a_log_are_damage_and_no_empty_records(before: bytes) -> None:
    disk, store = await fresh_store(ROOMY)
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    await append(store, log, b"one", b"")
    await store.checkpoint()
    whole, end = await read_all(log), log.end
    store.abandon()
    disk = disk.kill()
    kept = format.record(before) if before else b""
    disk.write(disk.open("logmq/orders.log"), kept + bytes(4096), end)
    for _ in range(2):
        store = await open_store(disk, ROOMY)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        assert log.end == end + len(kept) + 4096
        assert payloads(await ask(log.read, 0, end)) == whole
        if kept:
            assert payloads(await ask(log.read, end, 1)) == [before]
        assert isinstance(await ask(log.read, end + len(kept), 1), CorruptRecord)
        store.abandon()
        disk = disk.kill()


async def test_damage_is_kept_aside_and_hides_only_what_it_held() -> None:
    disk, store = await fresh_store(ROOMY)
    for name in ("hit", "spared"):
        store.namespace("logmq", ALWAYS).create(name)
    for name in ("hit", "spared", "hit"):
        await append_each(store, name, 5)
    log = store.namespace("logmq", ALWAYS).logs["hit"]
    whole = await read_all(log)
    store.abandon()
    disk = disk.kill()
    # Of the journal, the fourth append to `hit`; the log files were never written.
    found = batches(disk)
    bad = found.batches[3]
    flip(disk, segment_path(bad.segment.lsn), bad.position + 100)
    segment = disk.read(disk.open(segment_path(bad.segment.lsn)), 1 << 20, 0)
    store = await open_store(disk, ROOMY)
    assert store.statistics().journal_damages == 1
    aside = [name for name in disk.names("journal") if ".damaged-" in name]
    assert len(aside) == 1
    assert disk.read(disk.open(f"journal/{aside[0]}"), 1 << 20, 0) == segment
    logs = store.namespace("logmq", ALWAYS).logs
    assert len(await read_all(logs["spared"])) == 5
    log = logs["hit"]
    size = len(whole[0]) + 4
    assert log.end == 10 * size
    good: list[bytes] = []
    offset = 0
    while offset < log.end:
        data = await ask(log.read, offset, size)
        if isinstance(data, CorruptRecord):
            assert offset == 3 * size
            offset += size
        else:
            good += payloads(data)
            offset += len(data)
    assert good == whole[:3] + whole[4:]
    assert [entry.damaged for entry in log.index_entries(0, log.end)] == [False, True, False]
    store, disk = await reopen(store, disk, ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["hit"]
    assert isinstance(await ask(log.read, 3 * size, 1), CorruptRecord), "a second start does not bless it"


async def last_in_a_damaged_journal(of: int, place: int, *, forged: bytes = b"") -> FakeDisk:
    """Three logs, and a journal in which a bit of batch `of` is flipped.

    Batch 0 makes `made`, -2 is the last of `hit`. `forged`: what stands in its payload instead.
    """
    disk, store = await fresh_store(ROOMY)
    for name in ("hit", "spared"):
        store.namespace("logmq", ALWAYS).create(name)
        await append_each(store, name, 2)
    await store.checkpoint()
    log, _ = store.namespace("logmq", ALWAYS).create("made")
    await append(store, log, b"x" * 100_000)
    await append_each(store, "hit", 1)
    await append_each(store, "spared", 1)
    store.abandon()
    disk = disk.kill()
    bad = batches(disk).batches[of]
    flip(disk, segment_path(bad.segment.lsn), bad.position + place)
    if forged:
        fd = disk.open(segment_path(bad.segment.lsn))
        disk.write(fd, forged, bad.position + format.BATCH_HEADER_BYTES)
    return disk


def told_of_the_journal(disk: FakeDisk) -> tuple[str, list[tuple[str, int | None, int | None]]]:
    """What `fsck` says of the journal's damage, and the ranges of logs that it calls damaged."""
    findings = [each for each in check_disk(disk).findings if each.severity is Severity.DAMAGE]
    (text,) = [each.text for each in findings if each.path == "journal"]
    return text, [(each.path, each.offset, each.length) for each in findings if each.path != "journal"]


async def test_what_only_a_damaged_batch_had_of_a_log_is_named_and_refused() -> None:
    disk = await last_in_a_damaged_journal(-2, 110)
    text, ranges = told_of_the_journal(disk.kill())
    assert text.endswith("what they held is lost; it seems to be of logmq/hit.log")
    ((path, offset, length),) = ranges
    with capture_logs() as logged:
        store = await open_store(disk, ROOMY)
    assert {"path": path, "offset": offset, "length": length}.items() <= next(
        line for line in logged if line["event"].startswith("damaged bytes")
    ).items()
    assert [line["of"] for line in logged if "of" in line] == ["logmq/hit.log"]
    assert store.statistics().damaged_ranges == 1
    logs = store.namespace("logmq", ALWAYS).logs
    log = logs["hit"]
    assert (path, offset, log.end) == ("logmq/hit.log", 2 * length, 3 * length)
    assert [len(await read_all(logs[name])) for name in ("made", "spared")] == [1, 3]
    await append(store, log, b"later")
    for _ in range(2):
        assert isinstance(await ask(log.read, offset, 1), CorruptRecord)
        assert payloads(await ask(log.read, 3 * length, 1)) == [b"later"]
        store, disk = await reopen(store, disk, ROOMY)
        log = store.namespace("logmq", ALWAYS).logs["hit"]


async def test_a_log_that_only_a_damaged_batch_told_of_is_named() -> None:
    disk = await last_in_a_damaged_journal(0, format.BATCH_HEADER_BYTES + 500)
    text, _ = told_of_the_journal(disk.kill())
    assert text.endswith("it seems to be of logmq/made.log")
    with capture_logs() as logged:
        await open_store(disk, ROOMY)
    assert [line["of"] for line in logged if "of" in line] == ["logmq/made.log"]


async def test_a_damaged_batch_whose_header_is_gone_names_nobody_of_the_next_segment() -> None:
    disk, store = await fresh_store(SMALL)
    for name in ("hit", "spared"):
        store.namespace("logmq", ALWAYS).create(name)
    await append_each(store, "hit", 1)
    await append_each(store, "hit", 1)
    await append_each(store, "spared", 2, 40_000)
    store.abandon()
    disk = disk.kill()
    bad, after = batches(disk).batches[1], batches(disk).batches[-1]
    assert (bad.segment.lsn, after.position) == (0, 0)
    disk.write(disk.open(segment_path(0)), bytes(format.SECTOR), bad.position)
    assert told_of_the_journal(disk.kill()) == (LOST, [])
    with capture_logs() as logged:
        await open_store(disk, SMALL)
    assert [line["of"] for line in logged if "of" in line] == [""]


async def test_a_damaged_batch_does_not_name_what_was_deleted_behind_it() -> None:
    """The name may be another log's by now, which has lost nothing."""
    disk, store = await fresh_store(ROOMY)
    namespace = store.namespace("logmq", ALWAYS)
    namespace.create("again")
    await append_each(store, "again", 1)
    await store.checkpoint()
    await append_each(store, "again", 1)
    await store.wait(namespace.delete("again"))
    namespace.create("again")
    await append_each(store, "again", 2)
    store.abandon()
    disk = disk.kill()
    bad = batches(disk).batches[0]
    flip(disk, segment_path(bad.segment.lsn), bad.position + 100)
    assert told_of_the_journal(disk.kill()) == (LOST, [])
    with capture_logs() as logged:
        store = await open_store(disk, ROOMY)
    assert [line["of"] for line in logged if "of" in line] == [""]
    assert len(await read_all(store.namespace("logmq", ALWAYS).logs["again"])) == 2


async def test_what_a_good_batch_goes_on_behind_was_no_longer_than_that() -> None:
    disk, store = await fresh_store(ROOMY)
    for name in ("hit", "spared"):
        store.namespace("logmq", ALWAYS).create(name)
        await append_each(store, name, 1)
    await store.checkpoint()
    logs = store.namespace("logmq", ALWAYS).logs
    first = logs["hit"].end
    logs["hit"].append(records(bytes(300)), 1)
    await append(store, logs["spared"], bytes(3000))
    second = logs["hit"].end
    await append(store, logs["hit"], b"good")
    end = logs["hit"].end
    store.abandon()
    disk = disk.kill()
    bad = batches(disk).batches[0]
    of_the_length = bad.position + format.BATCH_HEADER_BYTES + 29
    flip(disk, segment_path(bad.segment.lsn), of_the_length)
    assert told_of_the_journal(disk.kill())[1] == [("logmq/hit.log", first, second - first)]
    store = await open_store(disk, ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["hit"]
    assert log.end == end
    assert isinstance(await ask(log.read, first, 1), CorruptRecord)
    assert payloads(await ask(log.read, second, 1)) == [b"good"]


@pytest.mark.parametrize(
    "forged",
    [
        format.pack_entry(EntryKind.CREATE, 3, length=90_000) + b"[" * 90_000,
        format.pack_entry(EntryKind.CREATE, 3, length=90_000) + b'{"mode":5}' + b" " * 90_000,
        format.pack_entry(EntryKind.MODE, 1, length=90_000) + b"\xff" * 90_000,
        format.pack_entry(EntryKind.REFERENCE, 1, 8, 12, 1) + format.pack_reference(1 << 60, 0),
        format.pack_entry(EntryKind.APPEND, 1, 1 << 63, 1 << 63, 1),
        bytes(90_000),
    ],
    ids=["deep JSON", "another type", "no text", "a long reference", "a long append", "zeros"],
)
async def test_nothing_that_stands_in_a_damaged_batch_hinders_a_start(forged: bytes) -> None:
    disk = await last_in_a_damaged_journal(0, format.BATCH_HEADER_BYTES + 95_000, forged=forged)
    check_disk(disk.kill())
    store = await open_store(disk, ROOMY)
    logs = store.namespace("logmq", ALWAYS).logs
    assert [len(await read_all(logs[name])) for name in ("hit", "spared")] == [3, 3]


async def test_bytes_that_indexes_vouch_for_survive_damage_of_the_journal() -> None:
    disk, store = await fresh_store(ROOMY)
    store.namespace("logmq", ALWAYS).create("orders")
    await append_each(store, "orders", 20, size=30_000)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    whole = await read_all(log)
    await store.flush()
    store.abandon()
    disk = disk.kill()
    found = batches(disk)
    for number in (5, 6, len(found.batches) - 2):
        bad = found.batches[number]
        flip(disk, segment_path(bad.segment.lsn), bad.position + 100)
    store = await open_store(disk, ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert store.statistics().journal_damages == 2
    assert await read_all(log) == whole
    assert not any(entry.unverified for entry in log.index_entries(0, log.end))


async def test_a_log_whose_create_is_lost_comes_back_by_its_files_and_no_id_is_used_again() -> None:
    disk, store = await fresh_store(ROOMY)
    lost, _ = store.namespace("logmq", INTERVAL).create("lost")
    lost.append(records(b"lost"), 1)
    store.commit_pending()
    await store.flush()
    store.abandon()
    machine = disk.kill()
    create = batches(machine).batches[0]  # the files made it to the disk, the journal did not
    flip(machine, segment_path(create.segment.lsn), create.position + 70)
    store = await open_store(machine, ROOMY)
    namespace = store.namespace("logmq", INTERVAL)
    assert (await read_all(namespace.logs["lost"]), namespace.logs["lost"].id) == ([b"lost"], lost.id)
    log, _ = namespace.create("other")
    assert log.id > lost.id


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_times_that_only_the_journal_has_are_as_fine_after_a_crash_as_before(
    checkpointed: bool,
) -> None:
    clock = HandClock()
    disk, store = await fresh_store(ROOMY, clock)
    log, ticket = store.namespace("logmq", ALWAYS).create("orders")
    written: list[tuple[int, int]] = []
    for number in range(12):
        if number == 4 and checkpointed:
            assert await store.checkpoint()
        offset, ticket = log.append(records(b"%d" % number), 1)
        store.commit_pending()
        written.append((clock.wall_ms(), offset))
        clock.advance(0.3)
    await store.wait(ticket)
    store.abandon()
    store = await open_store(disk.kill(), ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert [log.seek(at_ms) for at_ms, _ in written] == [offset for _, offset in written]


async def test_the_journal_begins_anew_and_reuses_segments() -> None:
    disk, store = await fresh_store()
    store.namespace("logmq", ALWAYS).create("orders")
    for _ in range(6):
        await append_each(store, "orders", 5)
        store, disk = await reopen(store, disk)
        assert len(disk.names("journal")) <= 2
    assert len(await read_all(store.namespace("logmq", ALWAYS).logs["orders"])) == 30


async def test_a_first_start_cut_short_can_be_started_again() -> None:
    stops = 0
    for limit in range(40):
        disk = FakeDisk()
        seen = 0

        def stop(operation: object, limit: int = limit) -> None:
            nonlocal seen
            seen += 1
            if seen > limit:
                raise KeyboardInterrupt

        disk.before = stop
        try:
            await open_store(disk)
        except KeyboardInterrupt:
            stops += 1
        disk.before = None
        for machine in (disk.kill(), disk.power_cut().boot(lambda n, what: n - 1), disk.power_cut().boot()):
            store = await open_store(machine)
            store.namespace("logmq", ALWAYS).create("orders")
            await append_each(store, "orders", 1)
    assert stops > 8


async def test_a_journal_without_its_catalog_is_not_started_over_but_replayed() -> None:
    disk, store = await fresh_store()
    store.namespace("logmq", ALWAYS).create("orders")
    await append_each(store, "orders", 3)
    store.abandon()
    disk = disk.kill()
    disk.unlink("CATALOG")
    store = await open_store(disk)
    assert len(await read_all(store.namespace("logmq", ALWAYS).logs["orders"])) == 3


@pytest.mark.parametrize("mode", ["none", "interval:50ms unjournaled"])
@pytest.mark.parametrize("old", [True, False])
async def test_what_an_older_version_wrote_to_a_file_alone_is_there_and_after_that_the_journal_decides(
    mode: str, old: bool
) -> None:
    disk, store = await fresh_store(ROOMY)
    log = store.namespace("logmq", ALWAYS).create("orders", NONE)[0]
    await append(store, log, b"kept")
    await store.checkpoint()
    store.abandon()
    alone = records(b"alone")
    entry = IndexEntry(log.end, 1, 1, len(alone), 1, crc32c(alone), 0)
    for path, data in ((log.file.path, alone), (log.index_file.path, format.pack_index_entry(entry, log.id))):
        with opened(disk, path) as fd:
            write_all(disk, fd, data, disk.size(fd))
    catalog = read_catalog(disk)
    assert catalog is not None
    lines = [line._replace(mode=mode) for line in catalog.logs]
    replace_file(disk, CATALOG, attrs.evolve(catalog, logs=lines, all_journaled=not old).pack())
    for _ in range(2):
        store = await open_store(disk, ROOMY)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        assert (str(log.mode), await read_all(log)) == (mode.split()[0], [b"kept", b"alone"][: 1 + old])
        store.abandon()
