"""What the shipper sends can be put together again, whatever ends it, and nobody else's is overwritten."""

import errno
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog.testing
import trio
import trio.testing

from brokers.ship import snapshots
from brokers.ship.bucket import Away
from brokers.ship.cipher import Cipher
from brokers.ship.epochs import ForeignBucket
from brokers.ship.folder_files import FolderFiles, put_back
from brokers.ship.formats import (
    MANIFEST_KEY,
    PARTS_PREFIX,
    SHIP_PATH,
    unpack_manifest,
    unpack_snapshot,
    unpack_wal,
    wal_key,
)
from brokers.ship.settings import ShipSettings
from brokers.ship.shipper import opened_with
from shared.errors import StoreReadOnly
from shared.storage import format
from shared.storage.settings import Durability, Retention
from shared.units import KIB, MIB
from tests.brokers.ship.fake_bucket import FAULTS, Crash, FakeStore, Fault, on_loop
from tests.brokers.ship.reassembled import assembled
from tests.brokers.ship.ships import ALWAYS, SETTINGS, Shipped, shipped
from tests.brokers.test_dashboards import EXPRESSIONS, SHIPPED, series
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import SMALL


async def test_what_was_acknowledged_is_in_the_bucket_a_second_later(autojump_clock: object) -> None:
    bucket = FakeStore()
    async with shipped(FakeDisk(), bucket) as ours:
        for number in range(5):
            await ours.append("orders", b"record %d" % number)
            await ours.append("other", bytes(3000))
            await trio.sleep(0.7)
        await trio.sleep(2)
        found = assembled(bucket.objects)
        assert found.logs == await ours.contents()
        assert ours.shipper.state == "shipping"
        assert ours.shipper.lag_seconds == 0


async def test_a_start_goes_on_where_the_last_one_ended(autojump_clock: object) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    for run in range(4):
        async with shipped(disk, bucket) as ours:
            await ours.append("orders", b"run %d" % run)
            await ours.even()
        found = assembled(bucket.objects)
        assert found.manifest.epoch == run + 1
    async with shipped(disk, bucket) as ours:
        assert assembled(bucket.objects).logs == await ours.contents()


STORAGE = attrs.evolve(SMALL, reference_bytes=16 * KIB)
FOLDS = attrs.evolve(SETTINGS, fold=5)


async def work(ours: Shipped) -> None:
    """Something of all that the journal has: records, large ones, new and deleted logs, dropped records."""
    await ours.append("orders", b"first", b"second")
    await ours.append("gone", b"x")
    for _ in range(3):
        await ours.append("large", bytes(range(256)) * 100)
    await trio.sleep(3)
    namespace = ours.store.namespace("logs", ALWAYS)
    if "gone" in namespace.logs:
        await ours.store.wait(namespace.delete("gone"))
    await ours.append("orders", b"third")
    await trio.sleep(4)
    orders = ours.log("orders")
    await ours.store.wait(orders.drop_below(orders.end))
    await ours.append("orders", b"fourth")
    await ours.append("new", bytes(70_000))


async def run(disk: FakeDisk, bucket: FakeStore, *, close: bool = True) -> None:
    """Work, and wait until the bucket has it; then it has just what the store has."""
    async with shipped(disk, bucket, FOLDS, STORAGE, close=close) as ours:
        await work(ours)
        await ours.even()
        assert assembled(bucket.objects).logs == await ours.contents()


async def requests_of_two_runs() -> int:
    disk, bucket = FakeDisk(), FakeStore()
    await run(disk, bucket)
    await run(disk, bucket)
    return len(bucket.asked)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_a_request_leaves_no_hole_and_no_overlap(
    autojump_clock: object, fault: Fault
) -> None:
    """A crash ends the process at that request; the others are answers that are lost, doubled or refused.
    Each fault comes at a fifth of the requests, and each request has one or two."""
    total = await requests_of_two_runs()
    assert total > 40
    for number in range(FAULTS.index(fault) % 5, total, 5):
        disk, bucket = FakeDisk(), FakeStore(faults={number: fault})
        crashed = True
        while crashed or len(bucket.asked) <= number:
            try:
                await run(disk, bucket)
                crashed = False
            except (Crash, BaseExceptionGroup) as error:
                if not isinstance(error, Crash):
                    _, rest = error.split(Crash)
                    assert rest is None, rest
                disk, crashed = disk.kill(), True


