"""The host's beginning and end, over a store that is whatever the test says."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from brokers import host as host_module
from brokers.config import load
from brokers.errors import Refusal
from brokers.host import UNUSED_SEGMENT_BYTES, Host
from shared.errors import CorruptRecord, StoreError, StoreReadOnly
from shared.metrics import Sample
from shared.plugin import Context, Plugin, Service
from shared.storage.settings import StorageSettings
from shared.units import KIB, MIB
from tests.support.installed import Idle, plugin, quiet_log


@attrs.define(eq=False)
class FakeStore:
    """Remembers what is done with it."""

    done: list[str]
    read_only: StoreError | None = None
    crash: Exception | None = None
    close_error: StoreError | None = None
    broken: trio.Event = attrs.field(factory=trio.Event)
    folder: Path | None = None
    settings: StorageSettings | None = None

    async def run(self, *, task_status: "trio.TaskStatus[None]") -> None:
        task_status.started()
        await self.broken.wait()
        raise ZeroDivisionError("a bug in the store")

    def reserve_descriptors(self, connections: int) -> None: ...

    def commit_pending(self) -> None: ...

    def namespace(self, *_: Any, **__: Any) -> None: ...

    def statistics(self) -> Any:
        return Statistics(3)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append("store closed")
        if self.close_error is not None:
            raise self.close_error


@attrs.frozen
class Statistics:
    logs: int


class Quiet(Idle):
    def __init__(self, done: list[str]) -> None:
        self._done = done

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._done.append("service ended")

    def drain(self) -> None:
        self._done.append("drained")


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def store(done: list[str], monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    fake = FakeStore(done)

    class Opener:
        @staticmethod
        async def open(folder: Path, settings: StorageSettings) -> FakeStore:
            done.append("store open")
            fake.settings = settings
            return fake

    monkeypatch.setattr(host_module, "Store", Opener)
    return fake


def host(folder: Path, done: list[str], *plugins: Plugin, **environ: str) -> Host:
    async def open_quiet(_: Context, __: Any) -> Service:
        done.append("service open")
        return Quiet(done)

    (folder / "data").mkdir()
    chosen = plugins or (plugin("quiet", open=open_quiet),)
    config = load(chosen, file=None, environ={"BROKERS_SERVE_DATA_DIR": str(folder / "data"), **environ})
    return Host(chosen, config, quiet_log())


async def test_a_stop_drains_then_ends_the_services_then_closes_the_store(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    it = host(tmp_path, done)
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        assert it.unready() is None
        it.stop()
        assert it.unready() == "draining"
    assert done == ["store open", "service open", "drained", "service ended", "store closed"]
    assert not (tmp_path / "data" / "control.sock").exists()


async def test_a_stop_that_comes_before_it_is_ready_is_heard(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    it = host(tmp_path, done)
    it.stop()
    await it.run()
    assert done[-1] == "store closed"


async def test_a_protocol_whose_logs_cannot_be_opened_says_what_to_do(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    async def cannot(_: Context, __: Any) -> Service:
        raise CorruptRecord("quiet/orders.log", 7)

    it = host(tmp_path, done, plugin("quiet", open=cannot))
    with pytest.raises(ExceptionGroup) as raised:
        await it.run()
    found = raised.value.subgroup(Refusal)
    assert found is not None
    said = str(found.exceptions[0])
    assert "quiet cannot be opened: damaged bytes in quiet/orders.log at offset 7" in said
    assert f"brokers fsck --repair --data-dir {tmp_path / 'data'}" in said
    assert done[-1] == "store closed"


def keeps(name: str, kept: bool) -> Plugin:
    return plugin(name, keeps=lambda settings: kept and settings.port == 0, unrecorded=None)


@pytest.mark.parametrize(
    ("plugins", "environ", "segment_bytes"),
    [
        ([keeps("a", False)], {}, UNUSED_SEGMENT_BYTES),
        ([keeps("a", True)], {"BROKERS_A_PORT": "1"}, UNUSED_SEGMENT_BYTES),  # the settings tell
        ([keeps("a", False)], {"BROKERS_STORAGE_SEGMENT_BYTES": "8KiB"}, 8 * KIB),
        ([keeps("a", False), keeps("b", True)], {}, 64 * MIB),
        ([keeps("a", False)], {"BROKERS_RECORD_PROTOCOLS": "a"}, 64 * MIB),
        ([plugin("a")], {}, 64 * MIB),
    ],
)
async def test_the_journal_is_small_where_nothing_is_kept(
    plugins: list[Plugin],
    environ: dict[str, str],
    segment_bytes: int,
    tmp_path: Path,
    store: FakeStore,
    done: list[str],
) -> None:
    it = host(tmp_path, done, *plugins, **environ)
    it.stop()
    await it.run()
    assert store.settings is not None
    assert store.settings.segment_bytes == segment_bytes


async def test_a_last_sync_that_fails_is_told(tmp_path: Path, store: FakeStore, done: list[str]) -> None:
    store.close_error = StoreReadOnly("the last sync failed")
    it = host(tmp_path, done)
    it.stop()
    with pytest.raises(StoreReadOnly, match="the last sync failed"):
        await it.run()


async def test_a_protocol_that_cannot_be_opened_ends_the_start_and_closes_the_store(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    async def fail(_: Context, __: Any) -> Service:
        raise Refusal("cannot")

    it = host(tmp_path, done, plugin("failing", open=fail))
    with pytest.raises(ExceptionGroup) as error:
        await it.run()
    assert error.group_contains(Refusal, match="cannot")
    assert done == ["store open", "store closed"]


async def test_a_bug_in_the_store_ends_the_host_and_is_not_hidden(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    store.broken.set()
    with pytest.raises(ExceptionGroup) as error:
        await host(tmp_path, done).run()
    assert error.group_contains(ZeroDivisionError)
    assert done[-1] == "store closed"


class Recorded:
    """A recording that holds what was not written yet."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def of(self, protocol: str) -> None: ...

    async def run(self) -> None: ...

    def samples(self) -> list[Sample]:
        return []

    def flush(self) -> None:
        self._done.append("recording flushed")


