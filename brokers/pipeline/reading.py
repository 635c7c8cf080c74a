"""What a command reads: a data folder or LogMQ servers, checked before Spark starts.

A server gives the records of LogMQ's topics only. Other protocols' logs, and what a broker keeps about its
readers, are in its data folder alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from brokers.pipeline.session import of_a_command
from shared.cli.options import Ca, Certificate, Key, PasswordFile, Tls, User
from shared.errors import UsageError
from shared.local_path import local_path

SourceOption = Annotated[
    tuple[str, ...],
    Parameter(
        help="Of the source, KEY=VALUE (tlsCa=ca.pem, verifyCrc=false); repeatable.",
        negative="",
        show_default=False,
    ),
]
Master = Annotated[str, Parameter(help="Where Spark runs: local[*], or spark://host:port.")]
Conf = Annotated[
    tuple[str, ...],
    Parameter(help="A setting of Spark's own, KEY=VALUE; repeatable.", negative="", show_default=False),
]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ConnectOptions:
    """How servers are reached, and who reads: the source's options under the names that all commands have."""

    user: User = None
    password_file: PasswordFile = None
    tls: Tls = False
    ca: Ca = None
    certificate: Certificate = None
    key: Key = None

    @property
    def options(self) -> Mapping[str, str]:
        from brokers.pipeline.source.options import reach_options

        return reach_options(attrs.asdict(self))


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ReadOptions:
    """The options of every command that reads: where from, as whom, and with which Spark."""

    servers: Annotated[
        str | None,
        Parameter(help="LogMQ servers instead of a folder: host:port,host:port.", show_default=False),
    ] = None
    option: SourceOption = ()
    master: Master = "local[*]"
    conf: Conf = ()
    connection: ConnectOptions = ConnectOptions()

    def config(self, sized: Mapping[str, str] = {}) -> Mapping[str, str]:
        """Return Spark's settings. `sized`: as `of_a_command` takes it. Raises UsageError."""
        return of_a_command(dict(pair("--conf", each) for each in self.conf), self.master, sized)

    def where(self, path: Path | None) -> dict[str, str]:
        """Return the source's options for a data folder, or for `servers`.

        Raises UsageError, and what opening the folder, or a server, raises.
        """
        from brokers.pipeline.source.options import TopicChoice, parse
        from brokers.pipeline.source.planning import open_readers

        if (path is None) == (self.servers is None):
            raise UsageError("PATH", "give either a data folder or --servers")
        found = {**self.connection.options, **dict(pair("--option", each) for each in self.option)}
        if path is not None:
            check_folder(path)
        found |= {"path": str(path)} if path is not None else {"servers": str(self.servers)}
        with open_readers(parse({"subscribePattern": ".*", **found})) as readers:
            for reader in readers.values():
                reader.logs(TopicChoice(names=("any",)))  # asks one small question; any answer is fine
        return found


def check_folder(path: Path) -> None:
    """Raise StoreFormat if it is not a data folder, Failure if it is not there, or OSError."""
    from brokers.commands.server_address import require_folder
    from shared.storage.os_disk import OsDisk
    from shared.storage.tools.view import check_format

    with OsDisk(require_folder(path), create=False, read_only=True) as disk:
        check_format(disk, path)


def a_folder(text: str, place: str = "PATH") -> Path:
    """Return the path that a word names. `place`: what the error calls the word. Raises UsageError."""
    try:
        return local_path(text)
    except ValueError as error:
        raise UsageError(place, str(error)) from None


def pair(flag: str, text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. Raises UsageError, which does not repeat the text, because it may be a secret."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(flag, "what is given is not KEY=VALUE")
    return key, value
