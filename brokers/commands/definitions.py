"""`brokers definitions ...`: what is durable on a server but messages, as a file; and from a file."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.commands.control import ROOT
from brokers.commands.flags import host_app
from brokers.commands.render import Several
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from shared.cli.options import Json, a_file, flag
from shared.cli.progress import waiting
from shared.local_path import WRITTEN_BYTES_MAX, read_file, replace_file

app, command = host_app(
    "definitions",
    "Users, topics, exchanges, queues, bindings, groups and bridges of a server, as a file.",
    "export definitions.json",
    "import definitions.json --dry-run",
)
PATH = f"{ROOT}/definitions"


@command("export definitions.json", "export --context prod | jq .queues")
def export(
    file: Annotated[
        Path | None,
        Parameter(
            help="The file to write; - or none is standard output.",
            converter=a_file,
            allow_leading_hyphen=True,
        ),
    ] = None,
    *,
    at: ServerAddress,
) -> bytes | None:
    """Write down all that is durable but messages and secrets, as JSON."""
    client = at.client()
    with waiting("asking"):
        document = client.read(PATH)
    if file is None or str(file) == "-":
        return document
    try:
        replace_file(file, document)
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    return None


@command("import definitions.json --dry-run", "import - < definitions.json", name="import")
def import_(
    file: Annotated[
        Path, Parameter(help="The file; - is standard input.", converter=a_file, allow_leading_hyphen=True)
    ],
    *,
    dry_run: Annotated[bool, flag("Say what would be made, and make nothing.")] = False,
    at: ServerAddress,
    json: Json = False,
) -> Any:
    """Have there be all that a file has. What is there already stays as it is.

    One conflict, which names its object, and nothing is made. What cannot be there
    is left out, and told. Users cannot log in until they get a password.
    """
    most = WRITTEN_BYTES_MAX  # as much as the server takes
    try:
        document = sys.stdin.buffer.read(most + 1) if str(file) == "-" else read_file(file, most)
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}", ExitCode.MISSING) from None
    client = at.client()
    with waiting("importing"):
        taken = client.request("POST", f"{PATH}?dry_run={int(dry_run)}", document)
    if json:
        return taken
    counts = {name: value for name, value in taken.items() if name != "told"}
    return Several((counts, "\n".join(taken["told"]))) if taken["told"] else counts