async def test_a_bucket_that_is_away_for_a_whole_run_gets_it_from_the_next(autojump_clock: object) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    await run(disk, bucket)
    for close in (True, False):
        bucket.away = True
        async with shipped(disk, bucket, FOLDS, STORAGE, close=close) as ours:
            assert ours.shipper.state == "away"
            await work(ours)
            assert ours.shipper.lag_bytes > 0
        if not close:
            disk = disk.kill()
    bucket.away = False
    async with shipped(disk, bucket, FOLDS, STORAGE) as ours:
        await ours.even()
        found = assembled(bucket.objects)
        assert found.logs == await ours.contents()
        assert ours.shipper.forgotten == 0
        assert len(found.manifest.snapshots) >= 1


async def test_an_encrypted_bucket_has_the_same(autojump_clock: object) -> None:
    pytest.importorskip("cryptography")
    disk, bucket, cipher = FakeDisk(), FakeStore(), Cipher(bytes(32))
    for _ in range(2):
        async with shipped(disk, bucket, FOLDS, STORAGE, cipher) as ours:
            await work(ours)
            await ours.even()
            clear = {key: cipher.decrypt(key, data) for key, data in bucket.objects.items()}
            assert assembled(clear).logs == await ours.contents()
    assert not any(b"fourth" in data for data in bucket.objects.values())
    assert any(b"fourth" in data for data in clear.values())


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000, -3_600_000])
async def test_a_writer_that_was_overtaken_stops_and_overwrites_nothing(
    autojump_clock: object, ahead_ms: int
) -> None:
    """Paused, while a copy of its folder is served elsewhere: as by a machine that is taken for dead. Its
    clock is set wrong meanwhile: no clock is asked who writes.
    """
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, FOLDS, STORAGE, close=False) as old:
        right_ms = old.shipper.wall_ms
        old.shipper.wall_ms = lambda: right_ms() + ahead_ms
        await work(old)
        await old.even()
        copy = disk.kill()
        old.store.shipping.hold(0)  # type: ignore[union-attr]
        async with shipped(copy, bucket, FOLDS, STORAGE) as new:
            await new.append("orders", b"by the new one")
            await new.even()
            before = dict(bucket.objects)
            await old.append("orders", b"by the old one")
            await trio.sleep(30)
            assert old.shipper.state == "fenced"
            assert new.shipper.state == "shipping"
            assert {key: bucket.objects[key] for key in before if key != MANIFEST_KEY} == {
                key: data for key, data in before.items() if key != MANIFEST_KEY
            }
            await new.append("orders", b"more")
            await new.even()
            assert assembled(bucket.objects).logs == await new.contents()
        assert old.store.read_only is None


async def test_a_request_that_ends_late_does_not_take_a_fence_back(autojump_clock: object) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    asked, answers = trio.Event(), trio.Event()

    async def slow(work: Any, **_: object) -> Any:
        found = work()
        if str(work.args[0]).startswith(PARTS_PREFIX):
            asked.set()
            with trio.CancelScope(shield=True):
                await answers.wait()
        return found

    async with shipped(disk, bucket, FOLDS, STORAGE, close=False) as old:
        old.shipper.bucket.in_thread = slow
        await old.append("orders", b"x")
        await asked.wait()
        copy = disk.kill()
        async with shipped(copy, bucket, FOLDS, STORAGE) as new:
            await new.append("orders", b"by the new one")
            await old.append("orders", b"by the old one")
            with trio.fail_after(100):
                while old.shipper.state != "fenced":  # noqa: ASYNC110 - the clock jumps
                    await trio.sleep(0.1)
            answers.set()
            await trio.sleep(1)
            assert old.shipper.state == "fenced"


