"""Messages into a queue, tried again where that is asked for: for `dms produce` and for a replay."""

from collections.abc import Sequence
from typing import Unpack

import trio

from dms.client import Client, DmsError, JobSaid, QueueFull
from shared.client.retry import pause_before


class Feeder:
    """Puts messages into one queue. `messages`, `size`: number and bytes put so far.

    `said`: of each message. `wait`: retry what a full queue refuses. `again`: send again what a lost
    connection left unanswered.
    """

    def __init__(
        self, client: Client, queue: str, *, wait: bool, again: bool, **said: Unpack[JobSaid]
    ) -> None:
        self._client = client
        self._queue = queue
        self._wait = wait
        self._again = again
        self._said = said
        self.messages = self.size = self.sent_again = 0

    async def put(self, bodies: Sequence[bytes]) -> None:
        """Returns when the queue has them all. Raises as the client."""
        attempts = 0
        while bodies:
            try:
                self.sent_again += await self._client.produce_many(
                    self._queue, bodies, again=self._again, **self._said
                )
                refused: Sequence[bytes] = ()
            except DmsError as error:
                if not error.refused:  # the outcome of all of them is unknown
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
