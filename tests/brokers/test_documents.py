"""What the host's documents and helps say is so: commands, settings, exit codes, series, defaults."""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from brokers import plugins
from brokers.commands import control
from brokers.commands.cli import root, run
from brokers.errors import ExitCode
from brokers.settings.checking import checked
from brokers.settings.config import OWN_SECTIONS, load
from brokers.settings.structure import leaves, plain, written
from shared.errors import BrokerError
from tests.brokers.test_examples import examples
from tests.support.server import Server

TOP = Path(__file__).parent.parent.parent
PAGES = sorted((TOP / "brokers" / "docs").glob("*.md"))
OPERATING = "\n".join(path.read_text() for path in PAGES)
README = (TOP / "README.md").read_text()


def commands(line: str) -> Iterator[list[str]]:
    """The words of each `brokers ...` in a line of a shell; what is in quotes stands for itself."""
    line = re.sub(r"'[^']*'", "quoted", line.strip().removeprefix("$ "))
    for part in re.split(r"[|;&()]", line):
        said = re.match(r"(?:[A-Z_]+=\S+ )*brokers (.+)", re.split(r"\s[<>#]|\s\s", part.strip(" <"))[0])
        if said:
            yield shlex.split(said[1])


def mistakes(lines: Iterator[str]) -> Iterator[str]:
    app = root()
    for words in [words for line in lines for words in commands(line)]:
        if words[0].startswith("--"):
            continue
        try:
            app.parse_args(words, print_error=False, exit_on_error=False)
        except CycloptsError as error:
            yield f"{' '.join(words)}: {error}"


def test_every_example_under_a_help_is_a_command() -> None:
    lines = [line for _, line in examples(root(), "brokers") if line.startswith("    ")]
    assert sum(len(list(commands(line))) for line in lines) > 100
    assert list(mistakes(iter(lines))) == []


