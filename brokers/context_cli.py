"""`brokers context ...`: servers by name, in `~/.config/brokers/contexts.toml`, which is its owner's alone.

The file names files with tokens and passwords, and holds none.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from brokers import control
from brokers.errors import ExitCode, Failure, did_you_mean
from brokers.flags import host_app
from shared.cli.options import Ca, Certificate, Json, Key, PasswordFile, TokenFile, User, a_path
from shared.client.login import CONTEXT_VARIABLE
from shared.errors import NotThere, UsageError
from shared.local_path import replace_file

LOGIN = ("token_file", "user", "password_file")
FIELDS = ("url", "data_dir", *LOGIN, "ca", "certificate", "key")
"""What a context may say: the flags of a command that asks a server."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

app, command = host_app(
    "context",
    "Servers by name, for the commands that ask a running one.",
    "add prod https://broker:15800 --token-file ~/prod.token",
    "use prod",
    "list",
)

Name = Annotated[str, Parameter(help="The context's name.")]


@command(
    "add prod https://broker:15800 --token-file ~/prod.token",
    "add test https://test:15800 --user ann --password-file ~/ann",
    "add here --data-dir /var/lib/brokers",
)
def add(
    name: Name,
    url: Annotated[str | None, Parameter(name="--url", help="Its admin port: http(s)://HOST:15800.")] = None,
    *,
    data_dir: Annotated[
        Path | None, Parameter(help="In place of a URL: its data folder, on this machine.", converter=a_path)
    ] = None,
    token_file: TokenFile = None,
    user: User = None,
    password_file: PasswordFile = None,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> str:
    """Name a server: where it is, and who logs in there."""
    if not _NAME.fullmatch(name):
        raise UsageError("NAME", "a context's name is 1 to 64 of A-Z, a-z, 0-9 and ._-")
    if (url is None) == (data_dir is None):
        raise UsageError("--url", "give a URL, or --data-dir")
    if url is not None:
        control.address_in(url)
    if token_file is not None and user is not None:
        raise UsageError("--token-file", "--user says who logs in already")
    given = {
        "url": url,
        "data_dir": data_dir,
        "token_file": token_file,
        "user": user,
        "password_file": password_file,
        "ca": ca,
        "certificate": certificate,
        "key": key,
    }
    for flag in FIELDS[2:]:
        if url is None and given[flag] is not None:
            raise UsageError(f"--{flag}".replace("_", "-"), "is for a URL: the control socket takes no login")
    file = _ContextsFile.read()
    if name in file.contexts:
        raise Failure(f"there is a context {name} already: brokers context rm {name} forgets it")
    said = {
        field: str(value.expanduser().absolute()) if isinstance(value, Path) else value
        for field, value in given.items()
        if value is not None
    }
    for field, text in said.items():
        if any("\udc80" <= each <= "\udcff" for each in text):
            raise UsageError(f"--{field}".replace("_", "-"), "is not UTF-8, which a file of contexts is")
    file.contexts[name] = said
    file.write()
    return f"context {name} added"


@command("use prod", "use")
def use(
    name: Annotated[str | None, Parameter(help="The context's name; without one, none is used.")] = None,
) -> str:
    """Ask this server from now on, where no flag and no variable says otherwise."""
    file = _ContextsFile.read()
    if name is not None:
        file.context(name)
    file.use = name
    file.write()
    return "no context is used" if name is None else f"context {name} is used"


@command("list", "list --json | jq -r .context", name="list")
def list_(*, json: Json = False) -> Sequence[Mapping[str, Any]]:
    """List the contexts, and which one is used."""
    file = _ContextsFile.read()
    used = os.environ.get(CONTEXT_VARIABLE) or file.use
    return [
        {"context": name, "used": name == used, **{field: said.get(field) for field in FIELDS}}
        for name, said in file.contexts.items()
    ]


@command("rm prod")
def rm(name: Name) -> str:
    """Forget a context. The files that it names stay."""
    file = _ContextsFile.read()
    file.context(name)
    del file.contexts[name]
    file.use = None if file.use == name else file.use
    file.write()
    return f"context {name} is forgotten"


def in_use() -> str | None:
    """The context that is in use. Raises Failure where the file cannot be read."""
    return _ContextsFile.read().use


def context(name: str) -> Mapping[str, Any]:
    """What a context says, by the fields of `ServerAddress`. Raises NotThere and Failure."""
    file = _ContextsFile.read()
    said = file.context(name)
    if unknown := sorted(set(said) - set(FIELDS)):
        raise Failure(f"{file.path}: context {name} has an unknown {unknown[0]}", ExitCode.CONFIGURATION)
    if ("url" in said) is ("data_dir" in said):
        text = f"{file.path}: context {name} has to have a url or a data_dir"
        raise Failure(text, ExitCode.CONFIGURATION)
    return {field: value if field in ("url", "user") else Path(value) for field, value in said.items()}


@attrs.define(eq=False)
class _ContextsFile:
    """The file of contexts. `use`: the one that is used."""

    path: Path
    use: str | None = None
    contexts: dict[str, dict[str, str]] = attrs.field(factory=dict)

    @classmethod
    def read(cls) -> "_ContextsFile":
        path = Path("~/.config/brokers/contexts.toml").expanduser()
        try:
            said = tomllib.loads(path.read_text())
            use, contexts = said.get("use"), dict(said.get("contexts", {}))
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
        found = self.contexts.get(name)
        if found is None:
            hint = did_you_mean(name, self.contexts, "; brokers context add makes one")
            raise NotThere(f"there is no context {name} in {self.path}{hint}")
        return found

    def write(self) -> None:
        """Replace the file, whole or not at all (0600). Raises Failure."""
        lines = [] if self.use is None else [f"use = {_quoted(self.use)}", ""]
        for name, said in self.contexts.items():
            lines += [f"[contexts.{_quoted(name)}]"]
            lines += [f"{field} = {_quoted(value)}" for field, value in said.items()]
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
