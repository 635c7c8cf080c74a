"""`brokers definitions export` and `import`: what one server has, another gets."""

import json
from collections.abc import Callable
from pathlib import Path

from brokers.errors import ExitCode
from tests.brokers.asking import Api
from tests.brokers.conftest import Run
from tests.support.server import Server, speak


def test_what_is_exported_is_imported_and_then_the_same(
    command: Run, tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    one, other = new_server("--enable", "logmq").start(), new_server("--enable", "logmq").start()
    speak(one.address("logmq"), b"PRODUCE kept x\nCOMMIT late kept 0\nPRODUCE other x\nCOMMIT soon other 5\n")
    file, there = tmp_path / "definitions.json", ("--json", "--data-dir", str(other.data))
    assert command("definitions", "export", str(file), "--data-dir", str(one.data)) == (0, "", "")
    assert command("definitions", "export", "--data-dir", str(one.data))[1] == file.read_text()
    assert {row["name"] for row in json.loads(file.read_text())["topics"]} == {"kept", "other"}
    for words, made in ((("--dry-run",), 3), ((), 3), ((), 0)):
        code, out, _ = command("definitions", "import", str(file), *words, *there)
        assert (code, json.loads(out)["made"]) == (0, made)
    assert "kept" in command("topics", *there)[1]
    told = command("definitions", "import", str(file), "--data-dir", str(other.data))[1]
    assert told.splitlines()[-2:] == [
        "",
        "groups logmq/soon/other: its topic has no records here, so it begins where it is told to",
    ]
    assert not list(tmp_path.glob(".definitions*"))


def test_retention_and_bridges_of_the_data_folder_go_with_it(
    command: Run, tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    one, other = Api(new_server().start()), Api(new_server().start())
    bridge = {"name": "sensors", "from": "pubsub:home/*", "to": "logmq:readings", "filter": {"max_bytes": 9}}
    one.post("topics", {"name": "kept", "retention_seconds": 60, "retention_bytes": 0})
    assert "bridges" not in one.get("definitions")
    one.post("bridges", bridge)
    document = one.get("definitions")
    assert document["bridges"] == [bridge]
    assert document["topics"][0] == {
        "protocol": "logmq",
        "name": "kept",
        "durability": "always",
        "retention_bytes": 0,
        "retention_seconds": 60,
    }
    for query, made in (("?dry_run=1", 2), ("", 2), ("", 0)):
        assert other.post(f"definitions{query}", document)["made"] == made
    assert other.get("topics/kept")["retention_seconds"] == 60
    assert other.get("bridges/sensors")["to"] == "logmq:readings"
    for section, row, says in (
        ("bridges", {**bridge, "to": "logmq:others"}, "there is another bridge of that name here"),
        ("topics", {**document["topics"][0], "retention_seconds": 61}, "retention_seconds 60 here"),
    ):
        code, problem = other.ask("definitions", {section: [row]}, "POST")
        assert (code, says in problem["detail"]) == (409, True), problem


def test_what_is_no_document_or_no_file_is_a_line(
    command: Run, tmp_path: Path, shared_server: Server
) -> None:
    where = ("--data-dir", str(shared_server.data))
    file = tmp_path / "wrong.json"
    for text in ("", "[]", '{"nix": []}', "\x00"):
        file.write_text(text)
        code, _, said = command("definitions", "import", str(file), *where)
        assert (code, said.count("\n")) == (ExitCode.FAILED, 1), said
    assert command("definitions", "import", str(tmp_path / "nix"), *where)[0] == ExitCode.MISSING
    (tmp_path / "null").symlink_to("/dev/null")
    for words in (("import", "/dev/zero"), ("export", str(tmp_path / "null"))):
        code, _, said = command("definitions", *words, *where)
        assert code != 0
        assert said.startswith(f"brokers: {words[1]}: ")
    assert command("definitions", "export", str(tmp_path / "nix" / "x"), *where)[0] == ExitCode.FAILED
