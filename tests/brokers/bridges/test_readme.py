"""The six examples of the page: one file of settings, and what its commands say."""

import re
import shlex
from pathlib import Path

import pytest

from brokers import plugins
from brokers.commands.cli import run
from tests.brokers.test_documents import mistakes
from tests.support.server import Server, until

PAGE = (Path(__file__).parents[3] / "brokers" / "bridges" / "README.md").read_text()
EXAMPLES = PAGE.partition("## Six examples")[2]


def _alike(said: str) -> str:
    """Without what differs from run to run: a time, a sender's port, a mark."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z|127\.0\.0\.1:\d+|[0-9a-f]{32}", "…", said)


def test_the_examples_are_what_a_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    settings = tmp_path / "brokers.toml"
    settings.write_text("\n".join(re.findall(r"^```toml\n(.*?)^```", EXAMPLES, re.M | re.DOTALL)))
    blocks = re.findall(r"^```console\n(.*?)^```", EXAMPLES, re.M | re.DOTALL)
    shown = [each.partition("\n") for block in blocks for each in re.split(r"^\$ ", block, flags=re.M)[1:]]
    assert len(shown) > 15

    def said(words: str) -> str:
        run(shlex.split(words)[1:])
        return _alike(capfdbinary.readouterr().out.decode())

    (tmp_path / "test").mkdir()
    test_server = Server(tmp_path / "test", "--enable", "pubsub", "--port", "pubsub=0")
    with Server(tmp_path, "--config", str(settings)) as server, test_server:
        monkeypatch.setenv("HOME", str(tmp_path))  # where contexts are
        said(f"brokers context add test --data-dir {test_server.data}")
        monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", str(server.data))
        for name in plugins.names():
            monkeypatch.setenv(f"BROKERS_{name.upper()}_PORT", str(server.address(name)[1]))
        for words, _, told in shown:
            if words.startswith(("brokers bridge list", "brokers replay")):  # what the disk has by then
                until(lambda words=words, told=told: said(words) == _alike(told))  # type: ignore[misc]
            else:
                assert said(words) == _alike(told), words


def test_every_command_on_the_page_is_one() -> None:
    assert list(mistakes(iter(re.findall(r"^\$ (brokers .+)", PAGE, re.M)))) == []
