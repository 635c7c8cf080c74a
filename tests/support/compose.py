"""compose.yaml, read as an engine would read it, for the tests that hold it against the code and run it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def services() -> Mapping[str, Mapping[str, Any]]:
    return read()["services"]


def read() -> Mapping[str, Any]:
    return interpolated(read_yaml((ROOT / "compose.yaml").read_text()))


def interpolated(value: Any) -> Any:
    """As an engine has it, which puts its caller's variables into every text: `$$` is a dollar.

    Nothing else may begin with one, since whoever starts the services would decide what it is.
    """
    if isinstance(value, dict):
        return {key: interpolated(one) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one) for one in value]
    if not isinstance(value, str):
        return value
    assert "$" not in value.replace("$$", ""), f"a variable of the caller's: {value!r}"
    return value.replace("$$", "$")


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
            match = re.fullmatch(r"\s*([a-z_-]+):(?: (.+))?", line)
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
