"""Reload: read and check first, then apply; all or nothing; what takes a restart is named."""

import io
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from brokers import plugins
from brokers.errors import Failure, InvalidSettings
from brokers.host import logs
from brokers.settings import reloading
from brokers.settings.config import Config, load
from brokers.settings.reloading import Apply, PartlyReloaded, Reloader
from shared.net.settings import TlsSettings
from shared.net.tls import ServerTls
from tests.support.installed import quiet_log

WORKING, _ = plugins.load_working()


class Reloadable:
    """Takes up the number of LogMQ's topics; `refuses`: with which error it does not."""

    def __init__(self, config: Config, files: Iterable[Path] = ()) -> None:
        self.has = config.protocols["logmq"].topics_max
        self.files = list(files)
        self.refuses: str | None = None
        self.times = 0
        self._tell, self.told = trio.open_memory_channel[str](100)

    async def prepare(self, config: Config) -> Apply:
        if self.refuses is not None:
            self._tell.send_nowait("refused")
            raise Failure(self.refuses)

        async def apply() -> None:
            self.has = config.protocols["logmq"].topics_max
            self.times += 1
            self._tell.send_nowait("applied")

        return apply

    def watched(self, config: Config) -> Iterable[Path]:
        return self.files


Write = Callable[[str], int]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "brokers.toml"
    path.touch()
    return path


@pytest.fixture
def write(file: Path) -> Write:
    return file.write_text


@pytest.fixture
def read(file: Path) -> Callable[[], Config]:
    return lambda: load(WORKING, file=file, environ={})


def _reloader(
    read: Callable[[], Config], *files: Path, log: Any = None
) -> tuple[Reloader, Reloadable, Reloadable]:
    config = read()
    reloader = Reloader(config, {"logmq": True, "kqmsgq": False}, log or quiet_log(), read)
    services = Reloadable(config, files), Reloadable(config)
    for service in services:
        reloader.register(service.prepare, service.watched)
    return reloader, *services


def _replace(path: Path, text: str) -> None:
    near = path.with_name("near")
    near.write_text(text)
    near.replace(path)


async def test_what_changed_is_taken_up_by_every_part_and_named(
    write: Write, read: Callable[[], Config]
) -> None:
    reloader, one, two = _reloader(read)
    write(
        "[logmq]\ntopics_max = 7\nport = 9\nmessage_bytes_max = 5\n[logmq.topics.'a*']\nretention_ms = 1\n"
        "[storage]\ncache_bytes = 1\n[kqmsgq]\nname_bytes_max = 1\n[kqmsgq.access]\nrequired = 'never'\n"
        "[client]\ntls = true\n[dms]\nport = 1\n"
    )
    found = await reloader.reload()
    assert (one.has, two.has) == (7, 7)
    assert set(found.changed) == {
        "logmq.topics_max",
        "logmq.message_bytes_max",
        "logmq.topics",
        "kqmsgq.access.required",
    }
    assert found.restart == ["storage.cache_bytes", "kqmsgq.name_bytes_max", "logmq.port"]
    assert reloader.config.protocols["logmq"].port == 8080
    # What takes a restart is named until there is one.
    again = await reloader.reload()
    assert (again.changed, again.restart) == ([], found.restart)


@pytest.mark.parametrize(
    "wrong", ["topics_max = 'x'", "topics_max = 7\n[logmq", "topics_max = 7\n[tls]\ncertificate = 'none.pem'"]
)
async def test_settings_that_do_not_check_change_nothing(
    wrong: str, write: Write, read: Callable[[], Config]
) -> None:
    reloader, one, _ = _reloader(read)
    write(f"[logmq]\n{wrong}")
    with pytest.raises(InvalidSettings):
        await reloader.reload()
    assert (one.has, one.times) == (100_000, 0)


async def test_settings_that_are_right_but_not_with_what_takes_a_restart_change_nothing(
    write: Write, read: Callable[[], Config]
) -> None:
    write("[serve]\nhost = '0.0.0.0'\ninsecure = true\n[pubsub]\nallow = ['127.0.0.1']")
    reloader, one, _ = _reloader(read)
    write("[logmq]\ntopics_max = 7\n")  # would be right on loopback, and is still bound elsewhere
    with pytest.raises(InvalidSettings, match="can be reached from other machines"):
        await reloader.reload()
    assert one.times == 0


