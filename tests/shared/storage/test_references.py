"""Large appends go to their log's file alone, and the journal refers to them: written once, synced beside."""

import errno
import itertools
from pathlib import Path

import attrs
import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import CorruptRecord, StoreError
from shared.storage import format, replay
from shared.storage.log import Log
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from shared.storage.tools.backup import backup, restore
from shared.storage.tools.fsck import Severity, check
from shared.storage.tools.logs import RecordRow, log_dump
from shared.units import KIB
from tests.support.commits import fail, log_write, logs_of, watch
from tests.support.crashes import Tally
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    SMALL,
    append,
    ask,
    fresh_store,
    open_store,
    read_all,
    records,
    running,
)
from tests.support.workloads import REFERRING, check_short

ROOMY = attrs.evolve(SMALL, segment_bytes=1 << 20, reference_bytes=32 * KIB)
LARGE = 40 * KIB


async def announced(settings: StorageSettings = ROOMY) -> tuple[FakeDisk, Store, Log]:
    """A log that was large once: from then on the journal refers to what is large."""
    disk, store = await fresh_store(settings)
    (log,) = await logs_of(store, ALWAYS)
    await append(store, log, b"0" * LARGE)
    return disk, store, log


def referred(disk: FakeDisk) -> list[tuple[int, int]]:
    """(offset, length) of what the journal refers to."""
    found = []
    for segment in replay.segment_files(disk):
        data = disk.contents()[f"journal/{segment.lsn:020d}.wal"]
        at = 0
        while (batch := format.unpack_batch(data, at)) is not None and format.batch_is_good(
            batch, data[at : at + batch.size]
        ):
            payload = data[at + format.BATCH_HEADER_BYTES :][: batch.payload_bytes]
            for entry in format.unpack_entries(payload, batch.entries) or []:
                reference = format.unpack_reference(payload, entry)
                if entry.kind == format.EntryKind.REFERENCE and reference is not None:
                    found.append((entry.offset, reference[0]))
            at += batch.size
    return found


async def test_what_is_large_is_written_once_behind_the_first_that_is() -> None:
    disk, store, log = await announced()
    sizes: dict[str, int] = {}

    def count(operation: Operation) -> None:
        if operation.kind == "write":
            sizes[operation.path] = sizes.get(operation.path, 0) + operation.length

    disk.before = count
    await append(store, log, b"1" * LARGE, b"2" * LARGE)
    journal = sum(size for path, size in sizes.items() if path.startswith("journal/"))
    assert journal == format.SECTOR
    assert sizes["logmq/t0.log"] == 2 * (LARGE + 4)
    assert referred(disk) == [(LARGE + 4, 2 * (LARGE + 4))]
    expected = [b"0" * LARGE, b"1" * LARGE, b"2" * LARGE]
    assert await read_all(log) == expected
    for machine in (disk.kill(), disk.power_cut().boot(lambda n, what: n - 1)):
        again = await open_store(machine, ROOMY)
        assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == expected


async def test_a_batch_that_is_cut_as_a_file_lacks_what_it_refers_to_is_named() -> None:
    disk, store, log = await announced()
    end = log.end
    await append(store, log, b"1" * LARGE)
    store.abandon()
    disk = disk.kill()
    disk.truncate(disk.open("logmq/t0.log"), end)
    with capture_logs() as logged:
        store = await open_store(disk, ROOMY)
    assert [line["of"] for line in logged if "of" in line] == ["logmq/t0.log"]
    assert store.namespace("logmq", ALWAYS).logs["t0"].end == end


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
async def test_what_the_file_does_not_take_goes_to_the_journal(error: int, autojump_clock: MockClock) -> None:
    disk, store, log = await announced()
    fail(disk, error, log_write)
    await append(store, log, b"1" * LARGE)
    await append(store, log, b"2" * LARGE)
    assert referred(disk) == []
    assert store.statistics().unapplied_logs == 1
    expected = [b"%d" % n * LARGE for n in range(3)]
    assert await read_all(log) == expected
    killed = disk.kill()
    disk.before = None
    async with running(store):
        assert await store.flush()
    assert store.statistics().unapplied_logs == 0
    for machine in (killed, disk.kill()):
        again = await open_store(machine, ROOMY)
        assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == expected


