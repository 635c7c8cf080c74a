"""compose.yaml, read as an engine would read it, for the tests that hold it against the code and run it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent


def services() -> Mapping[str, Mapping[str, Any]]:
    return read()["services"]


def read() -> Mapping[str, Any]:
    return interpolated(YAML(typ="safe", pure=True).load(ROOT / "compose.yaml"))


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
