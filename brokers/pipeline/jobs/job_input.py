"""What a job reads: data folders or LogMQ servers, each checked before Spark starts.

A server gives the records of LogMQ's topics only. Other protocols' logs, and what a broker keeps about its
readers, are in its data folder alone. If there are several sources, rows have a column `broker` in front.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from brokers.pipeline.session import of_a_command
from shared.cli.options import Ca, Certificate, Key, PasswordFile, Tls, User, a_path
from shared.errors import UsageError
from shared.local_path import local_path

if TYPE_CHECKING:
    from brokers.pipeline.source.options import SourceOptions

SERVED = "logmq"
"""The namespace whose logs a server gives, which is the source's default."""

_OURS = (
    *("path", "paths", "servers", "namespace", "subscribe", "subscribepattern", "assign"),
    "maxvaluebytes",  # every job reads whole records
)
_BOUNDS = ("starting", "ending", "max")

Folders = Annotated[Path, Parameter(help="Data folders; brokers may run on them.", converter=a_path)]
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


@attrs.frozen
class JobInput:
    """Folders, or servers; and the other options of the source."""

    folders: tuple[Path, ...] = ()
    servers: str | None = None
    options: Mapping[str, str] = {}

    @property
    def sources(self) -> Sequence[str]:
        if self.servers is not None:
            return self.parsed().sources
        return tuple(map(str, self.folders))

    def parsed(self) -> "SourceOptions":
        """Return the source's options for all sources. Raises ConfigError."""
        import json

        from brokers.pipeline.source.options import parse

        folders = {"paths": json.dumps(list(map(str, self.folders)))}
        location = folders if self.servers is None else {"servers": self.servers}
        return parse({"subscribePattern": ".*", **self.options, **location})

    def options_of(self, source: str) -> dict[str, str]:
        """Return the source's options for one of `sources`."""
        return {**self.options, "servers" if self.servers is not None else "path": source}


def checked_input(
    paths: Sequence[Path],
    reading: ReadOptions = ReadOptions(),
    *,
    bounded: bool = True,
) -> JobInput:
    """Check what is to be read, before Spark starts: Spark's own messages come later and are long.

    `bounded`: options may say from where to where. Raises UsageError, ConfigError, StoreFormat for a folder
    of another format, and Failure for a folder that is not there. Raises OSError if a server does not answer.
    """
    if bool(paths) == (reading.servers is not None):
        raise UsageError("PATH", "give either data folders or --servers")
    given = dict(pair("--option", each) for each in reading.option)
    options = {**reading.connection.options, **given}
    for key in given:
        lower = key.lower()
        if lower in _OURS or (lower.startswith(_BOUNDS) and not bounded):
            raise UsageError("--option", f"{key} is set by the command itself")
    from brokers.pipeline.source.options import folder_id

    known = [folder_id(str(path)) for path in paths]
    twice = [path for number, path in enumerate(paths) if known[number] in known[:number]]
    if twice:
        raise UsageError("PATH", f"{twice[0]} is named twice")
    found = JobInput(tuple(paths), reading.servers, options)
    parsed = found.parsed()
    for path in paths:
        check_folder(path)
    if reading.servers is not None:
        from brokers.pipeline.source.options import TopicChoice
        from brokers.pipeline.source.planning import open_origin

        for source in parsed.sources:
            with open_origin(parsed, source) as origin:
                origin.spots(TopicChoice(names=("any",)))  # asks one small question; any answer is fine
    return found


def check_folder(path: Path) -> None:
    """Raise StoreFormat if it is not a data folder, Failure if it is not there, or OSError."""
    from brokers.server_address import require_folder
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
