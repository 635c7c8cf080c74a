"""compose.yaml says what this repository has: its commands are real, and what it copies exists.

No container engine runs here, so this reads the file as an engine would and holds it against the code.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from brokers.cli import root
from brokers.config import load
from brokers.flags import ServeCommand
from brokers.plugs import load_all

ROOT = Path(__file__).parent.parent.parent


def read_yaml(text: str) -> Any:
    """The part of YAML that compose.yaml is written in: block mappings and lists, `|` text, JSON lists.

    Anything else (tabs, odd indentation, a key twice) is an error, so the file stays in that part.
    """
    lines = text.split("\n")
    position = 0

    def indent_of(line: str) -> int:
        assert "\t" not in line, f"tab in {line!r}"
        return len(line) - len(line.lstrip(" "))

    def skip() -> None:
        nonlocal position
        while position < len(lines) and (not lines[position].strip() or lines[position].lstrip()[0] == "#"):
            position += 1

    def scalar(word: str) -> Any:
        return json.loads(word) if word[:1] in ('"', "[") or word.isdigit() else word

    def literal(indent: int) -> str:
        nonlocal position
        taken = []
        while position < len(lines) and (not lines[position].strip() or indent_of(lines[position]) > indent):
            taken.append(lines[position])
            position += 1
        depth = indent_of(taken[0])
        return "\n".join(line[depth:] for line in taken)

    def block(indent: int) -> Any:
        nonlocal position
        found: Any = [] if lines[position].lstrip().startswith("- ") else {}
        while True:
            skip()
            if position == len(lines) or indent_of(lines[position]) < indent:
                return found
            line = lines[position]
            assert indent_of(line) == indent, f"odd indentation: {line!r}"
            position += 1
            if isinstance(found, list):
                assert line.lstrip().startswith("- "), f"not an item: {line!r}"
                found.append(scalar(line.strip().removeprefix("- ")))
                continue
            match = re.fullmatch(r"\s*([a-z_]+):(?: (.+))?", line)
            assert match, f"not a key: {line!r}"
            key, word = match[1], match[2]
            assert key not in found, f"{key} twice"
            if word == "|":
                found[key] = literal(indent)
            elif word is not None:
                found[key] = scalar(word)
            else:
                skip()
                deeper = position < len(lines) and indent_of(lines[position]) > indent
                found[key] = block(indent_of(lines[position])) if deeper else None

    skip()
    return block(0)


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    return read_yaml((ROOT / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def service(compose: Mapping[str, Any]) -> Mapping[str, Any]:
    return compose["services"]["brokers"]


def test_its_commands_are_commands_of_the_program(service: Mapping[str, Any]) -> None:
    for words in (service["command"], service["healthcheck"]["test"][2:]):
        command, bound, _ = root().parse_args(words, print_error=False, exit_on_error=False)
        result = command(*bound.args, **bound.kwargs) if words[0] == "serve" else None
        if isinstance(result, ServeCommand):
            config = load(load_all()[0], file=None, environ={}, flags=result.flags)
            assert config.serve.host == "0.0.0.0"
            assert config.serve.insecure
    assert service["healthcheck"]["test"][:2] == ["CMD", "brokers"]


def test_its_image_is_built_from_what_is_here(service: Mapping[str, Any]) -> None:
    dockerfile = service["build"]["dockerfile_inline"]
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.M) for word in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied)
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= set(copied)
    assert "# section: serve\n" in (ROOT / "requirements.lock").read_text()
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.M)[0])
    assert entry == list(project["project"]["scripts"])
    assert service["image"] == f"brokers:{project['project']['version']}"


def test_its_variables_are_settings(service: Mapping[str, Any]) -> None:
    dockerfile = service["build"]["dockerfile_inline"]
    environ = dict(re.findall(r"(BROKERS_[A-Z_]+)=(\S+)", dockerfile))
    config = load(load_all()[0], file=None, environ=environ)
    assert str(config.serve.data_dir) == "/data"


def test_the_data_outlives_the_container_and_nobody_is_root(
    compose: Mapping[str, Any], service: Mapping[str, Any]
) -> None:
    assert service["volumes"] == ["data:/data"]
    assert "data" in compose["volumes"]
    assert service["user"].split(":")[0] != "0"
    assert service["read_only"] == "true"
    assert service["cap_drop"] == ["ALL"]
    assert {"mem_limit", "cpus", "pids_limit"} <= set(service)


def test_every_port_a_protocol_has_by_default_is_published_on_loopback(service: Mapping[str, Any]) -> None:
    published = set(service["ports"])
    for plug in load_all()[0]:
        port = plug.settings().port
        assert f"127.0.0.1:{port}:{port}" in published


def test_it_is_given_longer_to_stop_than_a_drain_takes(service: Mapping[str, Any]) -> None:
    config = load([], file=None, environ={})
    assert float(service["stop_grace_period"].removesuffix("s")) > config.serve.drain_seconds
