"""Definitions: durable objects other than messages, exported as rows and created again from them.

A service offers `definitions: Sequence[DefinitionSection]`, one for each section that it has rows in. The
host puts all sections into one document (`brokers.admin.definitions`).
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from shared.errors import BrokerError

if TYPE_CHECKING:
    import structlog

    from shared.storage.store import Ticket

SECTIONS = ("users", "topics", "exchanges", "queues", "bindings", "groups", "bridges")
"""The order of creation: later sections may need earlier ones."""

Row = Mapping[str, Any]
Promised = Callable[[str, str], Row | None]
"""The row by which the document creates this name in a section of this protocol."""
Written = Callable[[str, str], bool]
"""Whether a document that is being exported has this name in a section of this protocol."""
Room = tuple[str, int, int]
"""The setting that bounds the number of objects, how many are there, and how many it allows."""


def tell_lowered(room: Room, log: "structlog.stdlib.BoundLogger") -> None:
    """Log where a limit is below what was admitted under a higher one."""
    setting, count, most = room
    if count > most:
        log.warning(
            "a limit is below what there is: all of that is served, and no more is taken; remove some, or "
            "raise the limit",
            setting=setting,
            limit=most,
            there=count,
        )


class Conflict(BrokerError):
    """An object of that name exists and differs; the text says how."""


class LeftOut(BrokerError):
    """A valid row that this server cannot create; the text says why."""


@attrs.frozen
class Made:
    """A created object. `new`: it did not exist. `ticket`: done when the object is durable."""

    new: bool
    ticket: "Ticket | None" = None


@attrs.frozen
class DefinitionSection:
    """One protocol's rows of a section.

    `rows(written)`: yields all rows, in JSON's values. Objects come and go meanwhile: a row that needs
    another object is left out unless that is `written`. `name`: the name of a row's object.
    `make(row, dry_run, promised)`: create the object unless it exists. Raises Conflict, LeftOut, and
    BrokerError for an invalid row, all that it can in the dry run. `keys`: all that a row may have, besides
    its protocol. `room`: for how many objects there is any.
    """

    section: str
    keys: Sequence[str]
    rows: Callable[[Written], Iterator[Row]]
    name: Callable[[Row], str]
    make: Callable[[Row, bool, Promised], Awaitable[Made]]
    room: Callable[[], Room] | None = None


def name_of(row: Row) -> str:
    return str(row.get("name", ""))
