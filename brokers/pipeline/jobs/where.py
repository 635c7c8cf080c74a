"""What a job reads: data folders, or LogMQ servers, one or several, each looked at before Spark is started.

Over the wire there are the records of LogMQ's topics and nothing else: other protocols' logs, and what a
broker keeps about its readers, are in its data folder alone. Rows of several places are told apart by a
column `broker` in front, which rows of one place do not have.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from brokers.pipeline.session import bit_by_bit, little, of_a_command
from shared.cli.options import a_path
from shared.errors import UsageError
from shared.local_path import local_path

if TYPE_CHECKING:
    from brokers.pipeline.source.options import Options

SERVED = "logmq"
"""The namespace whose logs a server gives: the source's own, unless an option says another."""

_OURS = (
    *("path", "paths", "servers", "namespace", "subscribe", "subscribepattern", "assign"),
    "maxvaluebytes",  # every verb looks at whole records
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
class Reading:
    """The options of every verb that reads: where from, and with which Spark."""

    servers: Annotated[
        str | None,
        Parameter(help="LogMQ servers instead of a folder: host:port,host:port.", show_default=False),
    ] = None
    option: SourceOption = ()
    master: Master = "local[*]"
    conf: Conf = ()

    @property
    def config(self) -> Mapping[str, str]:
        """Spark's settings. Raises UsageError."""
        return of_a_command(self._given, self.master)

    @property
    def lean(self) -> Mapping[str, str]:
        """The same for little data."""
        return of_a_command(little(self._given, self.master), self.master)

    @property
    def following(self) -> Mapping[str, str]:
        """The same for a stream."""
        return of_a_command(bit_by_bit(self._given, self.master), self.master)

    @property
    def _given(self) -> Mapping[str, str]:
        return dict(pair("--conf", each) for each in self.conf)


@attrs.frozen
class Where:
    """Folders, or servers; `options` are the source's others."""

    folders: tuple[Path, ...] = ()
    servers: str | None = None
    options: Mapping[str, str] = {}

    @property
    def sources(self) -> Sequence[str]:
        if self.servers is not None:
            return self.parsed().sources
        return tuple(map(str, self.folders))

    def parsed(self, **more: str) -> "Options":
        """The source's options for all of it; `more` in its spelling. Raises ConfigError."""
        import json

        from brokers.pipeline.source.options import parse

        folders = {"paths": json.dumps(list(map(str, self.folders)))}
        place = folders if self.servers is None else {"servers": self.servers}
        return parse({"subscribePattern": ".*", **self.options, **place, **more})

    def options_of(self, source: str) -> dict[str, str]:
        """The source's options for one of `sources`."""
        return {**self.options, "servers" if self.servers is not None else "path": source}


def where(paths: Sequence[Path], reading: Reading = Reading(), *, bounded: bool = True) -> Where:
    """What is to be read, and it is there.

    `bounded`: options that say from where to where are taken. Raises UsageError, ConfigError, StoreFormat
    where something is no data folder that we can read, Refusal where it is none at all, and OSError where no
    server answers. Spark would say so too, later and at length.
    """
    if bool(paths) == (reading.servers is not None):
        raise UsageError("PATH", "give either data folders or --servers")
    options = dict(pair("--option", each) for each in reading.option)
    for key in options:
        lower = key.lower()
        if lower in _OURS or (lower.startswith(_BOUNDS) and not bounded):
            raise UsageError("--option", f"{key} is this command's own business")
    from brokers.pipeline.source.options import folder_id

    known = [folder_id(str(path)) for path in paths]
    twice = [path for number, path in enumerate(paths) if known[number] in known[:number]]
    if twice:
        raise UsageError("PATH", f"{twice[0]} is named twice")
    found = Where(tuple(paths), reading.servers, options)
    parsed = found.parsed()
    for path in paths:
        check_folder(path)
    if reading.servers is not None:
        from brokers.pipeline.source.options import TopicChoice
        from brokers.pipeline.source.planning import open_place

        for source in parsed.sources:
            with closing(open_place(parsed, source)) as place:
                place.spots(TopicChoice(names=("any",)))  # one small question, whatever the answer
    return found


def check_folder(path: Path) -> None:
    """Raises StoreFormat, Refusal where it is not there, OSError."""
    from brokers.server_cli import existing
    from shared.storage.os_disk import OsDisk
    from shared.storage.tools.view import check_format

    disk = OsDisk(existing(path), create=False, read_only=True)
    try:
        check_format(disk, path)
    finally:
        disk.release()


def a_folder(text: str, place: str = "PATH") -> Path:
    """Of a word that stands among others, or `place`. Raises UsageError."""
    try:
        return local_path(text)
    except ValueError as error:
        raise UsageError(place, str(error)) from None


def pair(flag: str, text: str) -> tuple[str, str]:
    """KEY=VALUE. Raises UsageError, which repeats nothing: it may be a secret of Spark's."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(flag, "what is given is not KEY=VALUE")
    return key, value
