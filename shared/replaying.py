"""The contract between a protocol and a replay: how past messages are sent to a server again.

A `Plugin` names its `Replays` lazily (`replays="logmq.replay:REPLAYS"`), so the replay finds it by the
protocol's name and imports no protocol. What an address means the protocol's bridge ends say.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from shared.client.dial import How

if TYPE_CHECKING:
    from shared.recording.blocks import Block


class PastMessage(NamedTuple):
    """A message as it once passed. `key`, `sender`: empty if it had none.

    `own`: data that only its protocol understands, and uses when the message goes there again.
    """

    name: bytes
    payload: bytes
    key: bytes = b""
    sender: bytes = b""
    own: Any = None


Batch = Sequence[tuple[bytes, PastMessage]]
"""Messages in order, each with the name that it goes to."""


def by_name(batch: Batch) -> dict[bytes, list[bytes]]:
    """The payloads of each name, in their order."""
    found: dict[bytes, list[bytes]] = {}
    for name, message in batch:
        found.setdefault(name, []).append(message.payload)
    return found


@attrs.frozen
class Target:
    """A connection to a server.

    `refuses(name, message)`: why the protocol can never carry the message there; None if it can.
    `send(batch, writer, seq)`: append messages in order; returns once they are as durable as the target makes
    them. `writer` names the replay, `seq` counts its batches from 1. Raises BrokerError.
    """

    refuses: Callable[[bytes, PastMessage], str | None]
    send: Callable[[Batch, str, int], Awaitable[None]]


@attrs.frozen
class TargetAddress:
    """How a target is reached. `how`: login and TLS. `place`: the address behind the colon; None: messages go
    where each was. `at_sender`: they leave from their original addresses, as far as the system allows.
    """

    host: str
    port: int
    how: How = attrs.field(factory=How)
    place: str | None = None
    at_sender: bool = False


@attrs.frozen
class Replays:
    """A protocol's functions for replays.

    `recorded` parses the frames of a recorded block, and raises ValueError at malformed bytes; None: the
    protocol is not recorded.
    """

    open: Callable[[TargetAddress], AbstractAsyncContextManager[Target]]
    recorded: "Callable[[Block, bytes], Iterator[PastMessage]] | None" = None
