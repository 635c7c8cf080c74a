"""A protocol's command that asks the API where no server runs: the folder is opened, asked, and let go."""

import json
from pathlib import Path

import attrs
import pytest

from brokers.commands import server
from brokers.commands.cli import run
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from shared.cli.objects import listed
from shared.errors import StoreInUse
from shared.storage.lock import FolderLock
from tests.support.server import Server, speak

pytestmark = pytest.mark.usefixtures("small_journal")


def groups(folder: Path, *, offline: bool = True) -> object:
    request = listed("groups", "logmq", offline=offline, topic="t")
    found = server.ask(attrs.evolve(request, server=ServerAddress(data_dir=folder)))
    return [{name: row[name] for name in ("group", "topic", "offset", "lag_bytes")} for row in found.rows]


def test_the_same_answer_from_the_server_and_from_its_folder(tmp_path: Path) -> None:
    with Server(tmp_path, "--enable", "logmq") as server:
        speak(server.address("logmq"), b"PRODUCE t one\nCOMMIT g t 7\n")
        told = groups(server.data)
        assert server.stop() == 0
    assert told == [{"group": "g", "topic": "t", "offset": 7, "lag_bytes": 0}]
    assert groups(server.data) == told
    assert groups(server.data) == told, "the folder was let go"
    with pytest.raises(Failure) as refused:
        groups(server.data, offline=False)
    assert refused.value.code == ExitCode.UNAVAILABLE


def test_a_protocols_own_folder_counts_where_the_usual_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKERS_SERVE_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("b.toml").write_text("[serve]\nlog_level = 'debug'")
    request = listed("queues", "dms", offline=True)
    address = ServerAddress(config=Path("b.toml"))
    for asked in (attrs.evolve(request, server=each) for each in (ServerAddress(), address)):
        with pytest.raises(Failure, match="the data folder data "):
            server.ask(asked)
    for folder in ("dms_data", "data"):  # where both are there it may be either: the host's counts
        Path(folder).mkdir()
        server.ask(attrs.evolve(request, server=address))
        assert Path(folder, "FORMAT").exists()


def test_the_settings_of_a_file_hold_where_no_server_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "orders.dmsq").write_bytes(bytes(4))  # no message is in it
    file = tmp_path / "brokers.toml"
    file.write_text(
        f"[serve]\ndata_dir = '{tmp_path}/data'\n[storage]\nsegment_bytes = '64KiB'\n"
        "[dms.queues.'ord*']\ndepth = 7"
    )
    told = ["--config", str(file), "--json"]
    assert run(["dms", "import", str(tmp_path / "orders.dmsq"), *told]) == ExitCode.OK
    capsys.readouterr()
    assert run(["dms", "queues", *told]) == ExitCode.OK
    (row,) = capsys.readouterr().out.splitlines()
    found = json.loads(row)
    assert (found["name"], found["settings"]["depth_limit"]) == ("orders", 7)


def test_a_file_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="no server is running on the data folder"):
        groups(tmp_path / "file")


@pytest.mark.parametrize("words", [["dms", "queues"], ["fsck", "--repair"]])
def test_a_file_of_a_folder_that_cannot_be_opened_is_named_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "data" / "LOCK").mkdir(parents=True)
    (tmp_path / "data" / "FORMAT").write_bytes(b"brokers data folder, format 1\n")
    assert run([*words, "--data-dir", str(tmp_path / "data")]) == ExitCode.DATA_FOLDER
    said = capsys.readouterr().err
    assert said.startswith(f"brokers: data folder {tmp_path}/data/LOCK: ")
    assert said.count("\n") == 1


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Failure) as refused:
        groups(tmp_path / "elsewhere")
    assert refused.value.code == ExitCode.UNAVAILABLE
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path)
    try:
        with pytest.raises(StoreInUse):
            groups(tmp_path)
    finally:
        lock.release()


def test_an_action_on_a_folder_is_refused_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    assert run(["dms", "purge", "none", "-D", str(tmp_path / "data")]) == ExitCode.MISSING
    assert capsys.readouterr().err == "brokers: there is no queue none in dms\n"


@pytest.mark.parametrize(("severity", "code"), [("damage", ExitCode.FAILED), ("note", ExitCode.OK)])
def test_a_copy_with_damage_in_it_is_told_by_its_exit_code(severity: str, code: ExitCode) -> None:
    check = {"logs": 1, "records": 2, "findings": [{"severity": severity}]}
    outcome = server.copied({"bytes": 3, "check": check}, True)
    assert outcome.code == code
    assert outcome.shown["damaged"] is (severity == "damage")
    changed = server.copied({"bytes": 3, "check": check, "changed": ["a is gone"]}, True)
    assert changed.code == ExitCode.FAILED
    assert changed.shown["changed"] == ["a is gone"]
