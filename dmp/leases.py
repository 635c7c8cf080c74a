"""Leases: what a principal is given to open a DMP connection with."""

from collections.abc import Callable
from typing import Protocol

from dmp.exchanges import Exchange
from dmp.message import Head
from dmp.owners import Owner
from dmp.queues import Queue
from dmp.refusals import Code, Refusal

SendReturn = Callable[[Code, Head, bytes], None]
"""Gives a message back on the channel that asked for the sink; harmless once that is closed."""


class Leases(Protocol):
    """What Direct.Put and Direct.Get ask of the keeper of leases. Raises Refusal."""

    def put(self, owner: Owner, sink: Exchange, send_return: SendReturn) -> str:
        """A lease of an exchange that may be published to."""

    def get(self, owner: Owner, feed: Queue) -> str:
        """A lease of a queue that is exclusive to `owner`, and not leased."""


class NoLeases:
    """A broker that keeps none."""

    def put(self, owner: Owner, sink: Exchange, send_return: SendReturn) -> str:
        raise Refusal(Code.NOT_IMPLEMENTED, "this server gives no leases")

    def get(self, owner: Owner, feed: Queue) -> str:
        raise Refusal(Code.NOT_IMPLEMENTED, "this server gives no leases")
