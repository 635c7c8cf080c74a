"""Recorders: what is written down, and what happens where that cannot be."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import structlog
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.budget import Account
from shared.recording.blocks import Block, unpack
from shared.recording.recorder import HELD_BYTES, HELD_SECONDS, SMALL_BYTES, WARN_SECONDS, Recorder, Recording
from shared.recording.settings import RecordSettings
from shared.storage.store import Store
from shared.units import KIB, MIB
from tests.support.commits import (
    fail,
    fill_memory,
    journal_write,
    leave_free,
    make_read_only,
)
from tests.support.fake_disk import FakeDisk
from tests.support.stores import NONE, SMALL, open_store, read_all, reopen, running

LOG = structlog.stdlib.get_logger("test")
SETTINGS = RecordSettings(protocols=("echo",))
ROOM = attrs.evolve(SMALL, pending_bytes_max=64 * KIB)
TIME_US = 1_700_000_000_000_001


class World:
    """A store with a recorder on it. `seconds`: the recorder's own time, for how often it says something."""

    def __init__(self, disk: FakeDisk, store: Store, settings: RecordSettings) -> None:
        self.disk = disk
        self.store = store
        self.seconds = 0.0
        self.recording = Recording(
            store, settings, LOG, wall_us=lambda: TIME_US, monotonic=lambda: self.seconds
        )
        found = self.recording.of("echo")
        assert found is not None
        self.recorder: Recorder = found

    async def fill(self) -> None:
        """The store refuses all that may not use the reserve."""
        fill_memory(self.store, self.disk, ROOM.pending_bytes_max)
        async with running(self.store):
            await trio.sleep(1.1)  # it has looked
        assert self.store.statistics().full

    async def empty(self) -> None:
        """It takes more again."""
        self.disk.before = None
        await self.store.flush()  # which tries again what was not taken
        async with running(self.store):
            await trio.sleep(1.1)
        assert not self.store.statistics().full

    def settle(self) -> None:
        self.recording.flush()
        self.store.commit_pending()

    async def blocks(self) -> list[tuple[Block, bytes]]:
        """What stands in the log."""
        log = self.store.namespace("recorded", SETTINGS.durability).logs["echo"]
        return [(head := unpack(payload), payload[head.frames_at :]) for payload in await read_all(log)]

    async def heads(self) -> list[tuple[int, int]]:
        """Codec and messages of each block."""
        return [(head.codec, head.messages) for head, _ in await self.blocks()]

    @asynccontextmanager
    async def recording_runs(self) -> AsyncIterator[None]:
        async with running(self.store), trio.open_nursery() as nursery:
            nursery.start_soon(self.recording.run)
            yield
            nursery.cancel_scope.cancel()

    def value(self, name: str, **labels: str) -> float:
        wanted = {"protocol": "echo", **labels}
        return sum(
            sample.value
            for sample in self.recording.samples()
            if sample.name == f"recorded_{name}_total" and dict(sample.labels) == wanted
        )


async def world(settings: RecordSettings = SETTINGS, disk: FakeDisk | None = None) -> World:
    disk = disk or FakeDisk()
    return World(disk, await open_store(disk, ROOM), settings)


async def test_a_block_has_all_that_a_reader_needs() -> None:
    here = await world()
    track = here.recorder.track(3, name=b"news", source=b"127.0.0.1:5")
    track.record(2, memoryview(b"frames that are sent")[:6])
    here.recorder.track(7).record(1, b"")
    here.settle()
    assert await here.blocks() == [
        (Block(3, TIME_US, 2, b"echo", b"news", b"127.0.0.1:5", 38), b"frames"),
        (Block(7, TIME_US, 1, b"echo", b"", b"", 23), b""),
    ]
    assert [here.value(name) for name in ("messages", "blocks", "bytes")] == [3, 2, 4 + 38 + 6 + 4 + 23]


async def test_nothing_is_recorded_unless_the_settings_say_so() -> None:
    disk = FakeDisk()
    recording = Recording(await open_store(disk), RecordSettings(), LOG)
    assert recording.of("echo") is None
    assert list(recording.samples()) == []
    assert not [path for path in disk.contents() if path.startswith("recorded")]


async def test_what_was_written_is_there_after_kill_9_and_goes_on() -> None:
    here = await world()
    here.recorder.track(1).record(1, b"one")
    here.settle()
    assert here.value("messages") == 1
    store, disk = await reopen(here.store, here.disk)
    again = World(disk, store, attrs.evolve(SETTINGS, durability=NONE))
    again.recorder.track(1).record(1, b"two")
    again.settle()
    assert [data for _, data in await again.blocks()] == [b"one", b"two"]
    assert store.namespace("recorded", NONE).logs["echo"].mode == NONE


