"""Standard input into a queue: lines as they come, tried again where that was asked for."""

from collections.abc import Sequence

import trio

from dms.client import Client, DmsError, QueueFull
from shared.client.retry import pause_before


class Feeder:
    """Puts messages into one queue. `messages` and `size`: what is in it, and its bytes.

    `wait`: try again what a full queue refused. `again`: send again what a lost connection left unanswered.
    """

    def __init__(self, client: Client, queue: str, *, wait: bool, again: bool) -> None:
        self._client = client
        self._queue = queue
        self._wait = wait
        self._again = again
        self.messages = self.size = self.sent_again = 0

    async def put(self, bodies: Sequence[bytes]) -> None:
        """Returns when the queue has them all. Raises what the client raises."""
        attempts = 0
        while bodies:
            try:
                self.sent_again += await self._client.produce_many(self._queue, bodies, again=self._again)
                refused: Sequence[bytes] = ()
            except DmsError as error:
                if not error.refused:  # of none it is known what became of it
                    raise
                refused = [bodies[place] for place in error.refused]
                if not (self._wait and isinstance(error, QueueFull)):
                    self._count(bodies, refused)
                    raise
            self._count(bodies, refused)
            if refused:
                attempts = 0 if len(refused) < len(bodies) else attempts + 1
                await trio.sleep(pause_before(attempts))
            bodies = refused

    def _count(self, bodies: Sequence[bytes], refused: Sequence[bytes]) -> None:
        self.messages += len(bodies) - len(refused)
        self.size += sum(map(len, bodies)) - sum(map(len, refused))
