"""`brokers replay`: what passed through goes out again."""

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from brokers import plugins
from brokers.bridges.settings import ends_of
from brokers.commands.flags import host_command
from brokers.commands.render import CommandResult
from brokers.commands.server_address import ServerAddress, data_folder, require_folder
from brokers.errors import ExitCode, Failure
from brokers.replaying import engine, sources
from brokers.replaying.sources import Chosen
from shared.addresses import MessageOrigin, NameTemplate, split
from shared.cli.options import Json, Server, flag
from shared.cli.progress import counting
from shared.errors import UsageError
from shared.replaying import TargetAddress
from shared.units import moment_ms

_RATE = re.compile(r"(\d+(?:\.\d+)?)(x|/s)")
_RESUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@host_command(
    "replay",
    "replay recorded:pubsub --since 12h --rate 10x --wire",
    "replay logmq:jobs --to dms:jobs --rate max --resume jobs-again",
    "replay recorded:dmp --to 'logmq:audit-{key.1}' --rate 500/s",
    "replay archive:/srv/archive --map 's/^/again-/' --context test",
)
def replay(
    source: Annotated[
        str, Parameter(name="FROM", help="recorded:PROTOCOL[/NAMES], logmq:TOPICS, or archive:FOLDER; globs.")
    ],
    *,
    to: Annotated[
        str | None, Parameter(help="An address, as logmq:audit-{key.1}; else where each message was.")
    ] = None,
    since: Annotated[str | None, Parameter(help="Only what came then or later.")] = None,
    until: Annotated[str | None, Parameter(help="Only what came before.")] = None,
    rate: Annotated[str, Parameter(help="1x: as they came; 10x; N/s; or max.")] = "1x",
    name: Annotated[str | None, Parameter(help="Only names that match a glob.")] = None,
    map: Annotated[  # the contract's word
        str | None, Parameter(help="Change names, as sed does: 's/^/again-/'.", show_default=False)
    ] = None,
    wire: Annotated[bool, flag("Datagrams come from where the recording says, where that can be.")] = False,
    resume: Annotated[
        str | None, Parameter(help="Note under this name how far it is, and go on from there.")
    ] = None,
    at: ServerAddress,
    json: Json = False,
) -> CommandResult:
    """Send messages of the past again: recorded traffic, a log, or an archive.

    They go out in order and at the pace at which they came. They go to the server that runs on the data
    folder, or with --url or --context to another. Messages are read from the data folder's files. With
    --resume a replay that was killed goes on where it was when the same command is given. Into topics each
    message goes once, elsewhere those of one batch may go twice. Times are as 2026-03-01T20:00Z or 2h (ago).
    Exit code 1: some messages could not be read, or not be carried there.
    """
    import trio

    pace = _pace(rate)
    now = time.time_ns() // 1_000_000

    def within(now: int, names: str | None) -> Chosen:
        return Chosen(
            names, _moment("--since", since, now, -math.inf), _moment("--until", until, now, math.inf)
        )

    chosen = within(now, name)
    renamed = renaming(map)
    folder = data_folder(at.data_dir, at.config)
    server = attrs.evolve(at, data_dir=None, config=None) if at.url or at.context else at
    server = server.resolved()
    opened, chosen = sources.opened(source, folder, chosen)
    if not source.startswith("archive:"):
        require_folder(folder)
    if to is None and map is None and server.url is None and source.startswith(f"{sources.TOPICS}:"):
        raise UsageError("--to", "each topic would be appended to itself: give --to or --map")
    protocol, place, name_of = _target(to, opened.protocol, renamed)
    replays = sources.replays_to(protocol)
    reached = server.protocol(Server, plugins.load(protocol))
    assert isinstance(reached, Server)
    address = TargetAddress(reached.host, reached.port, reached.how(), place, at_sender=wire)
    of = {
        "from": source if source.startswith("archive:") else [source, str(folder.absolute())],
        "which": [name, since, until],
        "to": [to, map, protocol, server.url or str(folder.absolute())],
    }
    noted = engine.Progress(None if resume is None else notes_file(resume), of)
    position = noted.load()
    if position is None:
        position = noted.begin(sources.extents_of(opened), now)
    else:
        chosen = within(position.began_ms, chosen.names)
    unread: Counter[str] = Counter()

    def records(ranges: engine.Ranges) -> Iterator[engine.SourcedRecord]:
        return filter(chosen.takes, sources.records_of(opened, ranges, lambda text: unread.update([text])))

    async def run() -> engine.Replayed:
        async with replays.open(address) as target:
            with counting("messages") as tell:
                return await engine.replay(records, target, position, noted, pace, name_of=name_of, told=tell)

    done = trio.run(run)
    rows = {
        "messages": done.messages,
        "bytes": done.bytes,
        "resumed": done.resumed,
        **({"not_carried": done.refused} if done.refused else {}),
        **({"not_read": dict(unread)} if unread else {}),
    }
    return CommandResult(rows, ExitCode.FAILED if done.refused or unread else ExitCode.OK)


