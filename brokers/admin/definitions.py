"""One document of all durable objects but messages.

    {"users": [...], "topics": [...], "exchanges": [...], "queues": [...], "bindings": [...], "groups": [...],
     "bridges": [...]}

A running server exports it, and the same or another imports it. Existing objects are left as they are, so a
second import changes nothing. All rows are checked before any is created: a single conflict, which names its
object, ends the import without a change. What only the disk or full memory refuses ends it where it is. What
was created is durable before the answer. Rows that cannot be created here, such as a group's offset in a
missing topic, are reported. Documents are handled some rows at a time, so a large one does not hold the loop.
"""

import json
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import structlog

from brokers.access.users import NotGiven
from brokers.errors import did_you_mean
from shared.definitions import SECTIONS, Conflict, DefinitionSection, LeftOut, Made, Row, tell_lowered
from shared.errors import BrokerError, ConfigError
from shared.local_path import WRITTEN_BYTES_MAX, read_file, require_regular
from shared.objects import BadArgument
from shared.storage.store import Store, Ticket
from shared.storage.threads import Threads
from shared.task_turns import TaskTurn

BYTES_MAX = WRITTEN_BYTES_MAX
"""The largest document: some 500,000 objects."""
UNSYNCED_MAX = 200
"""Objects that are made before the disk is waited for."""
TOLD_MAX = 100
"""How many conflicts, or rows left out, an answer names."""
_KEY_SHOWN = 40
BRIDGES = "bridges"


async def parsed(document: bytes) -> dict[str, list[Row]]:
    """The rows of a document, by section; it is read in a thread. Raises BadArgument."""
    rows: dict[str, list[Row]] = await Threads()(_parsed, document)
    return rows


