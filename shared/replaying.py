"""The contract between a protocol and a replay: where messages of the past can go again.

A `Plugin` names it lazily (`replays="logmq.replay:REPLAYS"`), so a replay finds it by the protocol's name and
knows none itself.
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
"""Where at a target a message goes: a name's bytes, or whatever else the target's protocol makes of it."""


class PastMessage(NamedTuple):
    """A message as it once passed. `key`, `sender`: empty where it had none.

    `own`: what else only its protocol knows of it, and takes up where it goes there again.
    """

    name: bytes
    payload: bytes
    key: bytes = b""
    sender: bytes = b""
    own: Any = None


Batch = Sequence[tuple[Any, PastMessage]]
"""Messages in order, each with its place."""


def by_place(batch: Batch) -> dict[Any, list[bytes]]:
    """The payloads of each place, in their order."""
    found: dict[Any, list[bytes]] = {}
    for place, message in batch:
        found.setdefault(place, []).append(message.payload)
    return found


class Target(Protocol):
    """A server, connected. `once_each`: a batch that is sent again is known again, and is there once."""

    once_each: bool

    def refuses(self, place: Any, message: PastMessage) -> str | None:
        """Why the protocol can never carry it there; None: it can."""

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        """Have messages at the end of what is there, in order; returns once they are as safe as that is.

        `writer` names this replay, `seq` counts its batches from 1. Raises BrokerError.
        """


Opener = Callable[[str, int | None, How], AbstractAsyncContextManager[Target]]
"""Host, port (None: the protocol's own), login and TLS."""


def one_name(address: str) -> Callable[[MessageOrigin], Place]:
    """The usual place: what stands behind the protocol is one name. Raises ValueError."""
    return NameTemplate.parse(address).name_for


def same_name(message: PastMessage, name: bytes) -> Place:
    """The place that a message had, under this name."""
    return name


@attrs.frozen
class Replays:
    """What a protocol has for replays.

    `place` reads an address and returns what places messages by it. `same` returns the place where a message
    was, by its new name. `recorded` takes the frames of a recorded block apart; None: nothing of it is
    recorded. It raises ValueError where it can read no further.
    `open_at_sender` is as `open`, and sends from where the messages came from, as far as the system lets it.
    """

    open: Opener
    place: Callable[[str], Callable[[MessageOrigin], Place]] = one_name
    same: Callable[[PastMessage, bytes], Place] = same_name
    recorded: "Callable[[Block, bytes], Iterator[PastMessage]] | None" = None
    open_at_sender: Opener | None = None


def replays_of(plugin: "Plugin") -> Replays | None:
    """How to reach such a server, and read its recordings; None where nothing can be replayed to one."""
    found: Replays | None = None if plugin.replays is None else resolve_name(plugin.replays)
    return found