def _target(
    to: str | None, protocol: str, renamed: Callable[[bytes], bytes]
) -> tuple[str, str | None, Callable[[engine.SourcedRecord], bytes]]:
    """The target's protocol, its part of the address, and the function that names a record there."""
    if to is None:
        return protocol, None, lambda record: renamed(record.message.name)
    came_by = protocol
    try:
        protocol, place = split(to)
        sources.check_protocol("--to", protocol)
        ends = ends_of([plugins.load(protocol)])(protocol)
        template = NameTemplate.parse(place) if ends is None else ends.target_name(place)
    except ValueError as error:
        raise UsageError("--to", str(error)) from None

    def name_of(record: engine.SourcedRecord) -> bytes:
        message = record.message
        named = renamed(message.name)
        key = named if message.key else b""
        return template.name_for(MessageOrigin(came_by, named, key, message.sender, record.time))

    return protocol, place, name_of


def _pace(text: str) -> engine.Pace:
    if text == "max":
        return engine.Pace()
    match = _RATE.fullmatch(text)
    number = float(match[1]) if match else 0.0
    if match is None or not number:
        raise UsageError("--rate", f"{text!r} is not 1x, 10x, 500/s or max")
    return engine.Pace(speed=number) if match[2] == "x" else engine.Pace(rate=number)


def _moment(flag_: str, text: str | None, now_ms: int, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return moment_ms(text, now_ms) / 1e3
    except ValueError as error:
        raise UsageError(flag_, str(error)) from None


def renaming(text: str | None) -> Callable[[bytes], bytes]:
    """A sed expression, `s/PATTERN/REPLACEMENT/`, then `g` or `i`; any character may stand for the slash."""
    if text is None:
        return lambda name: name
    parts = re.split(r"(?<!\\)" + re.escape(text[1]), text[2:]) if len(text) > 2 and text[0] == "s" else []
    if len(parts) != 3 or not set(parts[2]) <= {"g", "i"}:
        raise UsageError("--map", f"{text!r} is not as 's/PATTERN/REPLACEMENT/'; g or i may follow")
    pattern, replacement, flags = (part.replace("\\" + text[1], text[1]) for part in parts)
    replacement = re.sub(r"(?<!\\)&", r"\\g<0>", replacement)
    try:
        compiled = re.compile(pattern.encode(), re.IGNORECASE if "i" in flags else 0)
        compiled.sub(replacement.encode(), b"")
    except re.error as error:
        raise UsageError("--map", f"{text!r}: {error}") from None
    times = 0 if "g" in flags else 1
    return lambda name: compiled.sub(replacement.encode(), name, count=times)


def notes_file(name: str) -> Path:
    """The file that notes how far a replay is. Raises UsageError, Failure."""
    if not _RESUME.fullmatch(name):
        raise UsageError("--resume", "a name is 1 to 100 of A-Z a-z 0-9 . _ - and does not start with a dot")
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = home / "brokers" / "replays"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}") from None
    return folder / f"{name}.json"
