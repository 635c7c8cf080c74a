"""Definitions: what outlives a server's messages, written down as rows, and made again from them.

A service offers `definitions: Sequence[DefinitionSection]`, one for each section that it has rows in. The
host puts all sections into one document (`brokers.definitions`).
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from shared.errors import BrokerError

if TYPE_CHECKING:
    from shared.storage.store import Ticket

SECTIONS = ("users", "topics", "exchanges", "queues", "bindings", "groups", "bridges")
"""In this order they are made: what stands later may need what stands before."""
PART = 200
"""Rows that are written down before others have their turn."""

Row = Mapping[str, Any]
T = TypeVar("T")
Promised = Callable[[str, str], bool]
"""Whether a document makes what has this name in a section of this protocol."""


class Conflict(BrokerError):
    """There is another one of that name; the text names it, and says what differs."""


class LeftOut(BrokerError):
    """A row that this server cannot have, which is no fault of it; the text says why."""


@attrs.frozen
class Made:
    """`new`: it was not there. `ticket`: what has to be done before it is durable."""

    new: bool
    ticket: "Ticket | None" = None


@attrs.frozen
class DefinitionSection:
    """One protocol's rows of a section.

    `rows`: all of them, in values that JSON has, some at a time. `name`: what a row's object is called.
    `make(row, dry_run, promised)`: have there be such a one; one that is there already is left as it is.
    Raises Conflict, LeftOut, and BrokerError where the row says what cannot be.
    """

    section: str
    rows: Callable[[], Iterator[Sequence[Row]]]
    name: Callable[[Row], str]
    make: Callable[[Row, bool, Promised], Awaitable[Made]]


def name_of(row: Row) -> str:
    return str(row.get("name", ""))


def parts(found: Sequence[T]) -> Iterator[Sequence[T]]:
    """`found`, `PART` at a time."""
    for at in range(0, len(found), PART):
        yield found[at : at + PART]