async def test_a_file_that_cannot_be_synced_makes_the_store_read_only() -> None:
    disk, store, log = await announced()
    fail(disk, errno.EIO, lambda operation: operation.kind == "sync" and operation.path == "logmq/t0.log")
    with pytest.raises(StoreError):
        await append(store, log, b"1" * LARGE)
    assert store.read_only is not None
    assert await read_all(log) == [b"0" * LARGE]


async def test_bytes_that_rot_are_damaged_and_all_others_are_served() -> None:
    disk, store, log = await announced()
    await append(store, log, *[b"%d" % n * 100 * KIB for n in (1, 2, 3)])
    await append(store, log, b"later")  # which says that all before it was synced
    await append(store, log, b"latest")
    store.abandon()
    machine = disk.kill()
    machine.flip("logmq/t0.log", 8 * (2 * LARGE))
    again = await open_store(machine, ROOMY)
    assert again.statistics().damaged_ranges == 1
    log = again.namespace("logmq", ALWAYS).logs["t0"]
    assert isinstance(await ask(log.read, LARGE + 4, 1), CorruptRecord)
    lost = log.lost_at(LARGE + 4)
    assert await ask(log.read, lost.end, 1) == records(b"later")


async def test_space_of_what_the_journal_refers_to_is_given_back_after_a_checkpoint(
    autojump_clock: MockClock,
) -> None:
    disk, store, log = await announced()
    await append(store, log, b"1" * LARGE)
    await append(store, log, b"2")
    last = log.end - 5
    await store.wait(log.drop_below(last))
    (punches,) = watch(disk, "punch")
    await store.retain()
    assert punches == []
    again = await open_store(disk.kill(), ROOMY)
    assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [b"2"]
    assert await store.checkpoint()
    await store.retain()
    assert punches == ["logmq/t0.log"]
    again = await open_store(disk.kill(), ROOMY)
    assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [b"2"]


async def test_tools_see_it_and_a_backup_has_it(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path / "data", settings=ROOMY)
    (log,) = await logs_of(store, ALWAYS)
    bodies = [b"%d" % n * LARGE for n in range(3)]
    for body in bodies:
        await append(store, log, body)
    await store.wait(log.drop_below(2 * (LARGE + 4)))
    store.abandon()
    rows = list(log_dump(tmp_path / "data", "logmq", "t0", 2 * (LARGE + 4)))
    assert [row.payload for row in rows if isinstance(row, RecordRow)] == [bodies[2]]
    assert backup(tmp_path / "data", tmp_path / "copy", now_ms=1).check.ok
    assert restore(tmp_path / "copy", tmp_path / "restored").check.ok
    again = await open_store(folder=tmp_path / "restored", settings=ROOMY)
    assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [bodies[2]]
    again.abandon()
    with (tmp_path / "data/logmq/t0.log").open("r+b") as file:
        file.seek(2 * (LARGE + 4) + 100)
        file.write(b"!")
    found = check(tmp_path / "data")
    assert [(f.path, f.offset) for f in found.findings if f.severity is Severity.DAMAGE] == [
        ("logmq/t0.log", 2 * (LARGE + 4))
    ]


# -- after a crash

_LARGE = ("append large", "change large")
_THEN = ("append", "checkpoint", "drop", "restart")


@pytest.mark.usefixtures("recoveries")
def test_every_state_of_both_syncs_keeps_the_promises() -> None:
    workloads = [
        *itertools.product(_LARGE, repeat=2),
        *(("append large", "append large", then) for then in _THEN),
        ("delete or make again", "append large", "append large"),
    ]
    total = Tally()
    for workload in workloads:
        total.add(check_short(workload, settings=REFERRING))
    print(total)
    assert total.sampled == 0, "all states of all cuts"
    assert total.runs > len(workloads)
