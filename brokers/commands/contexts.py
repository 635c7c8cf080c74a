"""The file of contexts, `~/.config/brokers/contexts.toml`: servers by name. It is its owner's alone.

The file names files with tokens and passwords, and holds none.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from brokers.errors import ExitCode, Failure, did_you_mean
from shared.errors import NotThere
from shared.local_path import replace_file

FIELDS = ("url", "data_dir", "token_file", "user", "password_file", "ca", "certificate", "key")
"""What a context may say: the flags of a command that asks a server."""


def in_use() -> str | None:
    """The context that is in use. Raises Failure where the file cannot be read."""
    return ContextsFile.read().use


def context(name: str) -> Mapping[str, Any]:
    """What a context says, by the fields of `ServerAddress`. Raises NotThere and Failure."""
    file = ContextsFile.read()
    fields = file.context(name)
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise Failure(f"{file.path}: context {name} has an unknown {unknown[0]}", ExitCode.CONFIGURATION)
    if ("url" in fields) is ("data_dir" in fields):
        text = f"{file.path}: context {name} has to have a url or a data_dir"
        raise Failure(text, ExitCode.CONFIGURATION)
    return {field: value if field in ("url", "user") else Path(value) for field, value in fields.items()}


@attrs.define(eq=False)
class ContextsFile:
    """The file of contexts. `use`: the one that is used."""

    path: Path
    use: str | None = None
    contexts: dict[str, dict[str, str]] = attrs.field(factory=dict)

    @classmethod
    def read(cls) -> "ContextsFile":
        path = Path("~/.config/brokers/contexts.toml").expanduser()
        try:
            tables = tomllib.loads(path.read_text())
            use, contexts = tables.get("use"), dict(tables.get("contexts", {}))
            texts = [*filter(None, [use]), *(value for each in contexts.values() for value in each.values())]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("what stands in it is text in quotes")
        except (FileNotFoundError, NotADirectoryError):
            return cls(path)
        except (AttributeError, TypeError):
            raise Failure(f"{path}: contexts are tables, [contexts.NAME]", ExitCode.CONFIGURATION) from None
        except (OSError, ValueError, RecursionError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise Failure(f"{path}: {why}", ExitCode.CONFIGURATION) from None
        return cls(path, use or None, contexts)

    def context(self, name: str) -> dict[str, str]:
        """Raises NotThere."""
        fields = self.contexts.get(name)
        if fields is None:
            hint = did_you_mean(name, self.contexts, "; brokers context add makes one")
            raise NotThere(f"there is no context {name} in {self.path}{hint}")
        return fields

    def write(self) -> None:
        """Replace the file, whole or not at all (0600). Raises Failure."""
        lines = [] if self.use is None else [f"use = {_quoted(self.use)}", ""]
        for name, fields in self.contexts.items():
            lines += [f"[contexts.{_quoted(name)}]"]
            lines += [f"{field} = {_quoted(value)}" for field, value in fields.items()]
            lines += [""]
        path = self.path.resolve()  # it may be a link to somebody's collection of such files
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, "\n".join(lines).encode(), 0o600)
        except OSError as error:
            raise Failure(f"{self.path}: {error.strerror}") from None


def _quoted(text: str) -> str:
    """A TOML string: JSON's, but for DEL, and without its halves of characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
