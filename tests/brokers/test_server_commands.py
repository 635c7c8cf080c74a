"""A protocol's command that asks the API, where no server runs, and the folder that it means."""

from pathlib import Path

import pytest

from brokers.commands import server
from brokers.commands.cli import run
from brokers.errors import ExitCode


def test_a_protocols_own_folder_counts_where_the_usual_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BROKERS_SERVE_DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    for made, meant in ((".", "data"), ("dms_data", "dms_data"), ("data", "data")):
        Path(made).mkdir(exist_ok=True)
        assert run(["dms", "queues"]) == ExitCode.UNAVAILABLE
        assert f"no server is running on the data folder {meant} " in capsys.readouterr().err
        assert not list(Path(made).glob("FORMAT")), "a folder is not opened"


def test_a_file_of_a_folder_that_cannot_be_opened_is_named_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "LOCK").mkdir(parents=True)
    (tmp_path / "data" / "FORMAT").write_bytes(b"brokers data folder, format 1\n")
    assert run(["fsck", "--repair", "--data-dir", str(tmp_path / "data")]) == ExitCode.DATA_FOLDER
    said = capsys.readouterr().err
    assert said.startswith(f"brokers: data folder {tmp_path}/data/LOCK: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("severity", "code"), [("damage", ExitCode.FAILED), ("note", ExitCode.OK)])
def test_a_copy_with_damage_in_it_is_told_by_its_exit_code(severity: str, code: ExitCode) -> None:
    check = {"logs": 1, "records": 2, "findings": [{"severity": severity}]}
    outcome = server.copied({"bytes": 3, "check": check}, True)
    assert outcome.code == code
    assert outcome.shown["damaged"] is (severity == "damage")
    changed = server.copied({"bytes": 3, "check": check, "changed": ["a is gone"]}, True)
    assert changed.code == ExitCode.FAILED
    assert changed.shown["changed"] == ["a is gone"]
