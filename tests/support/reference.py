"""`make reference`: the pages of brokers/docs/reference, from the code.

Each page is what the code says of itself: settings (`brokers config explain`), commands (their helps),
metrics (a server's `# HELP` lines), and the API (its OpenAPI document).
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from brokers.commands import control
from brokers.commands.cli import root
from tests.support.server import Server, run_here, until

FOLDER = Path(__file__).parents[2] / "brokers" / "docs" / "reference"
_MADE = "This page is made from the code by `make reference`.\n\n"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server that ships, and has tried a restore out: it has all metrics but those of a follower."""
    with Server(folder, environ={"BROKERS_SHIP_URL": f"file://{folder}/bucket"}) as server:
        until(lambda: control.request(server.data, "GET", "/status")["ship"]["retained_from"] is not None)
        control.request(server.data, "POST", "/api/v1/drill")
        yield server


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def settings() -> Iterator[str]:
    """A table for each section of the settings."""
    yield "# Settings\n\n" + _MADE
    section = ""
    for line in run_here("config", "explain", "--json").stdout.splitlines():
        row = json.loads(line)
        where, _, key = row["setting"].rpartition(".")
        if where != section:
            section = where
            yield f"\n## {section}\n\n| key | default | takes | meaning |\n|---|---|---|---|\n"
        default = row["default"]
        shown = default if isinstance(default, str) else "" if default is None else json.dumps(default)
        yield f"| `{key}` | {cell(shown)} | {cell(row['takes'])} | {cell(row['meaning'])} |\n"


def metrics(server: Server) -> Iterator[str]:
    """Each series, without its labels' values."""
    yield "# Metrics\n\n" + _MADE
    yield "Counters by `reason`, `code` or `fault` begin with the first, and are not listed.\n\n"
    yield "| series | kind | meaning |\n|---|---|---|\n"
    text = control.request(server.data, "GET", "/metrics")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M))
    for name, help_ in re.findall(r"^# HELP (\S+) (.*)$", text, re.M):
        yield f"| `{name}` | {kinds[name]} | {cell(help_)} |\n"


def api(server: Server) -> Iterator[str]:
    """Each path and method."""
    document = control.request(server.data, "GET", "/api/v1/openapi.json")
    yield "# API\n\n" + _MADE
    yield "`/api/v1/openapi.json` of a server has the parameters and answers, too.\n\n"
    yield "| method | path | what it does |\n|---|---|---|\n"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"| {method.upper()} | `{path}` | {cell(operation['summary'])} |\n"


def pages(server: Server) -> Mapping[str, str]:
    """The text of each page by its file's name."""
    usage = re.compile(r"^(brokers .*?) -m [\w.]+", re.M)  # the name of this process
    commands = root().generate_docs(usage_name="brokers")
    commands = usage.sub(r"\1", commands)
    return {
        "settings.md": "".join(settings()),
        "commands.md": commands.replace(
            "# brokers\n", "# Commands\n\n" + _MADE.rstrip("\n") + "\n", 1
        ).rstrip()
        + "\n",
        "metrics.md": "".join(metrics(server)),
        "api.md": "".join(api(server)),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        for name, text in pages(server).items():
            (FOLDER / name).write_text(text)