async def test_with_acknowledgements_by_the_bucket_a_fenced_server_stops(autojump_clock: object) -> None:
    settings = attrs.evolve(SETTINGS, ack="bucket")
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings, close=False) as old:
        await old.append("orders", b"x")
        copy = disk.kill()
        async with shipped(copy, bucket, settings) as new:
            await new.append("orders", b"y")
            with pytest.raises(StoreReadOnly):
                await old.append("orders", b"z")
            with pytest.raises(StoreReadOnly, match="not ours"):
                await old.append("orders", b"z")
            assert assembled(bucket.objects).logs == await new.contents()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_copy_of_a_folder_that_is_behind_is_refused_with_the_ways_out(
    autojump_clock: object, when: str
) -> None:
    """Also where its epoch is the bucket's: it lacks what the other has shipped since."""
    disk, bucket = FakeDisk(), FakeStore()
    await run(disk, bucket)
    copy = disk.kill()
    async with shipped(disk, bucket, FOLDS, STORAGE, close=False) as ours:
        await ours.append("orders", b"in both")
        await ours.even()
        if when == "meanwhile":
            copy = disk.kill()
        await ours.append("orders", b"only here")
        await ours.even()
        before = dict(bucket.objects)
        with pytest.raises(ForeignBucket, match="brokers ship adopt") as refused:
            async with shipped(copy, bucket, FOLDS, STORAGE, close=False):
                pass
        assert "LSN" in str(refused.value)
        assert dict(bucket.objects) == before
        await ours.append("orders", b"more")
        await ours.even()
        assert assembled(bucket.objects).logs == await ours.contents()


@pytest.mark.parametrize("lost", ["manifest", "object", "all"])
async def test_a_bucket_that_lost_something_is_not_written_to(autojump_clock: object, lost: str) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    await run(disk, bucket)
    if lost == "manifest":
        del bucket.objects[MANIFEST_KEY]
    elif lost == "object":
        del bucket.objects[max(key for key in bucket.objects if key.startswith("wal/"))]
    else:
        bucket.objects.clear()
    before = dict(bucket.objects)
    with pytest.raises(ForeignBucket):
        async with shipped(disk, bucket, FOLDS, STORAGE):
            pass
    assert bucket.objects == before


@pytest.mark.parametrize("keep", [0, 20_000], ids=["at a snapshot", "before bytes are left to it"])
async def test_a_manifest_that_is_deleted_is_told_as_that(autojump_clock: object, keep: int) -> None:
    bucket = FakeStore()
    async with shipped(FakeDisk(), bucket, FOLDS, STORAGE, close=False) as ours:
        log = ours.log("large")
        for _ in range(8):
            await ours.append("large", bytes(range(256)) * 100)
        await ours.even()

        def before(operation: str, key: str) -> None:
            if keep and (operation, key) == ("get", MANIFEST_KEY):
                bucket.objects.pop(MANIFEST_KEY, None)

        bucket.before = before
        if keep:
            log.local_retention = Retention(bytes_kept=keep)
        else:
            del bucket.objects[MANIFEST_KEY]
        await ours.append("large", b"more")
        await trio.sleep(100)
        assert ours.shipper.state == "refused"
        assert "deleted the bucket's manifest.json" in ours.shipper.reason


@pytest.mark.parametrize("anew", [False, True], ids=["a new bucket", "after too much waited"])
async def test_what_no_snapshot_makes_restorable_is_shown_as_lag(autojump_clock: object, anew: bool) -> None:
    bucket, standing = FakeStore(), not anew

    def before(operation: str, key: str) -> None:
        if standing and key.startswith("snapshots/"):
            raise Away("503")

    bucket.before = before
    async with shipped(FakeDisk(), bucket, attrs.evolve(FOLDS, backlog=256 * KIB), STORAGE) as ours:
        shipper = ours.shipper
        await ours.append("orders", b"x")
        if anew:
            await ours.even()
            standing = bucket.away = True
            for _ in range(20):
                await ours.append("orders", *[bytes(1000)] * 50)
                await trio.sleep(1)
            bucket.away = False
        await trio.sleep(100)
        await ours.append("orders", b"y")
        await trio.sleep(3)
        assert shipper.lag_bytes == 0, "all of the journal is there"
        assert shipper.lag_seconds > 100, "and a restore would have nothing of it"
        standing = False
        await ours.even()
        assert shipper.lag_seconds == 0
        assert assembled(bucket.objects).logs == await ours.contents()


