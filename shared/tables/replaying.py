"""The contract between a protocol and a replay: where messages of the past can go again.

A `Plugin` names it lazily (`replays="logmq.replay:target"`), so a replay finds it by the protocol's name and
knows none itself.
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from shared.client.dial import How

if TYPE_CHECKING:
    from shared.plugin import Plugin


class Target(Protocol):
    """A server, connected. `once_each`: a batch that is sent again is known again, and is there once."""

    once_each: bool

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        """Have messages at the end of what is called `name`; returns once they are as safe as that is.

        `writer` names this replay, `seq` counts its batches from 1. Raises BrokerError.
        """


Opener = Callable[[str, int | None, How], AbstractAsyncContextManager[Target]]
"""Host, port (None: the protocol's own), login and TLS."""


def target_of(plugin: "Plugin") -> Opener | None:
    """How to reach such a server; None where nothing can be replayed to one."""
    if plugin.replays is None:
        return None
    module, _, attribute = plugin.replays.partition(":")
    found: Opener = getattr(importlib.import_module(module), attribute)
    return found
