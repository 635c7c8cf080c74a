"""`brokers context ...`: servers by name, in `~/.config/brokers/contexts.toml`, which is its owner's alone.

The file names files with tokens and passwords, and holds none.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.commands import control
from brokers.commands.contexts import FIELDS, ContextsFile
from brokers.commands.flags import host_app
from brokers.errors import Failure
from shared.cli.options import Ca, Certificate, Json, Key, PasswordFile, TokenFile, User, a_path
from shared.client.login import CONTEXT_VARIABLE
from shared.errors import UsageError

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
    file = ContextsFile.read()
    if name in file.contexts:
        raise Failure(f"there is a context {name} already: brokers context rm {name} forgets it")
    fields = {
        field: str(value.expanduser().absolute()) if isinstance(value, Path) else value
        for field, value in given.items()
        if value is not None
    }
    for field, text in fields.items():
        if any("\udc80" <= each <= "\udcff" for each in text):
            raise UsageError(f"--{field}".replace("_", "-"), "is not UTF-8, which a file of contexts is")
    file.contexts[name] = fields
    file.write()
    return f"context {name} added"


@command("use prod", "use")
def use(
    name: Annotated[str | None, Parameter(help="The context's name; without one, none is used.")] = None,
) -> str:
    """Ask this server from now on, where no flag and no variable says otherwise."""
    file = ContextsFile.read()
    if name is not None:
        file.context(name)
    file.use = name
    file.write()
    return "no context is used" if name is None else f"context {name} is used"


@command("list", "list --json | jq -r .context", name="list")
def list_(*, json: Json = False) -> Sequence[Mapping[str, Any]]:
    """List the contexts, and which one is used."""
    file = ContextsFile.read()
    used = os.environ.get(CONTEXT_VARIABLE) or file.use
    return [
        {"context": name, "used": name == used, **{field: fields.get(field) for field in FIELDS}}
        for name, fields in file.contexts.items()
    ]


@command("rm prod")
def rm(name: Name) -> str:
    """Forget a context. The files that it names stay."""
    file = ContextsFile.read()
    file.context(name)
    del file.contexts[name]
    file.use = None if file.use == name else file.use
    file.write()
    return f"context {name} is forgotten"