async def test_a_checkpoint_leaves_no_hole_in_the_journal_at_a_power_cut(autojump_clock: object) -> None:
    """Where nothing asks for a sync: the catalog has what it has, and the bucket gets all that led there."""
    disk, bucket = FakeDisk(), FakeStore()
    settings = attrs.evolve(FOLDS, interval=1000, fold=5000)
    async with shipped(disk, bucket, settings, STORAGE, close=False) as ours:
        ours.log("orders", Durability("none"))
        await ours.even()
        await ours.append("orders", b"one", b"two")
        assert await ours.store.checkpoint()
    disk = disk.power_cut().boot(lambda n, what: n - 1)
    async with shipped(disk, bucket, FOLDS, STORAGE) as ours:
        await ours.append("orders", b"three")
        await ours.even()
        assert ours.shipper.forgotten == 0
        assert assembled(bucket.objects).logs == await ours.contents()


async def test_another_folder_does_not_ship_to_a_bucket_that_is_in_use(autojump_clock: object) -> None:
    bucket = FakeStore()
    await run(FakeDisk(), bucket)
    with pytest.raises(ForeignBucket, match="knows nothing of it"):
        async with shipped(FakeDisk(), bucket):
            pass


async def test_a_store_that_overwrites_is_refused_unless_that_is_taken(autojump_clock: object) -> None:
    bucket = FakeStore(overwrites=True)
    with pytest.raises(ForeignBucket, match="overwrites"):
        async with shipped(FakeDisk(), bucket):
            pass
    settings = attrs.evolve(SETTINGS, fencing="none")
    async with shipped(FakeDisk(), bucket, settings) as ours:
        await ours.append("orders", b"x")
        await ours.even()


@pytest.fixture
def grace_seconds(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(snapshots, "GRACE_SECONDS", 60.0)
    return 60.0


async def test_where_nothing_may_be_deleted_nothing_is(autojump_clock: object, grace_seconds: float) -> None:
    settings = attrs.evolve(FOLDS, delete=False, retention_seconds=0, interval=20, fold=30)
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings, STORAGE) as ours:
        for _ in range(3):
            await work(ours)
            await trio.sleep(grace_seconds)
        assert assembled(bucket.objects).logs == await ours.contents()
    assert not [key for operation, key in bucket.asked if operation == "delete"]
    assert [key for key in bucket.objects if key.startswith("probe/")] == ["probe/probe"]


async def test_what_retention_passed_is_deleted_and_the_rest_can_be_restored(
    autojump_clock: object, grace_seconds: float
) -> None:
    settings = attrs.evolve(FOLDS, retention_seconds=60, interval=20, fold=30)
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings, STORAGE) as ours:
        clock = iter(range(10**15))
        ours.shipper.wall_ms = lambda: int(trio.current_time() * 1000) + next(clock)
        for _ in range(4):
            await work(ours)
            await trio.sleep(grace_seconds)
        await ours.even()
        found = assembled(bucket.objects)
        assert found.logs == await ours.contents()
        keys = [key for key in bucket.objects if key.startswith("wal/")]
        assert len(keys) < 40
        assert wal_key(1) not in keys
        assert found.manifest.wal_first >= found.manifest.wal_deleted > 1
        assert wal_key(found.manifest.wal_deleted) <= min(keys) <= wal_key(found.manifest.wal_first)


async def test_what_the_oldest_snapshot_that_is_kept_needs_is_kept(
    autojump_clock: object, grace_seconds: float
) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, attrs.evolve(FOLDS, fold=30), STORAGE) as ours:
        for _ in range(4):
            await work(ours)
            await trio.sleep(grace_seconds)
        await ours.even()
        manifest = assembled(bucket.objects).manifest
        assert len(manifest.snapshots) >= 4
        assert manifest.wal_first <= manifest.snapshots[0].wal < manifest.snapshots[-1].wal
        needed = {wal_key(number) for number in range(manifest.snapshots[0].wal, ours.shipper.number + 1)}
        for line in manifest.snapshots:
            needed |= unpack_snapshot(bucket.objects[line.key]).part_keys
        assert needed <= set(bucket.objects)


