"""How often a queue may deliver a message before it is dead, how long it waits in between, and what counts.

A message that comes back is a failed try: by a nack or a reject with `requeue`, or by a channel's end, which
counts for the delivery that it held longest, and for no other (`x-loss-counts`). The consumer sees the number
of these in the header `x-delivery-count`. The queue's log notes it, so it outlives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from dmp.cold_records import ColdHead
from dmp.data_types import EMPTY_TABLE, field_table, joined_tables, without_field
from dmp.properties import with_headers
from dmp.refusals import Refusal

if TYPE_CHECKING:
    from dmp.declarations import QueueArguments
    from dmp.message import Head
    from dmp.queue_log import QueueLog
    from shared.queues.runs import Run

COUNT = "x-delivery-count"
QUORUM_LIMIT = 20
"""Of a queue of type quorum, unless said: RabbitMQ's."""


@attrs.frozen
class Tries:
    """What one queue's arguments say. `limit`: more failed tries than that, and a message is dead; None: any
    number."""

    limit: int | None
    retry_ms: int
    retry_max_ms: int
    loss_counts: str

    @classmethod
    def asked_for(cls, arguments: QueueArguments) -> Tries | None:
        """None: nobody asks, and nothing is counted."""
        limit, loss_counts = arguments.delivery_limit, arguments.loss_counts
        if limit is None and arguments.type == "quorum":
            limit = QUORUM_LIMIT
        if limit is None and not arguments.retry_ms and loss_counts is None:
            return None
        retry_ms = arguments.retry_ms or 0
        retry_max_ms = retry_ms if arguments.retry_max_ms is None else arguments.retry_max_ms
        return cls(None if limit == -1 else limit, retry_ms, retry_max_ms, loss_counts or "oldest")

    def give_back(
        self,
        runs: Sequence[Run],
        oldest: Container[Run] | None,
        keep: Callable[[Run], bool],
        now_ms: int,
        log: QueueLog | None,
    ) -> tuple[list[Run], list[Run], list[Run]]:
        """Count failed tries of messages that come back: those that may be delivered now, those that wait,
        and the dead.

        `oldest`: those that channels held longest, at their end; None: a consumer gives all back. Then they
        may have to wait: `keep` has messages wait whose time has not come, and says whether they do.
        """
        now: list[Run] = []
        waiting: list[Run] = []
        dead: list[Run] = []
        heads: dict[Head, Head] = {}
        loss_counts = self.loss_counts
        for run in runs:
            if oldest is not None and (
                loss_counts == "none" or (loss_counts == "oldest" and run not in oldest)
            ):
                now.append(run)
                continue
            run.head = heads.get(run.head) or self._counted(run.head, heads, now_ms, waits=oldest is None)
            if self.limit is not None and run.head.tries > self.limit:
                dead.append(run)
                continue
            if log is not None:
                log.note_tried((run,))
            run.tries += 1  # it is redelivered then
            if keep(run):
                waiting.append(run)
            else:
                run.tries -= 1
                now.append(run)
        return now, waiting, dead

    def _counted(self, old: Head, heads: dict[Head, Head], now_ms: int, *, waits: bool) -> Head:
        tries = old.tries + 1
        wait_ms = self.wait_ms(tries) if waits else 0
        head = heads[old] = tried(old, tries, now_ms + wait_ms if wait_ms else 0)
        return head

    def wait_ms(self, tries: int) -> int:
        """How long a message waits after so many failed tries."""
        if not self.retry_ms:
            return 0
        return min(self.retry_ms << min(tries - 1, 40), max(self.retry_max_ms, self.retry_ms))


def uncounted(head: Head) -> Head:
    """The head of the same messages in a queue that counts failed tries of its own."""
    if head.noted.headers is None or COUNT.encode() not in head.properties:
        return head
    table = without_field(head.properties[slice(*head.noted.headers)], COUNT.encode())
    return head.sent_to(head.exchange, None, with_headers(head.properties, table))


def timed(head: Head | ColdHead, due_ms: int, *, by_clock: bool) -> Head | ColdHead:
    """The head of the same messages at another time (Unix ms), 0: at once."""
    if isinstance(head, ColdHead):
        return attrs.evolve(head, due_ms=due_ms, by_clock=by_clock)
    return tried(head, head.tries, due_ms, by_clock)


def tried(head: Head, tries: int, due_ms: int = 0, by_clock: bool = False) -> Head:
    """The head of the same messages after so many failed tries; they are due then (Unix ms), 0: at once."""
    new = None
    if tries:
        table = EMPTY_TABLE if head.noted.headers is None else head.properties[slice(*head.noted.headers)]
        counted = joined_tables(without_field(table, COUNT.encode()), field_table({COUNT: tries}))
        with suppress(Refusal):  # no field more fits the table
            new = head.sent_to(head.exchange, None, with_headers(head.properties, counted))
    if new is None:
        new = head.sent_to(head.exchange, None, head.properties)
    new.tries, new.due_ms, new.by_clock, new.came_ms = tries, due_ms, by_clock, head.came_ms
    new.cost_bytes = head.cost_bytes  # what was charged for them
    return new