def _parsed(document: bytes) -> dict[str, list[Row]]:
    def unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
        members_by_name = dict(members)
        if len(members_by_name) < len(members):
            raise BadArgument(f"a member stands twice in {{{', '.join(name for name, _ in members)}}}")
        return members_by_name

    try:
        # The hook is Python, and so the decoder gives others their turn; by itself it would not.
        sections = json.loads(document, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise BadArgument(f"no UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"no JSON: {error}") from None
    if not isinstance(sections, dict) or not all(isinstance(rows, list) for rows in sections.values()):
        raise BadArgument("a document of definitions is an object of lists")
    for section, rows in sections.items():
        if section not in SECTIONS:
            raise BadArgument(f"{section!r:.40} is no section: there are {', '.join(SECTIONS)}")
        for row in rows:
            if not isinstance(row, dict):
                raise BadArgument(f"{section}: each is an object")
            try:
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:  # a lone surrogate, which no name on a wire can hold
                raise BadArgument(f"{section}: text that is not Unicode") from None
    return sections


@attrs.frozen
class Taken:
    """The result of an import: the numbers of rows created, already there, and left out, with reasons."""

    made: int
    same: int
    left_out: int
    told: Sequence[str]


class Document:
    """The exportable objects of one server. `services`: by protocol; `own`: of no protocol."""

    def __init__(
        self,
        services: Sequence[tuple[str, DefinitionSection]],
        own: Sequence[DefinitionSection],
        store: Store,
    ) -> None:
        self._services = [*(("", each) for each in own), *services]
        self._store = store

    def tell_lowered(self, log: structlog.stdlib.BoundLogger) -> None:
        """Log the limits that are below what there is."""
        for protocol, each in self._services:
            if each.room is not None:
                tell_lowered(each.room(), log.bind(protocol=protocol))

    async def text(self) -> AsyncGenerator[bytes, None]:
        """Yield the document in pieces, a row a line."""
        names: set[tuple[str, str, str]] = set()
        lines = ["{"]
        turn = TaskTurn()
        has_bridges = any(any(each.rows(_nothing)) for _, each in self._services if each.section == BRIDGES)
        # The settings may have some: an empty list would say that there are none.
        sections = [section for section in SECTIONS if has_bridges or section != BRIDGES]
        for number, section in enumerate(sections):
            lines.append(f"{',' if number else ''}\n{json.dumps(section)}: [")
            comma = ""
            for protocol, each in self._services:
                for row in (
                    each.rows(partial(_is_written, names, protocol)) if each.section == section else ()
                ):
                    names.add((section, protocol, each.name(row)))
                    whole = {"protocol": protocol, **row} if protocol else row
                    lines.append(f"{comma}\n{json.dumps(whole, ensure_ascii=False)}")
                    comma = ","
                    if turn.over():
                        yield "".join(lines).encode()
                        lines.clear()
                        await turn.others()
            lines.append("]")
        yield "".join((*lines, "\n}\n")).encode()

    async def take(self, rows: Mapping[str, Sequence[Row]], *, dry_run: bool) -> Taken:
        """Create all objects in these sections. Raises Conflict; nothing is changed then."""
        own = {(each.section, protocol): each for protocol, each in self._services}
        promised: dict[tuple[str, str, str], Row] = {}
        turn = TaskTurn()
        for section in rows:
            for row in rows[section]:
                await turn.item()
                protocol, name = str(row.get("protocol", "")), self._name(own, section, row)
                first = promised.setdefault((section, protocol, name), row)
                if row != first and section != "bindings":  # which may differ in arguments alone
                    raise Conflict(f"{section} {protocol}/{name}: it stands there twice, and differs")
        taken = await self._go_through(rows, own, promised, dry_run=True)
        return taken if dry_run else await self._go_through(rows, own, promised, dry_run=False)

    def _name(self, own: Mapping[tuple[str, str], DefinitionSection], section: str, row: Row) -> str:
        each = own.get((section, str(row.get("protocol", ""))))
        return str(row.get("name", "")) if each is None else each.name(row)

    async def _go_through(
        self,
        rows: Mapping[str, Sequence[Row]],
        own: Mapping[tuple[str, str], DefinitionSection],
        promised: Mapping[tuple[str, str, str], Row],
        *,
        dry_run: bool,
    ) -> Taken:
        made = same = 0
        left_out: list[str] = []
        conflicts: list[str] = []
        new: dict[tuple[str, str], set[str]] = {}
        unsynced: list[Ticket] = []
        turn = TaskTurn()
        for section in SECTIONS:
            for number, row in enumerate(rows.get(section, ()), 1):
                await turn.item()
                protocol = str(row.get("protocol", ""))
                each = own.get((section, protocol))
                what = f"{section} {protocol}/{self._name(own, section, row)}" if protocol else section
                done: Made | None = None
                try:
                    if each is None:
                        unserved = "no protocol that is served here has these"
                        raise LeftOut(unserved if protocol else f"row {number} names no protocol")
                    _check_keys(row, each, number)
                    plain = {name: value for name, value in row.items() if name != "protocol"}
                    done = await each.make(plain, dry_run, partial(_is_promised, promised, protocol))
                except LeftOut as error:
                    left_out.append(f"{what}: {error}")
                except NotGiven:
                    raise
                except BrokerError as error:
                    if not dry_run:
                        await self._on_disk(unsynced)
                        raise Conflict(f"{what}: {error}; {made} before it were made") from error
                    conflicts.append(f"{what}: {error}")
                if done is not None:
                    made, same = made + done.new, same + (not done.new)
                    if done.new:
                        new.setdefault((section, protocol), set()).add(self._name(own, section, row))
                    if done.ticket is not None:
                        unsynced.append(done.ticket)
                if len(unsynced) == UNSYNCED_MAX:
                    await self._on_disk(unsynced)
        if dry_run:
            conflicts += _without_room(own, new)
        if conflicts:
            more = f"; and {len(conflicts) - TOLD_MAX} more" if len(conflicts) > TOLD_MAX else ""
            raise Conflict("; ".join(conflicts[:TOLD_MAX]) + more)
        await self._on_disk(unsynced)
        return Taken(made, same, len(left_out), left_out[:TOLD_MAX])

    async def _on_disk(self, unsynced: list[Ticket]) -> None:
        """Wait for these tickets of what was made, and take them away. Raises StoreError."""
        for ticket in unsynced:
            await self._store.wait(ticket)
        unsynced.clear()


def _without_room(
    own: Mapping[tuple[str, str], DefinitionSection], new: Mapping[tuple[str, str], Collection[str]]
) -> Iterator[str]:
    """Yield what would be more than a limit allows. `new`: the names of what would be made."""
    for (section, protocol), names in new.items():
        room = own[section, protocol].room
        if room is not None:
            setting, count, most = room()
            if count + len(names) > most:
                yield f"{section} {protocol}: {len(names)} more than the {count} there: {setting} = {most}"


def _check_keys(row: Row, section: DefinitionSection, number: int) -> None:
    """Raise BadArgument for a key that nobody reads, as the settings do: it is meant to have an effect."""
    for key in row:
        if key not in section.keys and key != "protocol":
            shown = key[:_KEY_SHOWN]
            hint = did_you_mean(shown, section.keys, f"; there are {', '.join(section.keys)}")
            raise BadArgument(f"row {number}: {shown}: unknown key{hint}")


def _is_promised(
    promised: Mapping[tuple[str, str, str], Row], protocol: str, section: str, name: str
) -> Row | None:
    return promised.get((section, protocol, name))


def _nothing(section: str, name: str) -> bool:
    return False


def _is_written(names: Collection[tuple[str, str, str]], protocol: str, section: str, name: str) -> bool:
    return (section, protocol, name) in names


async def load(document: Document, path: Path) -> Taken:
    """Import a file at a start. Raises ConfigError; nothing is changed then."""
    return await take(document, await rows_of(path), path, dry_run=False)


async def take(document: Document, rows: Mapping[str, Sequence[Row]], path: Path, *, dry_run: bool) -> Taken:
    """Create what the rows of a start's file describe. Raises ConfigError."""
    try:
        return await document.take(rows, dry_run=dry_run)
    except BrokerError as error:
        raise ConfigError("serve.definitions", f"{path}: {error}") from None


async def rows_of(path: Path) -> dict[str, list[Row]]:
    """The rows of a start's file, by section. Raises ConfigError."""

    def read() -> bytes:
        require_regular(path)
        return read_file(path, BYTES_MAX)

    try:
        return await parsed(await Threads()(read))
    except OSError as error:
        raise ConfigError("serve.definitions", f"cannot read {path}: {error.strerror}") from None
    except BrokerError as error:
        raise ConfigError("serve.definitions", f"{path}: {error}") from None
