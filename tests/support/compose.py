"""compose.yaml, read as an engine would read it, for the tests that hold it against the code and run it."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent


@functools.cache
def read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = interpolated(YAML(typ="safe", pure=True).load(ROOT / "compose.yaml"))
    return found


def dockerfile(service: Mapping[str, Any]) -> str:
    """The stages of the Dockerfile that the image of a service is built from, the last one first."""
    build = service["build"]
    text = (ROOT / build["context"] / build["dockerfile"]).read_text()
    _, *parts = re.split(r"^FROM (\S+) AS (\S+)\n", text, flags=re.MULTILINE)
    stages = {name: (below, said) for below, name, said in zip(*[iter(parts)] * 3, strict=True)}
    wanted, taken = [build["target"]], dict[str, str]()
    while wanted:
        name = wanted.pop(0)
        if name in stages and name not in taken:
            below, taken[name] = stages[name]
            wanted += [below, *re.findall(r"--from=(\S+)", taken[name])]
    return "\n".join(taken.values())


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
