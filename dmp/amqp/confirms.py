"""Publisher confirms (`confirm.select`): which publishes of a channel the broker answers for.

Publishes are numbered from 1 on, and confirmed in order: several at once where they can be, since a
confirmation of number n with `multiple` set stands for all before it. What waits for the disk holds those
behind it.
"""

from collections import deque
from typing import TYPE_CHECKING

from dmp.amqp.wire import ack_frame, nack_frame
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel


class _Run:
    """Publishes up to `last` that wait for one ticket (None: for nothing); `refused`: they were not taken."""

    __slots__ = ("last", "refused", "ticket")

    def __init__(self, ticket: Ticket | None, last: int, refused: bool) -> None:
        self.ticket = ticket
        self.last = last
        self.refused = refused


class Confirms:
    """One channel's."""

    __slots__ = ("_channel", "_done", "_published", "_runs")

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._published = 0
        self._done = 0
        self._runs: deque[_Run] = deque()

    @property
    def owed(self) -> bool:
        return bool(self._runs)

    def published(self, count: int, ticket: Ticket | None) -> None:
        """So many more; say it with `advance` at the end of the stretch."""
        self._add(count, ticket, refused=False)

    def refused(self, count: int) -> None:
        """So many more that were not taken."""
        self._add(count, None, refused=True)

    def _add(self, count: int, ticket: Ticket | None, refused: bool) -> None:
        self._published += count
        runs = self._runs
        if runs and runs[-1].ticket is ticket and runs[-1].refused == refused:
            runs[-1].last = self._published
            return
        runs.append(_Run(ticket, self._published, refused))
        if ticket is not None:
            ticket.when_done(self._channel.session.connection.guarded(self._ticket_done))

    def _ticket_done(self, _: Ticket) -> None:
        self.advance()
        self._channel.session.quiet()

    def advance(self) -> None:
        """Confirm what can be."""
        runs, first, taken = self._runs, self._done, 0
        frames = []
        number = self._channel.number
        while runs:
            run = runs[0]
            if run.ticket is not None and not run.ticket.done:
                break
            runs.popleft()
            failed = run.refused or (run.ticket is not None and run.ticket.error is not None)
            if failed:
                if first < self._done:
                    frames.append(ack_frame(number, self._done, self._done - first > 1))
                frames.append(nack_frame(number, run.last, run.last - self._done > 1))
                self._channel.session.broker.counts.refused_publishes += run.last - self._done
                first = run.last
            else:
                taken += run.last - self._done
            self._done = run.last
        if first < self._done:
            frames.append(ack_frame(number, self._done, self._done - first > 1))
        if frames:
            self._channel.session.broker.counts.confirmed += taken
            self._channel.send(b"".join(frames))
