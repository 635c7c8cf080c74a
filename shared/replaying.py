"""The contract between a protocol and a replay: how past messages are sent to a server again.

A `Plugin` names its `Replays` lazily (`replays="logmq.replay:REPLAYS"`), so the replay finds it by the
protocol's name and imports no protocol.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs

from shared.addresses import MessageOrigin, NameTemplate
from shared.client.dial import How

if TYPE_CHECKING:
    from shared.plugin import Plugin
    from shared.recording.blocks import Block

Place = Hashable
"""A message's place at a target: the bytes of a name, or another value of the target's protocol."""


class PastMessage(NamedTuple):
    """A message as it once passed. `key`, `sender`: empty if it had none.

    `own`: data that only its protocol understands, and uses when the message goes there again.
    """

    name: bytes
    payload: bytes
    key: bytes = b""
    sender: bytes = b""
    own: Any = None


Batch = Sequence[tuple[Any, PastMessage]]
"""Messages in order, each as (place, message)."""


def by_place(batch: Batch) -> dict[Any, list[bytes]]:
    """The payloads of each place, in their order."""
    found: dict[Any, list[bytes]] = {}
    for place, message in batch:
        found.setdefault(place, []).append(message.payload)
    return found


class Target(Protocol):
    """A connection to a server. `once_each`: the server recognizes a repeated batch, and stores it once."""

    once_each: bool

    def refuses(self, place: Any, message: PastMessage) -> str | None:
        """Why the protocol can never carry the message there; None if it can."""

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        """Append messages in order; returns once they are as durable as the target makes them.

        `writer` names this replay, `seq` counts its batches from 1. Raises BrokerError.
        """


Opener = Callable[[str, int | None, How], AbstractAsyncContextManager[Target]]
"""Host, port (None: the protocol's own), login and TLS."""


def one_name(address: str) -> Callable[[MessageOrigin], Place]:
    """The usual place: the address after the protocol is one name. Raises ValueError."""
    return NameTemplate.parse(address).name_for


def same_name(message: PastMessage, name: bytes) -> Place:
    """The place of a message under its (new) name."""
    return name


@attrs.frozen
class Replays:
    """A protocol's functions for replays.

    `place` parses an address, and returns a function from message to place. `same` returns a message's own
    place under its new name. `recorded` parses the frames of a recorded block, and raises ValueError at
    malformed bytes; None: the protocol is not recorded. `open_at_sender` is as `open`, but sends from the
    messages' original addresses, as far as the system allows.
    """

    open: Opener
    place: Callable[[str], Callable[[MessageOrigin], Place]] = one_name
    same: Callable[[PastMessage, bytes], Place] = same_name
    recorded: "Callable[[Block, bytes], Iterator[PastMessage]] | None" = None
    open_at_sender: Opener | None = None


def replays_of(plugin: "Plugin") -> Replays | None:
    """The protocol's `Replays`, loaded; None if nothing can be replayed to its servers."""
    found: Replays | None = None if plugin.replays is None else resolve_name(plugin.replays)
    return found