async def test_a_full_disk_leaves_out_and_says_so_then_the_log_has_a_gap(autojump_clock: MockClock) -> None:
    here = await world()
    track = here.recorder.track(1)
    track.record(1, b"before")
    here.settle()
    await here.fill()
    with capture_logs() as logged:
        for _ in range(3):
            track.record(5, bytes(100))
            here.settle()
            here.seconds += 1
        here.seconds += WARN_SECONDS
        track.record(5, bytes(100))
        here.settle()
    assert [(line["log_level"], line["reason"], line["messages"]) for line in logged] == [
        ("warning", "store", 5),
        ("warning", "store", 15),
    ]
    await here.empty()
    track.record(1, b"after")
    track.record(1, b"later")
    here.settle()
    assert [(head.codec, head.messages, data) for head, data in await here.blocks()] == [
        (1, 1, b"before"),
        (0, 20, (400).to_bytes(8, "big")),
        (1, 1, b"after"),
        (1, 1, b"later"),
    ]
    assert here.value("messages") == 3
    assert here.value("left_out_messages", reason="store") == 20
    assert here.value("left_out_bytes") == 400


async def test_recording_stops_long_before_publishing_does(autojump_clock: MockClock) -> None:
    disk = FakeDisk()
    disk.total, disk.free = 1000 * MIB, 201 * MIB
    settings = attrs.evolve(SMALL, reserve_bytes_min=100 * MIB, reserve_bytes_max=100 * MIB)
    here = World(disk, await open_store(disk, settings), SETTINGS)
    track = here.recorder.track(1)
    track.record(1, b"kept")
    await leave_free(here.store, disk, 199 * MIB)
    track.record(2, b"lost")
    assert here.value("left_out_messages", reason="space") == 2
    assert not here.store.statistics().full
    await leave_free(here.store, disk, 201 * MIB)
    track.record(1, b"kept")
    here.settle()
    assert await here.heads() == [(1, 1), (0, 2), (1, 1)]


async def test_a_write_that_fails_counts_as_left_out_and_makes_a_gap() -> None:
    here = await world()
    track = here.recorder.track(1)
    track.record(1, b"before")
    here.settle()
    fail(here.disk, errno.EIO, journal_write, times=1)
    track.record(3, b"lost!")
    track.record(4, b"lost!")
    here.settle()
    assert here.value("messages") == 1
    assert here.value("left_out_messages", reason="store") == 7
    assert here.value("left_out_bytes") == 10
    fail(here.disk, errno.EIO, journal_write, times=1)
    track.record(1, bytes(SMALL_BYTES))
    here.settle()
    assert here.value("left_out_bytes") == 10 + SMALL_BYTES
    track.record(1, b"after")
    here.settle()
    assert await here.heads() == [(1, 1), (0, 8), (1, 1)]


async def test_a_gap_that_was_not_written_is_marked_by_the_next(autojump_clock: MockClock) -> None:
    here = await world()
    track = here.recorder.track(1)
    await here.fill()
    track.record(3, b"lost!")
    here.settle()
    await here.empty()
    fail(here.disk, errno.EIO, journal_write, times=1)
    track.record(4, b"lost!")
    here.settle()
    track.record(1, b"after")
    here.settle()
    (gap, size), (after, _) = await here.blocks()
    assert [(gap.codec, gap.messages), (after.codec, after.messages)] == [(0, 7), (1, 1)]
    assert int.from_bytes(size, "big") == 10
    assert here.value("left_out_messages", reason="store") == 7


async def test_a_poisoned_store_hurts_nobody() -> None:
    here = await world()
    track = here.recorder.track(1)
    track.record(1, b"before")
    here.settle()
    await make_read_only(here.store, here.disk)
    for _ in range(3):
        track.record(2, b"lost")
        here.settle()
    assert here.value("left_out_messages", reason="store") == 6


async def test_what_waits_for_the_disk_has_a_bound_beside_one_block() -> None:
    here = await world(attrs.evolve(SETTINGS, pending_bytes_max=1000))
    track = here.recorder.track(1)
    for _ in range(3):
        track.record(1, bytes(HELD_BYTES))
    assert here.value("left_out_messages", reason="behind") == 2
    here.settle()
    track.record(1, b"x")
    here.settle()
    assert await here.heads() == [(1, 1), (0, 2), (1, 1)]


