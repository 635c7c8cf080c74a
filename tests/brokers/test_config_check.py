"""`brokers config check` refuses what `serve` would refuse, and the file to begin with is in order."""

import json
import re
from pathlib import Path

import pytest

from brokers import plugins
from brokers.errors import ExitCode
from brokers.settings.config import OWN_SECTIONS, as_served
from brokers.settings.explaining import explained
from tests.brokers.conftest import Run
from tests.support.server import NotReadyError, Server


def settings(folder: Path, text: str) -> str:
    file = folder / "brokers.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"name": "jobs", "options": {"max_delivery": 3}}, "max_delivery"),
        ({"name": "jobs", "max_deliveries": 3}, "max_deliveries: unknown key"),
        ({"name": "", "options": {}}, "dms/"),
        ({"name": "jobs", "options": {"ttl_ms": "soon"}}, "ttl_ms"),
    ],
)
def test_definitions_that_serve_refuses_are_not_in_order(
    row: object, says: str, command: Run, tmp_path: Path
) -> None:
    document = tmp_path / "definitions.json"
    document.write_text(json.dumps({"queues": [{"protocol": "dms", **row}]}))  # type: ignore[dict-item]
    file = settings(tmp_path, f"[serve]\ndata_dir = '{tmp_path}/data'\ndefinitions = '{document}'\n")
    code, _, said = command("config", "check", file)
    assert code == ExitCode.CONFIGURATION
    assert said.startswith(f"brokers: serve.definitions: {document}: ")
    assert says in said
    assert not (tmp_path / "data").exists(), "it looks, and makes nothing"
    with pytest.raises(NotReadyError, match=says):
        Server(tmp_path, "--config", file).start()


def test_definitions_that_can_be_made_are_in_order(command: Run, tmp_path: Path) -> None:
    document = tmp_path / "definitions.json"
    queue = {"protocol": "dms", "name": "jobs", "options": {"max_deliveries": 3}}
    document.write_text(json.dumps({"queues": [queue], "users": [{"name": "ann", "allow": ["*:*:*"]}]}))
    file = settings(tmp_path, f"[serve]\ndata_dir = '{tmp_path}/data'\ndefinitions = '{document}'\n")
    assert command("config", "check", file)[0] == ExitCode.OK


@pytest.mark.parametrize(
    ("where", "says"),
    [("/proc/x", "No such file"), ("{here}/file", "Not a directory"), ("{here}/file/x", "Not a directory")],
)
def test_a_data_folder_that_cannot_be_is_told(where: str, says: str, command: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = where.format(here=tmp_path)
    file = settings(tmp_path, f"[serve]\ndata_dir = '{folder}'\n")
    code, _, said = command("config", "check", file)
    assert code == ExitCode.CONFIGURATION
    assert said.startswith(f"brokers: serve.data_dir: data folder {folder}: {says}")


def test_a_data_folder_of_a_newer_version_is_told(command: Run, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.stop()
    form = server.data / "FORMAT"
    form.write_text(form.read_text().replace("1", "99", 1))
    code, _, said = command("config", "check", settings(tmp_path, f"[serve]\ndata_dir = '{server.data}'\n"))
    assert code == ExitCode.CONFIGURATION
    assert "written by a newer version" in said


def test_ports_of_other_servers_are_left_out_when_asked(
    command: Run, tmp_path: Path, shared_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = shared_server.address("dms")
    text = f"[serve]\ndata_dir = '{tmp_path}/data'\n[dms]\nport = {port}\n"
    file = settings(tmp_path, text)
    monkeypatch.delenv("BROKERS_DMS_PORT")
    code, _, said = command("config", "check", file)
    assert code == ExitCode.CONFIGURATION
    assert said.startswith("brokers: dms.port: ")
    assert command("config", "check", file, "--no-ports")[0] == ExitCode.OK


def test_bridges_are_shown_and_explained(command: Run, tmp_path: Path) -> None:
    bridge = '[[bridge]]\nname = "hall"\nfrom = "pubsub:hall/*"\nto = "logmq:hall"\nrate = "10/s"\n'
    file = settings(tmp_path, bridge)
    code, out, _ = command("config", "show", file, "--json")
    shown = {row["setting"]: row for row in map(json.loads, out.splitlines())}
    assert code == ExitCode.OK
    assert shown["bridge.hall.from"] == {
        "setting": "bridge.hall.from",
        "value": "pubsub:hall/*",
        "source": file,
    }
    assert shown["bridge.hall.rate"]["value"] == "10/s"
    code, out, _ = command("config", "explain", "bridge")
    assert code == ExitCode.OK
    for key in ("name", "from", "to", "as", "start", "filter", "rate", "on_refused", "may_circle"):
        assert f"bridge.{key}" in out


def test_the_file_to_begin_with_has_every_setting_and_is_in_order_with_each_default_in_force(
    command: Run, tmp_path: Path
) -> None:
    code, out, _ = command("config", "explain", "--toml")
    assert code == ExitCode.OK
    assert command("config", "check", settings(tmp_path, out), "--no-ports")[0] == ExitCode.OK
    rows = explained({**OWN_SECTIONS, **{each.name: each.settings for each in plugins.load_all()[0]}})
    keys = {row.setting.rpartition(".")[2] for row in rows if not row.takes.startswith("table")}
    assert [key for key in keys if f"\n# {key} = " not in out and f"{key}]" not in out] == []
    # Without the comment signs of what has a default, it says what holds anyway.
    fixed = out.partition('# [dms.queues."*"]')[0]
    fixed = re.sub(r'^# (?=[a-z_]+ = (?!"\.\.\."))', "", fixed, flags=re.MULTILINE)
    before = as_served(None)
    after = as_served(Path(settings(tmp_path, fixed)))
    assert (after.net, after.storage, after.record) == (before.net, before.storage, before.record)