async def test_a_backlog_that_is_too_long_is_forgotten_and_shipping_begins_anew(
    autojump_clock: object,
) -> None:
    settings = attrs.evolve(FOLDS, backlog=256 * KIB)
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings, STORAGE) as ours:
        await ours.append("orders", b"before")
        await ours.even()
        bucket.away = True
        for _ in range(20):
            await ours.append("orders", *[bytes(1000)] * 50)
            await trio.sleep(5)
        assert ours.shipper.forgotten > 0
        assert ours.store.shipping is not None
        assert ours.store.shipping.held_bytes <= 512 * KIB
        bucket.away = False
        await ours.even()
        found = assembled(bucket.objects)
        assert found.logs == await ours.contents()
    heads = [unpack_wal(bucket.objects[key]).head for key in sorted(bucket.objects) if key.startswith("wal/")]
    assert [head.number for head in heads] == list(range(1, len(heads) + 1))
    assert sum(after.first_lsn != before.next_lsn for before, after in pairwise(heads)) == 1


async def test_a_bucket_that_is_too_slow_leaves_no_longer_a_backlog(autojump_clock: object) -> None:
    """It answers each request before it is given up, and what came meanwhile is more than may wait."""

    async def slow(work: Any, *arguments: Any, **options: Any) -> Any:
        if str(work.args[0]).startswith("wal/"):
            await trio.sleep(50)
        return await on_loop(work, *arguments, **options)

    bucket = FakeStore()
    async with shipped(FakeDisk(), bucket, attrs.evolve(FOLDS, backlog=256 * KIB), STORAGE) as ours:
        await ours.append("orders", b"before")
        await ours.even()
        ours.shipper.bucket.in_thread = slow
        for _ in range(40):
            await ours.append("orders", *[bytes(1000)] * 50)
            await trio.sleep(5)
        assert ours.shipper.state == "shipping"
        assert ours.shipper.forgotten > 0
        ours.shipper.bucket.in_thread = on_loop
        await ours.even()
        assert assembled(bucket.objects).logs == await ours.contents()


