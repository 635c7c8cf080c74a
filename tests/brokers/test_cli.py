"""The command line: what it shows, how it ends, and what it does not import."""

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from cyclopts import App
from trio.testing import MockClock

from brokers.__main__ import buffer_standard_output
from brokers.commands.catalog import REMOVED
from brokers.commands.cli import root, run, stream
from brokers.commands.render import Output
from brokers.errors import ExitCode
from shared.errors import BrokerError
from shared.plugin import ApiRequest
from tests.support.installed import install, plugin
from tests.support.server import begun

HEAVY = ("starlette", "hypercorn", "prometheus_client")


def commands() -> App:
    """The commands of a protocol called `thing`."""
    app = App(name="thing", help="Things.")

    @app.command
    def rows(*, json: bool = False) -> list[dict[str, Any]]:
        return [{"name": "a", "size": 1}, {"name": "b", "size": 20}]

    @app.command
    async def named(name: str) -> None:
        name.encode()

    @app.command
    async def later() -> str:
        await trio.lowlevel.checkpoint()
        return "done"

    @app.command
    async def stream(*, json: bool = False) -> AsyncIterator[dict[str, int]]:
        for number in range(2):
            yield {"number": number}

    @app.command
    async def refuse() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refuse)

    @app.command
    def ask() -> ApiRequest:
        return ApiRequest(lambda api: api.get("queues"))

    @app.command
    async def connect() -> None:
        with trio.socket.socket() as listener:
            await listener.bind(("127.0.0.1", 0))
            await trio.open_tcp_stream(*listener.getsockname())

    @app.command
    async def interrupted() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_interrupt)

    @app.command
    def crash() -> None:
        raise KeyError("a bug")

    return app


async def _refuse() -> None:
    raise BrokerError("no such thing\nat \x1b[2Jall")


async def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _thing(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"plugin": plugin("thing"), "app": commands()}
    install(monkeypatch, {"thing": contents, "bad": ImportError("its library is missing")})
    monkeypatch.setattr(sys, "argv", ["brokers"])


Said = pytest.CaptureFixture[str]


def test_a_protocols_rows_are_shown_by_the_host(capsys: Said) -> None:
    assert run(["thing", "rows"]) == 0
    assert capsys.readouterr().out == "name  size\na        1\nb       20\n"
    assert run(["thing", "rows", "--json"]) == 0
    assert [json.loads(line)["size"] for line in capsys.readouterr().out.splitlines()] == [1, 20]


def test_a_protocols_verbs_may_be_async_and_may_stream(capsys: Said) -> None:
    assert run(["thing", "later"]) == 0
    assert run(["thing", "stream", "--json"]) == 0
    assert capsys.readouterr().out == 'done\n{"number": 0}\n{"number": 1}\n'