@pytest.mark.parametrize("text", [README, OPERATING])
def test_every_command_in_a_document_is_one(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    lines += [code for code in re.findall(r"`(brokers [^`\n]+)`", text) if "[" not in code]
    assert sum(len(list(commands(line))) for line in lines) > 10
    assert list(mistakes(iter(lines))) == []


def test_the_file_of_settings_in_the_document_can_be_read_and_shows_defaults(tmp_path: Path) -> None:
    file = tmp_path / "brokers.toml"
    file.write_text(OPERATING.partition("```toml\n")[2].partition("```")[0])
    working, _ = plugins.load_all()
    config = load(working, file=file, environ={})
    sections = {**{name: getattr(config, name) for name in OWN_SECTIONS}, **config.protocols}
    shown: dict[str, Any] = {}
    for name in tomllib.loads(file.read_text()):
        default = {
            written(key): (value, field) for key, value, field in leaves(type(sections[name])(), (name,))
        }
        for key, value, field in leaves(sections[name], (name,)):
            was, _ = default.get(written(key), (None, field))
            if value != was:
                shown[written(key)] = plain(value, field, human=False)
    assert shown == {
        "serve.enable": ["logmq"],
        "serve.data_dir": "/var/lib/brokers",
        "tls.certificate": str(tmp_path / "server.pem"),
        "tls.key": str(tmp_path / "server.key"),
        "tls.client_ca": str(tmp_path / "clients.pem"),
        "client.host": "broker.example",
        "client.ca": str(tmp_path / "authority.pem"),
        "record.protocols": ["pubsub", "kqmsgq"],
        **{key: value for key, value in shown.items() if key.startswith("logmq.topics.")},
    }, "all else in the example is as it would be without it"


def console(page: Path) -> list[tuple[str, str, str]]:
    """What a page shows of commands, as (words, "\\n", output)."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.DOTALL)
    return [each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.M)[1:]]


WITH_COMMANDS = [page for page in PAGES if console(page)]


def test_the_pages_that_show_commands_are_found() -> None:
    assert {page.stem for page in WITH_COMMANDS} == {"jobs", "operate"}


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_what_a_document_shows_of_commands_is_what_they_say(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The blocks of `$ brokers ...` and its output, on a server that has nothing else."""
    with Server(tmp_path) as server:
        monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", str(server.data))
        for name in plugins.names():
            monkeypatch.setenv(f"BROKERS_{name.upper()}_PORT", str(server.address(name)[1]))
        for words, _, said in console(page):
            run(shlex.split(words)[1:])
            told = capfdbinary.readouterr().out.decode()
            assert told.replace(str(server.data), "data") == said, words


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificates_in_the_document_are_those_that_its_file_names_wherever_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chapter = OPERATING.partition("## Beyond one machine")[2].partition("\n## ")[0]
    made = re.findall(r"^    (openssl (?:.*\\\n)*.*)$", chapter, re.M)
    assert len(made) == 2
    for command in made:
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    table = re.findall(r"^\[tls\](?:.*\n)+?\n", OPERATING, re.M)[0]
    file = tmp_path / "brokers.toml"
    file.write_text(f"[serve]\nhost = '0.0.0.0'\n[pubsub]\nallow = ['10.0.0.0/8']\n{table}")
    monkeypatch.chdir("/")
    checked(file, ports=False)
    sections = [line for line in file.read_text().splitlines() if not line.startswith("client_ca")]
    file.write_text("\n".join(sections))
    with pytest.raises(BrokerError, match="client_ca"):
        checked(file, ports=False)


def test_the_settings_for_jobs_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "brokers.toml"
    page = (TOP / "brokers" / "docs" / "jobs.md").read_text()
    file.write_text("\n".join(re.findall(r"^```toml\n(.*?)^```", page, re.M | re.DOTALL)))
    protocols = load(plugins.load_all()[0], file=file, environ={}).protocols
    assert len(protocols["dms"].for_queue("nightly").schedule.all) == 2
    assert str(protocols["dmp"].eta_header) == "celery*=eta"


def test_the_exit_codes_in_the_document_are_those_there_are() -> None:
    table = OPERATING.partition("| exit code | meaning |")[2].partition("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)] == sorted(ExitCode)


def test_the_series_in_the_document_are_told(shared_server: Server) -> None:
    named = set(re.findall(r"`(brokers_\w+)`", OPERATING.partition("## Metrics")[2].partition("\n## ")[0]))
    assert len(named) > 5
    told = control.request(shared_server.data, "GET", "/metrics")
    # Those by reason begin when there is one.
    source = "".join(path.read_text() for path in (TOP / "shared").rglob("*.py"))
    rare = tuple(re.findall(r'(?:counter_by\(\s*"\w+",|Sample\()\s*"(\w+_total)"', source))
    assert {"refused_total", "recorded_left_out_messages_total"} <= set(rare)
    assert [name for name in named if f"# TYPE {name} " not in told and not name.endswith(rare)] == []


def test_the_defaults_in_the_helps_are_those_of_the_settings() -> None:
    """`8080 unless set` of a protocol's own `serve`, and the ports that its clients take for its server's."""
    words = {"port": "port", "depth": "depth", "timeout": "consume_seconds"}
    seen = 0
    for plugin in plugins.load_all()[0]:
        settings = plugin.settings()
        app = root([plugin.name])[plugin.name]
        for name, argument in _arguments(app):
            said = re.search(r"\(?([\d.]+) unless set", argument.parameter.help or "")
            if said and argument.names[0].removeprefix("--") in words:
                key = words[argument.names[0].removeprefix("--")]
                assert float(said[1]) == getattr(settings, key), (plugin.name, name, key)
                seen += 1
    assert seen > 15


def _arguments(app: App) -> Iterator[tuple[str, Any]]:
    for name in app:
        if not name.startswith("-"):
            for argument in app[name].assemble_argument_collection():
                if argument.names:
                    yield name, argument