async def test_what_is_held_is_written_before_the_store_closes_whatever_ends_it(
    tmp_path: Path, store: FakeStore, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "Recording", lambda *_: Recorded(done))
    it = host(tmp_path, done)
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        nursery.cancel_scope.cancel()
    assert done[-3:] == ["service ended", "recording flushed", "store closed"]


async def test_it_is_ready_while_all_of_it_is(
    tmp_path: Path, store: FakeStore, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.metrics.store_samples", lambda _: ())
    it = host(tmp_path, done)

    def ready() -> float:
        (found,) = (sample.value for sample in it.samples() if sample.name == "ready")
        return found

    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        assert ready() == 1
        for state in ("starting", "restarting"):
            it._services[0].state = state  # type: ignore[assignment]
            assert it.unready() == "restarting: quiet"
            assert ready() == 0
        it._services[0].state = "serving"
        store.read_only = StoreReadOnly("a sync failed")
        assert ready() == 0
        it.stop()


async def test_a_backup_says_when_it_was_made(
    tmp_path: Path, store: FakeStore, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    async def backup_files(*asked: Any, now_ms: int) -> None:
        made.append((asked, now_ms))

    monkeypatch.setattr(host_module, "backup_files", backup_files)
    it = host(tmp_path, done)
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        await it.backup(tmp_path / "copy")
        it.stop()
    (((of, folder, target), now_ms),) = made
    assert (of, folder, target) == (store, tmp_path / "data", tmp_path / "copy")
    assert abs(now_ms / 1000 - time.time()) < 3600


async def test_a_store_that_turned_read_only_makes_the_host_unready(
    tmp_path: Path, store: FakeStore, done: list[str]
) -> None:
    it = host(tmp_path, done)
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        store.read_only = StoreReadOnly("a sync failed: Input/output error")
        assert it.unready() == "the store is read-only: a sync failed: Input/output error"
        status: Mapping[str, Any] = it.status()
        assert (status["state"], status["reason"]) == ("not ready", it.unready())
        assert status["store"] == {"logs": 3}
        it.stop()
