"""The host's beginning and end, over a store that is whatever the test says."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from structlog.stdlib import get_logger
from structlog.testing import capture_logs

from brokers.errors import ExitCode, Failure
from brokers.host import host
from brokers.host.host import Host
from brokers.settings.config import Config, load
from brokers.settings.sections import AdminSettings
from shared.budget import Account
from shared.errors import CorruptRecord, StoreError, StoreFull, StoreReadOnly
from shared.metrics import Histogram, Sample
from shared.plugin import Context, Plugin, Service
from shared.storage.settings import StorageSettings
from shared.storage.store import StoreStatistics
from shared.units import MIB
from tests.support.installed import Idle, plugin, quiet_log


@attrs.define(eq=False)
class FakeStore:
    """Remembers what is done with it."""

    done: list[str]
    read_only: StoreError | None = None
    follows: bool = False
    crash: Exception | None = None
    close_error: StoreError | None = None
    broken: trio.Event = attrs.field(factory=trio.Event)
    folder: Path | None = None
    shipping: None = None
    settings: StorageSettings | None = None
    sync_times: Histogram = attrs.field(factory=lambda: Histogram(()))

    async def run(self, *, task_status: "trio.TaskStatus[None]") -> None:
        task_status.started()
        await self.broken.wait()
        raise ZeroDivisionError("a bug in the store")

    def reserve_descriptors(self, connections: int) -> None: ...

    def charge_to(self, account: Account) -> None: ...

    def commit_pending(self) -> None: ...

    def reading_on_loop(self) -> AbstractContextManager[None]:
        return nullcontext()

    def namespace(self, *_: Any, **__: Any) -> None: ...

    def has_log(self, *_: str) -> bool:
        return False

    def in_bucket_only(self) -> list[str]:
        return []

    def statistics(self) -> Any:
        """Every figure is 3."""
        return StoreStatistics(*[3] * len(attrs.fields(StoreStatistics)))

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append("store closed")
        if self.close_error is not None:
            raise self.close_error


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
def store(done: list[str]) -> FakeStore:
    return FakeStore(done)


MakeHost = Callable[..., Host]


@pytest.fixture
def make_host(tmp_path: Path, store: FakeStore, done: list[str]) -> MakeHost:
    """A host of one quiet protocol, or of these plugins, over the fake store; `environ`: its settings."""

    async def open_store(folder: Path, settings: StorageSettings) -> Any:
        done.append("store open")
        store.settings = settings
        return store

    async def open_quiet(_: Context, __: Any) -> Service:
        done.append("service open")
        return Quiet(done)

    def make(
        *plugins: Plugin,
        environ: Mapping[str, str] = MappingProxyType({}),
        change: Callable[[Config], Config] = lambda config: config,
        log: Any = None,
        **given: Any,
    ) -> Host:
        (tmp_path / "data").mkdir()
        chosen = plugins or (plugin("quiet", open=open_quiet),)
        own = {"BROKERS_SERVE_DATA_DIR": str(tmp_path / "data"), "BROKERS_ADMIN_ENABLED": "false"}
        config = change(load(chosen, file=None, environ={**own, **environ}))
        return Host(chosen, config, log or quiet_log(), open_store=open_store, **given)

    return make


async def test_a_stop_drains_then_ends_the_services_then_closes_the_store(
    tmp_path: Path, make_host: MakeHost, store: FakeStore, done: list[str]
) -> None:
    it = make_host()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        assert it.unready() is None
        it.stop()
        assert it.unready() == "draining"
    assert done == ["store open", "service open", "drained", "service ended", "store closed"]
    assert not (tmp_path / "data" / "control.sock").exists()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_protocol_that_does_not_end_is_named_and_left_when_all_is_on_disk(
    make_host: MakeHost, store: FakeStore, done: list[str], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(host, "END_SECONDS", 0.05)
    told: list[Mapping[str, Any]] = []
    free = trio.Event()

    class Shielded(Idle):
        async def run(self) -> None:
            with trio.CancelScope(shield=True):
                await free.wait()

    async def open_shielded(_: Context, __: Any) -> Service:
        return Shielded()

    def leave(code: ExitCode) -> None:
        done.append(f"left with {code}")
        store.close_error = None
        free.set()

    if fails:
        store.close_error = StoreError("the disk is gone")
    ours = (plugin("quiet"), plugin("stuck", open=open_shielded))
    it = make_host(*ours, log=quiet_log(told), leave=leave)
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        it.stop()
    assert done[:3] == ["store open", "store closed", f"left with {1 if fails else 0}"]
    errors = [line for line in told if line.get("protocols") or line.get("error")]
    assert errors[0]["protocols"] == "stuck"
    assert [line["error"] for line in errors[1:]] == (["the disk is gone"] if fails else [])


async def test_a_stop_that_comes_before_it_is_ready_is_heard(
    make_host: MakeHost, store: FakeStore, done: list[str]
) -> None:
    it = make_host()
    it.stop()
    await it.run()
    assert done[-1] == "store closed"


async def test_a_usual_admin_port_that_is_taken_costs_a_warning(make_host: MakeHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as told:
        usual = AdminSettings(port=taken.getsockname()[1])
        it = make_host(change=lambda config: attrs.evolve(config, admin=usual), log=get_logger())
        async with trio.open_nursery() as nursery:
            await nursery.start(it.run)
            assert (it.unready(), it.page) == (None, None)
            it.stop()
    assert any("the admin port is taken" in line["event"] for line in told)


@pytest.mark.parametrize(
    ("limit", "clients"), [(8192, 6144), (320, 240), (256, 176), (128, 48), (91, 11), (64, 7)]
)
def test_what_clients_may_use_leaves_the_server_what_it_needs(limit: int, clients: int) -> None:
    assert host.memory_for_clients(limit * MIB) // MIB == clients


@pytest.mark.parametrize(("limit", "warned"), [(91, 0), (90, 1)])
async def test_memory_that_is_too_short_is_said_at_the_start(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch, limit: int, warned: int
) -> None:
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: limit * MIB)
    with capture_logs() as told:
        it = make_host(log=get_logger())
        async with trio.open_nursery() as nursery:
            await nursery.start(it.run)
            it.stop()
    assert len([line for line in told if "memory is short" in line["event"]]) == warned


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (CorruptRecord("quiet/orders.log", 7), ExitCode.FAILED, "brokers fsck --repair --data-dir {}"),
        (StoreFull("not written: No space left"), ExitCode.DATA_FOLDER, "free some there and try again"),
    ],
)
async def test_a_protocol_whose_logs_cannot_be_opened_says_what_to_do(
    tmp_path: Path,
    make_host: MakeHost,
    store: FakeStore,
    done: list[str],
    error: StoreError,
    code: ExitCode,
    advice: str,
) -> None:
    async def cannot(_: Context, __: Any) -> Service:
        raise error

    it = make_host(plugin("quiet", open=cannot))
    with pytest.raises(ExceptionGroup) as raised:
        await it.run()
    found = raised.value.subgroup(Failure)
    assert found is not None
    refusal = found.exceptions[0]
    assert isinstance(refusal, Failure)
    assert refusal.code == code
    assert f"quiet cannot be opened: {error}" in str(refusal)
    assert advice.format(tmp_path / "data") in str(refusal)
    assert done[-1] == "store closed"


def keeps(name: str, kept: bool) -> Plugin:
    return plugin(name, keeps=lambda settings: kept and settings.port == 0, unrecorded=None)


async def test_a_last_sync_that_fails_is_told(make_host: MakeHost, store: FakeStore) -> None:
    store.close_error = StoreReadOnly("the last sync failed")
    it = make_host()
    it.stop()
    with pytest.raises(StoreReadOnly, match="the last sync failed"):
        await it.run()


async def test_a_protocol_that_cannot_be_opened_ends_the_start_and_closes_the_store(
    make_host: MakeHost, store: FakeStore, done: list[str]
) -> None:
    async def fail(_: Context, __: Any) -> Service:
        raise Failure("cannot")

    it = make_host(plugin("failing", open=fail))
    with pytest.raises(ExceptionGroup) as error:
        await it.run()
    assert error.group_contains(Failure, match="cannot")
    assert done == ["store open", "store closed"]


async def test_a_bug_in_the_store_ends_the_host_and_is_not_hidden(
    make_host: MakeHost, store: FakeStore, done: list[str]
) -> None:
    store.broken.set()
    with pytest.raises(ExceptionGroup) as error:
        await make_host().run()
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
    make_host: MakeHost, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.host.host.Recording", lambda *_: Recorded(done))
    it = make_host()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        nursery.cancel_scope.cancel()
    assert done[-3:] == ["service ended", "recording flushed", "store closed"]


async def test_it_is_ready_while_all_of_it_is(make_host: MakeHost, store: FakeStore, done: list[str]) -> None:
    crash, again = trio.Event(), trio.Event()

    class Crashing(Quiet):
        async def run(self) -> None:
            if crash.is_set():
                again.set()
                await super().run()
            await crash.wait()
            raise ZeroDivisionError

    async def open_crashing(_: Context, __: Any) -> Service:
        return Crashing(done)

    it = make_host(plugin("crashing", open=open_crashing))

    def ready() -> float:
        (found,) = (sample.value for sample in it.samples() if sample.name == "ready")
        return found

    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        assert ready() == 1
        crash.set()
        await trio.testing.wait_all_tasks_blocked()
        assert it.unready() == "restarting: crashing"
        assert ready() == 0
        await again.wait()
        assert ready() == 1
        store.read_only = StoreReadOnly("a sync failed: Input/output error")
        assert ready() == 0
        assert it.unready() == "the store is read-only: a sync failed: Input/output error"
        status: Mapping[str, Any] = it.status()
        assert (status["state"], status["reason"]) == ("not ready", it.unready())
        assert status["store"]["logs"] == 3
        it.stop()


async def test_a_backup_says_when_it_was_made(
    tmp_path: Path, make_host: MakeHost, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    async def copy(*asked: Any, now_ms: int) -> None:
        made.append((asked, now_ms))

    monkeypatch.setattr("brokers.host.host.backup_files", copy)
    it = make_host()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        await it.backup(tmp_path / "copy")
        it.stop()
    (((of, folder, target), now_ms),) = made
    assert (of, folder, target) == (store, tmp_path / "data", tmp_path / "copy")
    assert abs(now_ms / 1000 - time.time()) < 3600
