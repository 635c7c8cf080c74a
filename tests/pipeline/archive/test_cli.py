"""`brokers pipeline archive`, as far as it goes without Spark: what it refuses, and what it says."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokers.commands.render import CommandResult
from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import cli, names
from brokers.pipeline.archiving.cli import archive, archived, until_told
from brokers.pipeline.archiving.folder import ArchiveFolder
from brokers.pipeline.archiving.places import FolderPlace
from brokers.pipeline.reading import ReadOptions
from shared.errors import BrokerError, ConfigError, UsageError
from tests.pipeline.archive.model import Archiver
from tests.support.folders import fill
from tests.support.server import run_here


def test_it_wants_one_kind_of_place_and_settings_that_are_some(tmp_path: Path) -> None:
    one = (str(tmp_path),)
    for path, reading, trigger, text in (
        ((), ReadOptions(), 1.0, "either data folders"),
        (("x",), ReadOptions(servers="y"), 1.0, "either data folders"),
        (one, ReadOptions(conf=("spark.executor.memory",)), 1.0, "not KEY=VALUE"),
        (one, ReadOptions(option=("startingOffsets=latest",)), 1.0, "set by the command itself"),
        (one, ReadOptions(), -1.0, "--trigger: it is 0.01 at least"),
        (one, ReadOptions(master="spark:7077"), 1.0, "--master: not local"),
        (one, ReadOptions(option=("verifyCrk=true",)), 1.0, "did you mean verifyCrc"),
    ):
        with pytest.raises((UsageError, ConfigError), match=text):
            archive(tmp_path / "archive", path=path, reading=reading, trigger=trigger)


def test_a_topic_that_is_not_there_is_missed_when_it_is_to_be_archived_once(tmp_path: Path) -> None:
    fill(tmp_path / "data", {("logmq", "orders"): [b"x"]})
    with pytest.raises(BrokerError, match="there is no topic bills"):
        archive(tmp_path / "archive", path=(str(tmp_path / "data"),), topics="orders,bills", once=True)


@pytest.mark.parametrize("once", [False, True])
def test_a_data_folder_that_is_not_there_is_told_before_spark_starts(tmp_path: Path, once: bool) -> None:
    with pytest.raises(Failure, match="there is no folder") as caught:
        archive(tmp_path / "archive", path=(str(tmp_path / "data"),), once=once)
    assert caught.value.code == ExitCode.DATA_FOLDER
    assert not (tmp_path / "archive").exists()


def test_the_second_archiver_ends_at_once_before_spark_starts(tmp_path: Path) -> None:
    fill(tmp_path / "data", {("logmq", "orders"): [b"x"]})
    folder = tmp_path / "archive"
    (folder / names.HIDDEN).mkdir(parents=True)
    with (folder / names.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_here("pipeline", "archive", str(folder), "--path", str(tmp_path / "data"))
    assert done.returncode == 73
    assert "another archiver" in done.stderr
    assert "Spark" not in done.stderr


def test_the_first_signal_ends_it_behind_its_round_and_the_second_at_once() -> None:
    """A round on a cluster without workers lasts until there are some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = threading.Event()

    def both() -> None:
        with until_told(stop, signal.SIGTERM), until_told(stop, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_set()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        both()
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_signal_that_comes_while_spark_starts_ends_it_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It killed the process: its exit code was the signal's, and nothing was closed."""

    @contextmanager
    def starting(*_: object, **__: object) -> Iterator[None]:
        signal.raise_signal(signal.SIGTERM)
        yield

    monkeypatch.setattr(cli, "spark_for", starting)
    fill(tmp_path / "data", {("logmq", "orders"): [b"x"]})
    done = archive(tmp_path / "archive", path=(str(tmp_path / "data"),))
    assert isinstance(done, Mapping)
    assert (done["records"], done["commits"]) == (0, 0)


def test_archived_shows_what_is_there_and_fails_where_a_file_is_not(tmp_path: Path) -> None:
    files = FolderPlace(tmp_path)
    Archiver(files, run=1).go()
    rows = archived(tmp_path)
    assert not isinstance(rows, CommandResult)
    assert [(row["topic"], row["records"], row["end"]) for row in rows] == [
        ("orders", 13, 130),
        ("a=b/c", 9, 90),
    ]
    next(tmp_path.glob("topic=orders/*/*.parquet")).unlink()
    wrong = archived(tmp_path)
    assert isinstance(wrong, CommandResult)
    assert wrong.code == 1


def test_real_files_are_as_the_fake_ones(tmp_path: Path) -> None:
    files = FolderPlace(tmp_path)
    Archiver(files, run=1).go()
    (tmp_path / names.FRESH / "topic=orders" / "date=2026-01-01" / "x.part").touch()
    folder = ArchiveFolder(files, "logmq")
    folder.recover()
    assert not list(tmp_path.rglob("*.part"))
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.stat().st_size] == []