def test_a_refusal_is_told_in_words_and_not_as_a_traceback(capsys: Said) -> None:
    assert run(["thing", "refuse"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "brokers: no such thing\nbrokers: at \\x1b[2Jall\n"


def test_an_interrupt_ends_a_verb_quietly(capsys: Said) -> None:
    assert run(["thing", "interrupted"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_verb_whose_server_is_not_there_says_so(capsys: Said) -> None:
    assert run(["thing", "connect"]) == ExitCode.UNAVAILABLE
    said = capsys.readouterr().err
    assert said.startswith("brokers: ")
    assert "Traceback" not in said


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        run(["thing", "crash"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sreve"], 'Did you mean "serve"?'),
        (["serve", "--prot", "a=1"], "Did you mean --port?"),
        (["serve", "--log-level", "loud"], '"debug", "info", "warning", "error"'),
        (["serve", "--port", "logmq"], "'logmq' is not PROTOCOL=PORT"),
        (["serve", "--enable", "thin"], "did you mean thing?"),
        (["serve", "--port", "thin=1"], "did you mean thing?"),
        (["serve", "--port", "thing=many"], "thing.port: 'many' is not a number"),
        (["serve", "--durability", "sometimes"], "serve.durability: "),
        (["serve", "--data-dir", ""], "a path is needed"),
        (["serve", "--ready-file", ""], "a path is needed"),
        (["status", "--data-dir", ""], "a path is needed"),
        (["backup", ""], "a path is needed"),
        (["restore", ""], "a path is needed"),
        (["pipeline", "archive", "", "--path", "data"], "FOLDER: say where the archive is, or --table"),
        (["pipeline", "archived", ""], "a path is needed"),
        (["pipeline", "report", "data", "--to", ""], "a path is needed"),
        (["thing", "ask", "--data-dir", ""], "a path is needed"),
        (["log", "dump", "logmq"], "log dump: --name is missing"),
    ],
)
def test_a_mistake_in_the_command_is_one_line_and_exit_2(capsys: Said, words: list[str], says: str) -> None:
    assert run(words) == ExitCode.USAGE
    said = capsys.readouterr().err.removeprefix(
        "brokers: protocol 'bad' of bad_plugin:plugin cannot be used: ImportError: its library is missing\n"
    )
    assert said.startswith("brokers: ")
    assert said.count("\n") == 1
    assert says in said


def test_an_argument_that_is_not_utf_8_is_one_line_and_exit_2(capsys: Said) -> None:
    assert run(["thing", "named", os.fsdecode(b"a\xff")]) == ExitCode.USAGE
    assert capsys.readouterr().err.endswith("brokers: a\\xff is not UTF-8\n")


def test_every_verb_has_help_with_examples(capsys: Said) -> None:
    own = root(["thing"])
    pages = [[]]
    for name in own:
        if name.startswith("-") or name in ("bad", "thing"):
            continue
        pages.append([name])
        pages += [[name, below] for below in own[name] if not below.startswith("-")]
    for page in pages:
        assert run([*page, "--help"]) == 0
        text = capsys.readouterr().out
        assert "Usage: brokers" in text
        assert " ".join(["brokers", *page]) in text.partition("Examples:")[2], page
        assert all(len(line) <= 80 for line in text.splitlines()), page
        assert "[default: (" not in " ".join(text.split()), page


def test_a_command_that_is_called_shows_all_of_its_own_help() -> None:
    called = [sys.executable, "-m", "brokers", "trace", "--help"]
    assert "50 a second at most" in subprocess.run(called, capture_output=True, text=True, check=True).stdout


def test_completion_knows_every_protocols_commands(capsys: Said) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(word in script for word in ("serve", "thing", "stream", "--ready-file")), shell


def test_the_version_is_that_of_the_package(capsys: Said) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == importlib.metadata.version("brokers")


def test_settings_can_be_checked_and_shown(tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[thing]\nport = 5")
    assert run(["config", "check", "--config", str(file)]) == 0
    assert "in order" in capsys.readouterr().out
    assert run(["config", "show", "--config", str(file), "--json"]) == 0
    shown = {line["setting"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert shown["thing.port"] == {"setting": "thing.port", "value": 5, "source": str(file)}
    file.write_text("[thing]\nprot = 5\n[serve]\nhost = 5")
    assert run(["config", "check", "--config", str(file)]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert "thing.prot: unknown key; did you mean thing.port?" in said
    assert "serve.host: expected text, got 5" in said


@pytest.mark.parametrize("words", [["status"], ["metrics"], ["thing", "ask"]])
def test_a_verb_that_needs_a_server_says_that_none_runs(
    tmp_path: Path, capsys: Said, words: list[str]
) -> None:
    assert run([*words, "--data-dir", str(tmp_path)]) == ExitCode.UNAVAILABLE
    assert "no server is running" in capsys.readouterr().err


def test_a_verb_finds_the_data_folder_as_serving_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[serve]\ndata_dir = '/from/file'")
    monkeypatch.setenv("BROKERS_CONFIG", str(file))
    run(["status"])
    monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", "/from/environment")
    run(["status"])
    run(["status", "--data-dir", "/from/flag"])
    lines = capsys.readouterr().err.splitlines()
    assert ["/from/file" in lines[0], "/from/environment" in lines[1], "/from/flag" in lines[2]] == [True] * 3
    monkeypatch.delenv("BROKERS_SERVE_DATA_DIR")
    file.write_text("[serve]\ndata_dir = 'beside'")
    run(["status"])
    assert str(tmp_path / "beside") in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["log", "ls"], ["fsck"], ["thing", "ask"]])
def test_a_file_of_settings_is_named_to_every_verb_as_to_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, words: list[str]
) -> None:
    file, other = tmp_path / "b.toml", tmp_path / "other.toml"
    file.write_text("[serve]\ndata_dir = '/from/file'")
    other.write_text("[serve]\ndata_dir = '/from/other'")
    monkeypatch.setenv("BROKERS_CONFIG", str(other))
    assert run([*words, "--config", str(file)]) in (ExitCode.UNAVAILABLE, ExitCode.DATA_FOLDER)
    assert "/from/file" in capsys.readouterr().err
    assert run([*words, "--config", str(tmp_path / "none.toml")]) == ExitCode.CONFIGURATION
    said = capsys.readouterr().err
    assert said == f"brokers: {tmp_path}/none.toml: No such file or directory (--config)\n"


def imported_by(*words: str) -> set[str]:
    """The modules that a command imports, in a process of its own."""
    script = (
        "import sys; from brokers.commands.cli import run\n"
        "try: run(sys.argv[1:])\n"
        "finally: print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    return set(done.stderr.split())


def test_showing_help_imports_no_loop_and_no_protocol() -> None:
    imported = imported_by("--help")
    assert "cyclopts" in imported
    assert imported.isdisjoint({*HEAVY, "trio", "cattrs", "structlog", "logmq.plugin", "shared.plugin"})


def test_a_protocols_client_imports_nothing_that_only_a_server_needs() -> None:
    imported = imported_by("logmq", "produce", "--help")
    assert {"logmq.plugin", "logmq.client"} <= imported
    assert imported.isdisjoint({*HEAVY, "cattrs", "structlog", "shared.storage.store", "logmq.session"})


def test_a_reader_that_leaves_early_gets_no_complaint() -> None:
    with begun("config", "show") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == 128 + 13
    assert said == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is Linux's")
def test_output_that_a_full_disk_does_not_take_is_one_line_and_a_failure() -> None:
    with open("/dev/full", "w") as full, begun("--version", stdout=full) as process:
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (1, b"brokers: No space left on device\n")


def test_a_reader_that_leaves_in_the_middle_is_noticed_where_python_does_not_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    unbuffered = io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True)
    with unbuffered:
        monkeypatch.setattr(sys, "stdout", unbuffered)
        buffer_standard_output()
        leaving = threading.Thread(target=lambda: (os.read(reader, 1), os.close(reader)))
        leaving.start()
        with pytest.raises(BrokenPipeError):
            Output().show(b"x" * 4_000_000)
        leaving.join()
        with suppress(BrokenPipeError):
            sys.stdout.close()


def test_a_verb_that_waits_ends_when_its_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()

    async def rows() -> AsyncIterator[str]:
        yield "one"
        os.close(reader)
        await trio.sleep_forever()

    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(BaseExceptionGroup) as ended:
            trio.run(stream, rows(), Output(stdout), clock=MockClock(autojump_threshold=0))
    assert ended.group_contains(BrokenPipeError)


def test_an_interrupt_before_anything_is_imported_is_no_traceback() -> None:
    script = (
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'brokers.commands.catalog': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from brokers.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


@pytest.mark.parametrize("name", REMOVED)
def test_a_command_that_was_removed_says_what_to_use_instead(capsys: Said, name: str) -> None:
    assert run([*name.split(), "--anything"]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.err == f"brokers: {name}: this command was removed; use {REMOVED[name]}\n"
    assert said.out == ""