async def test_nothing_more_waits_for_the_disk_where_the_budget_has_no_room() -> None:
    here = await world()
    budget = Account("process", 1000)
    here.store.charge_to(budget)
    track = here.recorder.track(1)
    track.record(1, b"first")
    here.recording.flush()
    budget.charge(1001)
    track.record(2, b"left out")
    assert here.value("left_out_messages", reason="behind") == 2
    here.settle()
    track.record(1, b"nothing waits")
    here.settle()
    assert await here.heads() == [(1, 1), (0, 2), (1, 1)]


async def test_a_gap_is_marked_as_soon_as_there_is_room_again(autojump_clock: MockClock) -> None:
    here = await world()
    track = here.recorder.track(1)
    async with here.recording_runs():
        track.record(1, b"before")
        await trio.sleep(2 * HELD_SECONDS)
        fill_memory(here.store, here.disk, ROOM.pending_bytes_max)
        await trio.sleep(max(HELD_SECONDS, 1.1))
        track.record(3, b"lost!")
        await trio.sleep(1.1 * HELD_SECONDS)
        assert here.value("left_out_messages", reason="store") == 3
        here.disk.before = None
        await here.store.flush()
        await trio.sleep(1.1 + 2 * HELD_SECONDS)
    assert await here.heads() == [(1, 1), (0, 3)]


async def test_what_an_earlier_run_recorded_goes_in_its_time(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    recording = Recording(store, SETTINGS, LOG)
    found = recording.of("echo")
    assert found is not None
    for _ in range(40):
        found.track(1).record(1, bytes(100_000))
        recording.flush()
        store.commit_pending()
    await store.close()
    store = await open_store(folder=tmp_path)
    Recording(store, RecordSettings(retention_bytes=MIB), LOG)
    await store.retain()
    log = store.namespace("recorded", SETTINGS.durability).logs["echo"]
    assert 0 < log.end - log.first < 2 * MIB
    await store.close()


async def test_a_gap_is_marked_though_nothing_comes_after_it(autojump_clock: MockClock) -> None:
    here = await world(attrs.evolve(SETTINGS, pending_bytes_max=1000))
    track = here.recorder.track(1)
    async with here.recording_runs():
        for _ in range(3):
            track.record(1, bytes(HELD_BYTES))
        assert here.value("left_out_messages", reason="behind") == 2
        await trio.sleep(3 * HELD_SECONDS)
    assert await here.heads() == [(1, 1), (0, 2)]


async def test_retention_bounds_what_is_kept_and_is_asked_in_time(autojump_clock: MockClock) -> None:
    here = await world(attrs.evolve(SETTINGS, retention_bytes=MIB))
    track = here.recorder.track(1)
    async with here.recording_runs():
        for number in range(60):
            track.record(1, number.to_bytes(4, "big") + bytes(100_000))
            here.settle()
            await trio.sleep(0.25)
    log = here.store.namespace("recorded", SETTINGS.durability).logs["echo"]
    assert log.first > 0
    assert log.end - log.first <= 2 * MIB
    assert here.value("left_out_messages", reason="retention") == 0
    kept = [int.from_bytes(data[:4], "big") for _, data in await here.blocks()]
    assert kept == list(range(60 - len(kept), 60))


async def test_without_retention_in_time_it_stops_at_twice_the_bound() -> None:
    here = await world(attrs.evolve(SETTINGS, retention_bytes=MIB))
    track = here.recorder.track(1)
    for _ in range(30):
        track.record(1, bytes(100_000))
        here.settle()
    log = here.store.namespace("recorded", SETTINGS.durability).logs["echo"]
    assert 2 * MIB < log.end <= 2 * MIB + 200_000
    assert here.value("left_out_messages", reason="retention") == 30 - here.value("messages")


async def test_small_blocks_wait_for_each_other_and_not_for_long(autojump_clock: MockClock) -> None:
    here = await world()
    track = here.recorder.track(1)
    async with here.recording_runs():
        track.record(1, bytes(HELD_BYTES))  # alone as many as are held
        here.settle()
        await trio.sleep(2 * HELD_SECONDS)
        commits = here.store.statistics().commits
        for _ in range(10):
            track.record(1, b"small")
            here.store.commit_pending()
        await trio.sleep(2 * HELD_SECONDS)
        assert here.value("messages") == 11
        assert here.store.statistics().commits == commits + 1
    assert [data for _, data in await here.blocks()] == [bytes(HELD_BYTES)] + [b"small"] * 10