async def test_a_read_that_does_not_end_keeps_no_server_from_its_end(
    file: Path, read: Callable[[], Config]
) -> None:
    reloader, _, _ = _reloader(read)
    pipe = file.with_name("pipe")
    os.mkfifo(pipe)
    os.replace(pipe, file)
    scope = trio.CancelScope()

    async def reload() -> None:
        with scope:
            await reloader.reload()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload)
        descriptor = await trio.to_thread.run_sync(os.open, file, os.O_WRONLY)  # returns once it is read
        scope.cancel()
        await wait_all_tasks_blocked()
        left = len(nursery.child_tasks)
        os.close(descriptor)
    assert left == 0


async def test_where_one_part_refuses_no_part_changes_anything(
    write: Write, read: Callable[[], Config]
) -> None:
    reloader, one, two = _reloader(read)
    write("[logmq]\ntopics_max = 7")
    two.refuses = "no"
    with pytest.raises(Failure, match="no"):
        await reloader.reload()
    assert (one.times, reloader.config.protocols["logmq"].topics_max) == (0, 100_000)
    two.refuses = None
    assert (await reloader.reload()).changed == ["logmq.topics_max"]


async def test_a_bug_in_a_part_refuses_the_reload_and_the_server_goes_on(
    write: Write, read: Callable[[], Config]
) -> None:
    said = io.StringIO()
    reloader, one, _ = _reloader(read, log=logs.configure("error", "text", said))

    async def broken(config: Config) -> Apply:
        raise ZeroDivisionError("a plugin's own")

    reloader.register(broken)
    write("[logmq]\ntopics_max = 7")
    with pytest.raises(Failure, match="a plugin's own"):
        await reloader.reload()
    assert (one.times, reloader.config.protocols["logmq"].topics_max) == (0, 100_000)
    assert "a reload met a bug" in said.getvalue()


async def test_a_bug_where_changes_are_applied_keeps_none_of_the_others_and_ends_no_look_at_files(
    write: Write, read: Callable[[], Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    reloader, one, _ = _reloader(read, log=logs.configure("error", "text", said))
    watched = tmp_path / "watched"
    watched.touch()

    looked = trio.Event()

    async def prepare(config: Config) -> Apply:
        async def broken() -> None:
            if watched.read_text():
                looked.set()
            raise ZeroDivisionError("a plugin's own")

        return broken

    reloader.register(prepare, lambda config: [watched])
    late = Reloadable(reloader.config)
    reloader.register(late.prepare)
    write("[logmq]\ntopics_max = 7")
    with pytest.raises(PartlyReloaded, match=r"in part.*a plugin's own"):
        await reloader.reload()
    assert (one.has, late.has, reloader.config.protocols["logmq"].topics_max) == (7, 7, 7)
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.01)
    _replace(watched, "x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reloader.run)
        with trio.fail_after(5):
            await looked.wait()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert said.getvalue().count("a reload met a bug") == 2


async def test_a_watched_file_that_changes_is_taken_up_by_its_part_alone_under_the_settings_that_hold(
    write: Write, read: Callable[[], Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "LOOK_SECONDS", 0.01)
    watched = tmp_path / "server.pem"
    _replace(watched, "old")
    said = io.StringIO()
    reloader, one, two = _reloader(read, watched, log=logs.configure("error", "text", said))
    write("[logmq]\ntopics_max = 7")  # half edited, perhaps: nobody has asked for it

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reloader.run)
        one.refuses = "no certificate"
        _replace(watched, "broken")
        for _ in range(2):
            assert await one.told.receive() == "refused"
        assert "cannot be used" in said.getvalue()
        one.refuses = None
        while await one.told.receive() != "applied":
            pass
        nursery.cancel_scope.cancel()
    assert (one.times, two.times, one.has) == (1, 0, 100_000)


@pytest.mark.parametrize("year", [2031, 2055])  # UTCTime, GeneralizedTime
def test_the_end_of_a_certificate_is_known(year: int, tmp_path: Path) -> None:
    ends = datetime(year, 3, 2, 10, 20, 30, tzinfo=UTC)
    made: Any = trustme.CA().issue_cert("localhost", not_after=ends)
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    tls = ServerTls.load(TlsSettings(certificate=tmp_path / "server.pem"))
    assert tls is not None
    assert tls.ends == ends.timestamp()
    assert tls.sample("logmq", ends.timestamp() - 2 * 86_400).value == 2