async def test_a_full_disk_is_no_reason_to_forget_what_a_bucket_takes(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shipped(FakeDisk(), FakeStore(), FOLDS, STORAGE) as ours:
        monkeypatch.setattr(type(ours.store), "full", True)
        for _ in range(20):
            await ours.append("orders", *[bytes(1000)] * 50)
            await trio.sleep(1)
        assert (ours.shipper.state, ours.shipper.forgotten) == ("shipping", 0)


async def test_a_volume_that_does_not_tell_its_size_any_more_is_shipped(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk()
    async with shipped(disk, FakeStore(), FOLDS, STORAGE) as ours:
        monkeypatch.setattr(disk, "free_bytes", refused)
        for _ in range(20):
            await ours.append("orders", *[bytes(1000)] * 50)
            await trio.sleep(1)
        await ours.even()
        assert ours.shipper.forgotten == 0


async def test_a_fenced_server_that_goes_on_keeps_no_space_for_the_bucket(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk refuses to give up the journal's segments."""
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, FOLDS, STORAGE, close=False) as old:
        await work(old)
        await old.even()
        shipping, log = old.shipper.shipping, old.log("large")
        monkeypatch.setattr(shipping, "let_go", refused)
        async with shipped(disk.kill(), bucket, FOLDS, STORAGE) as new:
            await new.even()
            bucket.away = True
            await old.append("large", bytes(30_000))
            await old.append("large", bytes(30_000))
            assert not shipping.may_punch(log, log.end), "the bucket is to have it"
            bucket.away = False
            await trio.sleep(60)
            assert old.shipper.state == "fenced"
            assert shipping.may_punch(log, log.end)
            await old.append("large", bytes(30_000))
            assert shipping.may_punch(log, log.end)


def refused(*_: object) -> Any:
    raise OSError(errno.EIO, "it refuses")


async def test_a_disk_that_refuses_the_mark_ends_no_server_and_shipping_goes_on_behind_it(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the bucket is taken late, and at the end."""
    disk, bucket = FakeDisk(), FakeStore()
    bucket.away = True
    async with shipped(disk, bucket) as ours:
        shipper = ours.shipper
        with monkeypatch.context() as patch:
            patch.setattr(shipper.shipping, "write_file", refused)
            bucket.away = False
            await trio.sleep(60)
            await ours.append("orders", b"x")
            assert shipper.manifest is None
        await ours.even()
        assert assembled(bucket.objects).logs == await ours.contents()
        with monkeypatch.context() as patch:
            patch.setattr(shipper.shipping, "write_file", refused)
            await shipper.finish()
            assert shipper.state == "shipping"


async def test_where_memory_is_short_for_a_moment_shipping_goes_on_behind_it(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def short(*_: object) -> Any:
        raise MemoryError

    async with shipped(FakeDisk(), FakeStore()) as ours:
        await ours.even()
        with monkeypatch.context() as patch:
            patch.setattr(ours.shipper.shipping, "read", short)
            await ours.append("orders", b"x")
            await trio.sleep(10)
            assert ours.shipper.lag_bytes > 0
        await ours.even()


async def test_the_journals_segments_are_looked_for_in_the_thread_that_reads_them(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, inside = FakeDisk(), False

    async def in_thread(work: Any, *arguments: Any, **_: object) -> Any:
        nonlocal inside
        inside = True
        try:
            return work(*arguments)
        finally:
            inside = False

    def names(folder: str) -> list[str]:
        assert inside
        return FakeDisk.names(disk, folder)

    async with shipped(disk, FakeStore(), close=False, in_thread=in_thread) as ours:
        monkeypatch.setattr(disk, "names", names)
        await ours.append("orders", b"x")
        await ours.even()


async def test_an_answer_waits_for_the_bucket_where_it_is_to(autojump_clock: object) -> None:
    settings = attrs.evolve(SETTINGS, ack_bucket=("logs:orders*",))
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings) as ours:
        await ours.append("orders", b"x")
        assert assembled(bucket.objects).logs[("logs", "orders")]
        bucket.away = True
        await ours.append("other", b"y")
        with trio.move_on_after(100) as scope:
            await ours.append("orders", b"z")
        assert scope.cancelled_caught
        bucket.away = False
        await ours.append("orders", b"last")
        assert assembled(bucket.objects).logs == await ours.contents()


def test_who_waits_for_the_bucket_is_said_by_protocol_or_namespace() -> None:
    acks = opened_with(ShipSettings(ack_bucket=("dmp:orders*", "dms:*"))).acks
    assert acks("dmp-queues", "orders.new")
    assert acks("dms", "jobs")
    assert not acks("dmp-queues", "other")
    assert opened_with(ShipSettings(ack_bucket=("dmp-queues:other",))).acks("dmp-queues", "other")
    for wrong in (("payments*",), ("dms:jobs", "x")):
        with pytest.raises(ValueError, match="no answer would wait"):
            ShipSettings(ack_bucket=wrong)


async def test_many_who_wait_share_an_object(autojump_clock: object) -> None:
    settings = attrs.evolve(SETTINGS, ack="bucket")
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, settings) as ours:
        await ours.append("orders", b"x")
        objects = ours.shipper.objects
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ours.append, "orders", b"%d" % number)
        assert ours.shipper.objects - objects < 10


def test_the_manifest_of_a_new_bucket_says_whose_it_is() -> None:
    async def begin() -> None:
        async with shipped(FakeDisk(), bucket) as ours:
            await ours.append("orders", b"x")
            await ours.even()

    bucket = FakeStore()
    trio.run(begin, clock=trio.testing.MockClock(autojump_threshold=0))
    manifest = unpack_manifest(bucket.objects[MANIFEST_KEY])
    assert (manifest.epoch, manifest.url) == (1, SETTINGS.url)
    assert manifest.snapshots[0].whole_from == manifest.snapshots[0].lsn


async def test_what_is_told_of_shipping_is_what_the_dashboard_and_status_show(autojump_clock: object) -> None:
    named = {name for name in set().union(*map(series, EXPRESSIONS)) if name.startswith(SHIPPED)}
    assert len(named) >= 4
    bucket = FakeStore()
    async with shipped(FakeDisk(), bucket) as ours:
        await ours.append("orders", b"x")
        await ours.even()
        told = {
            f"brokers_{sample.name.removesuffix('_total')}": sample.value for sample in ours.shipper.samples()
        }
        assert {name.removesuffix("_total") for name in named} <= set(told)
        assert (told["brokers_ship_epoch"], told["brokers_ship_ours"], told["brokers_ship_lag_seconds"]) == (
            1,
            1,
            0,
        )
        status = ours.shipper.status()
        assert (status["state"], status["lag_bytes"], status["epoch"]) == ("shipping", 0, 1)
        assert status["requests"]["create"]["requests"] == len(
            [1 for each in bucket.asked if each[0] == "create"]
        )
        assert status["requests_a_month"] > 0
        bucket.away = True
        await ours.append("orders", b"y")
        await trio.sleep(100)
        status = ours.shipper.status()
        assert (status["state"], status["reason"], status["last_error"]) == ("away", "503", "create: 503")
        assert status["lag_seconds"] > 90
        bucket.away = False


async def test_the_requests_a_month_are_those_of_the_pace_from_the_first_minute_on(
    autojump_clock: object,
) -> None:
    """One object each second and a snapshot each 300; not what a start asks once, over its few seconds."""
    a_month = 30 * 86400
    expected = a_month + 4 * a_month / SETTINGS.fold
    async with shipped(FakeDisk(), FakeStore()) as ours:
        for number in range(1750):
            await ours.append("orders", b"record %d" % number)
            await trio.sleep(0.4)
            if number in (75, 250, 1000, 1749):
                assert 0.9 * expected < ours.shipper.requests_a_month < 1.1 * expected, number


@pytest.mark.parametrize("crashed", [False, True])
async def test_no_object_ends_between_what_is_gone_and_its_deletion(
    autojump_clock: object, crashed: bool
) -> None:
    """A log is deleted before the journal that refers to its bytes is shipped."""
    disk, bucket = FakeDisk(), FakeStore()
    last = bytes(range(256)) * 100
    async with shipped(disk, bucket, FOLDS, STORAGE, close=False) as ours:
        for _ in range(3):
            await ours.append("large", last)
        await ours.even()
        bucket.away = True
        shipping = ours.shipper.shipping
        await ours.append("large", last)  # says that the journal will refer to others
        first = shipping.synced_lsn
        await ours.append("large", last)
        middle = shipping.synced_lsn
        await ours.store.wait(ours.store.namespace("logs", ALWAYS).delete("large"))
        await ours.append("orders", b"behind it")
        if not crashed:  # its file is unlinked, and read
            found = await shipping.read(first, middle, (), 1)
            assert (found.next_lsn, [each.data for each in found.referred]) == (middle, [format.record(last)])
            bucket.away = False
            await ours.even()
    disk = disk.kill()
    bucket.away = False
    before = set(bucket.objects)
    async with shipped(disk, bucket, attrs.evolve(FOLDS, fold=1000), STORAGE) as ours:
        await ours.even()
        assert ours.shipper.forgotten == 0
    gone = 0
    for key in sorted(key for key in bucket.objects if key.startswith("wal/")):
        wal = unpack_wal(bucket.objects[key])
        missing = {piece.log_id for piece in wal.pieces() if piece.data is None}
        gone += len(missing)
        for batch, data in wal.batches():
            payload = data[format.BATCH_HEADER_BYTES :][: batch.payload_bytes]
            entries = format.unpack_entries(payload, batch.entries) or []
            missing -= {entry.log_id for entry in entries if entry.kind == format.EntryKind.DELETE}
        assert not missing, key
    assert gone == crashed
    assert before < set(bucket.objects)


async def test_a_file_that_cannot_be_read_is_told_and_one_that_is_gone_is_gone(
    autojump_clock: object, tmp_path: Path
) -> None:
    async with shipped(FakeDisk(), FakeStore(), close=False) as ours:
        files = await FolderFiles.open(ours.store, ours.shipper.log)
        path = tmp_path / "bridges.json"
        path.write_bytes(b"one")
        await files.keep_copy(path)
        path.unlink()
        path.mkdir()
        with structlog.testing.capture_logs() as told:
            await files.keep_copy(path)
        assert [(line["file"], line["log_level"]) for line in told] == [("bridges.json", "error")]
        target = tmp_path / "restored"
        target.mkdir()
        assert await put_back(ours.store, target) == ["bridges.json"]
        assert (target / "bridges.json").read_bytes() == b"one"
        path.rmdir()
        await files.keep_copy(path)
        assert await put_back(ours.store, tmp_path) == []


async def test_one_at_a_time_writes_the_mark_and_the_newest_stays(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk()
    async with shipped(disk, FakeStore(), close=False) as ours:
        await ours.even()
        writes: list[bytes] = []

        async def slowly(work: Any, *arguments: Any) -> Any:
            if arguments[:1] == (SHIP_PATH,):
                writes.append(arguments[1])
                most.append(len(writes) - len(done))
                await trio.sleep(1 / len(writes))
                done.append(arguments[1])
            return work(*arguments)

        most: list[int] = []
        done: list[bytes] = []
        monkeypatch.setattr(ours.store, "in_thread", slowly)
        async with trio.open_nursery() as nursery:
            for log_id in (7, 8):
                nursery.start_soon(ours.shipper.note_left, log_id)
        assert set(most) == {1}
        assert disk.contents()[SHIP_PATH] == writes[-1]


# -- at a high rate

SELDOM = attrs.evolve(SETTINGS, interval=100)
LONG = attrs.evolve(SMALL, segment_bytes=12 * MIB, reference_bytes=0)


async def test_what_fills_an_object_is_shipped_at_once_and_the_rest_with_the_interval(
    autojump_clock: object,
) -> None:
    bucket = FakeStore()
    async with shipped(FakeDisk(), bucket, SELDOM, LONG) as ours:
        await ours.even()
        before = ours.shipper.objects
        for _ in range(19):
            await ours.append("orders", bytes(MIB))
            await trio.sleep(1)
        shipper = ours.shipper
        assert shipper.objects == before + 2
        assert 0 < shipper.lag_bytes < 8 * MIB
        assert 0 < shipper.lag_seconds < 18, "as old as the first byte that is missing, at most two objects"
        await trio.sleep(101)
        assert (shipper.objects, shipper.lag_bytes, shipper.lag_seconds) == (before + 3, 0, 0)
        await trio.sleep(500)
        assert shipper.objects == before + 3


async def test_what_is_shipped_before_its_time_is_nothing_that_a_power_cut_may_take(
    autojump_clock: object,
) -> None:
    disk, bucket = FakeDisk(), FakeStore()
    async with shipped(disk, bucket, SELDOM, LONG, close=False) as ours:
        await ours.even()
        before, log = ours.shipper.objects, ours.log("unsynced", Durability("none"))
        for _ in range(40):
            log.append(format.record(bytes(MIB)), 1)
            ours.store.commit_pending()
            await trio.sleep(0.1)
        assert before < ours.shipper.objects
        cut = disk.power_cut().boot(lambda number, what: number - 1)
    async with shipped(cut, bucket, SETTINGS, LONG) as ours:  # else the bucket has what the folder has not
        await ours.even()
        assert assembled(bucket.objects).logs == await ours.contents()


async def test_a_fast_journal_writes_its_segments_anew_and_makes_no_others(autojump_clock: object) -> None:
    made: list[str] = []
    disk = FakeDisk()

    def before(operation: Operation) -> None:
        if operation.kind == "allocate":
            made.append(operation.path)

    disk.before = before
    async with shipped(disk, FakeStore(), SELDOM, LONG) as ours:
        await ours.even()
        for number in range(60):
            await ours.append("orders", bytes(MIB))
            await trio.sleep(0.1)
            if number == 30:
                made.clear()
        assert made == []


class Views(FakeStore):
    """Keeps what each request is to write, as it is in memory. `hangs`: the next one has no answer."""

    views: dict[str, memoryview]
    hangs: bool = False

    def create(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.views.setdefault(key, memoryview(data))
        super().create(key, data)

    async def in_thread(self, work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        found = work(*arguments)
        if self.hangs:
            self.hangs = False
            await trio.sleep_forever()
        return found


async def test_memory_that_a_request_without_an_answer_may_still_send_is_not_written_anew(
    autojump_clock: object,
) -> None:
    bucket = Views()
    bucket.views = {}
    async with shipped(FakeDisk(), bucket, FOLDS, STORAGE) as ours:
        ours.shipper.bucket.in_thread = bucket.in_thread
        await ours.even()
        reused = 0
        for hangs in (False, False, False, True, False, False, False):
            bucket.hangs = hangs
            memory = {id(view.obj) for view in bucket.views.values()}
            await ours.append("orders", b"record", bytes(20_000))
            await ours.even()
            newest = bucket.views[wal_key(ours.shipper.number)]
            reused += id(newest.obj) in memory
            if hangs:
                left = wal_key(ours.shipper.number)
        assert bytes(bucket.views[left]) == bucket.objects[left]
        assert reused >= 1
        assert assembled(bucket.objects).logs == await ours.contents()
