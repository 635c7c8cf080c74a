"""Transactions of a channel (PROTOCOL.md, "Transactions"): publishes and acknowledgements are held until the
commit, which is one entry of the journal, however many queues it touches.

It is applied in one stretch, which the limits of a transaction bound. Until then a delivery that is settled
still counts against prefetch, and a rollback makes it unacknowledged again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import attrs
from pamqp import commands

from dmp.amqp.channel import by_queue, forget_unacked
from dmp.dead_letters import letter_head
from dmp.exchanges import DEFAULT_IN_RULES
from dmp.memory import UserMemory, check
from dmp.message import Head
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, refused_by_store
from shared.access import READ, WRITE
from shared.budget import Account
from shared.errors import StoreError
from shared.queues.runs import Run

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel, Delivery
    from dmp.amqp.publishing import PublishTemplate
    from dmp.broker import Broker
    from shared.storage.store import Ticket

LETTER_MESSAGES = 32  # a rejection that makes a dead letter counts as so many: PROTOCOL.md's limits
PUBLISH_BYTES = 750
"""Memory of a publish that shares nothing with others, beside what counts with its message."""


class Outcome(Enum):
    """What becomes of a delivery."""

    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    REQUEUED = "requeued"


@attrs.define(eq=False, repr=False)
class Transaction:
    """One channel's, from commit to commit."""

    _channel: Channel
    settled: int = 0
    """How many deliveries are held."""
    _publishes: list[tuple[PublishTemplate, Sequence[Queue], Sequence[bytes]]] = attrs.Factory(list)
    _deliveries: dict[Outcome, list[Delivery]] = attrs.Factory(dict)  # settled ones
    _messages: int = 0
    _bytes: int = 0
    _cost_bytes: int = 0
    _payer: UserMemory | None = attrs.Factory(lambda self: self._channel.mux.payer, takes_self=True)

    @property
    def _memory(self) -> Account:
        return self._channel.mux.broker.accounts.connections

    @property
    def holds(self) -> bool:
        return bool(self._publishes or self._deliveries)

    def publish(self, template: PublishTemplate, bodies: Sequence[bytes]) -> None:
        """Raises Refusal."""
        if template.content.immediate:
            raise Refusal(Code.NOT_IMPLEMENTED, "immediate in a transaction")
        messages = len(bodies) * max(1, len(template.queues))
        body_bytes = messages * template.head.stored_bytes
        if self.holds or len(bodies) > 1:  # a single message always fits
            self._need_room(messages, body_bytes)
        user = self._channel.mux.session.user
        check(self._memory, PUBLISH_BYTES, user=user)
        self._memory.charge(PUBLISH_BYTES, user)
        self._messages += messages
        self._bytes += body_bytes
        cost_bytes = template.head.cost_bytes * len(bodies)
        self._cost_bytes += cost_bytes
        self._channel.mux.broker.memory.take(cost_bytes, self._payer)
        self._publishes.append((template, template.queues, bodies))
        if template.head.large:
            for body in bodies:
                self._channel.mux.broker.bodies.refer(body)

    def settle(self, outcome: Outcome, tag: int, multiple: bool) -> None:
        """Raises Refusal."""
        taken = self._channel.pop_unacked(tag, multiple)
        self.settled += _messages_in(taken)
        self._deliveries.setdefault(outcome, []).extend(taken)
        self._messages += _messages_in(taken)
        if outcome is Outcome.REJECTED:
            letters = [delivery for delivery in taken if _leaves_letters(delivery[1].queue)]
            self._messages += _messages_in(letters) * (LETTER_MESSAGES - 1)
        self._need_room(0, 0)  # above the limits the channel ends, which gives all of it back

    def rollback(self) -> None:
        """Drop the publishes, and make the deliveries unacknowledged again."""
        for deliveries in self._deliveries.values():
            self._channel.unacked.put_back(deliveries)
        self._forget()

    def commit(self) -> None:
        """Apply everything, and reply when it is on the disk. Raises Refusal; then nothing is applied."""
        channel = self._channel
        mux = channel.mux
        broker, counts = mux.broker, mux.broker.counts
        for exchange in {template.content.exchange for template, _, _ in self._publishes}:
            mux.require(WRITE, exchange or DEFAULT_IN_RULES)  # rules may have changed since
        change = QueueChange(broker)
        returned: list[tuple[Head, Sequence[bytes]]] = []
        for template, queues, bodies in self._publishes:
            if not change.put(template.head, queues, bodies):
                counts.unroutable += len(bodies)
                if template.content.mandatory:
                    returned.append((template.head, bodies))
        for outcome, deliveries in self._deliveries.items():
            change.settle(outcome, deliveries)
        for queue in change.queues:
            mux.require(READ, queue.name)
        broker.memory.give(self._cost_bytes, self._payer)  # the queues count it from now on
        self._cost_bytes = 0
        try:
            ticket = change.apply()
        except StoreError as error:
            counts.refused_publishes += sum(len(bodies) for _, _, bodies in self._publishes)
            raise refused_by_store(error) from error
        counts.dead_lettered += change.letters
        counts.dead_letters_lost += change.letters_lost
        counts.acknowledged += _messages_in(self._deliveries.get(Outcome.ACKNOWLEDGED, ()))
        late = sum([len(run) for runs in change.rejected.values() for run in runs])  # they are counted there
        counts.rejected += _messages_in(self._deliveries.get(Outcome.REJECTED, ())) - late
        for template, _, bodies in self._publishes:
            counts.published += len(bodies)
            counts.published_bytes += len(bodies) * template.head.body_bytes
            mux.publishing.record(template, bodies)
        for head, bodies in returned:
            for body in bodies:
                channel.send_return(Code.NO_ROUTE, head, body)
        settled = list(self._deliveries.values())
        self._forget()
        channel.reply(commands.Tx.CommitOk(), ticket)  # before the deliveries that the commit makes possible
        for deliveries in settled:
            forget_unacked(deliveries)
        if ticket is None:
            change.let_go()
        else:
            ticket.when_done(change.let_go)
        for queue, runs in change.requeued.items():
            queue.requeue(runs)
        for queue, runs in change.rejected.items():
            queue.reject(runs)
        channel.crowded = False
        channel.dispatch()
        change.dispatch()
        for queue in change.requeued:
            if not queue.deleted:
                queue.trim()
        if mux.memory.full:
            mux.wait_for_memory()

    def _need_room(self, messages: int, body_bytes: int) -> None:
        """Raises Refusal if so much more would be above the limits."""
        settings = self._channel.mux.broker.settings
        for setting, held, more in (
            ("transaction_messages_max", self._messages, messages),
            ("transaction_bytes_max", self._bytes, body_bytes),
        ):
            most = getattr(settings, setting)
            if held + more > most:
                text = f"a transaction may hold {setting} = {most}: commit more often"
                raise Refusal(Code.PRECONDITION_FAILED, text)

    def _forget(self) -> None:
        broker = self._channel.mux.broker
        broker.memory.give(self._cost_bytes, self._payer)
        for body in [
            body for template, _, bodies in self._publishes if template.head.large for body in bodies
        ]:
            broker.bodies.let_go(body)
        self._memory.give(len(self._publishes) * PUBLISH_BYTES, self._channel.mux.session.user)
        self._publishes.clear()
        self._deliveries = {}
        self.settled = self._messages = self._bytes = self._cost_bytes = 0


def _messages_in(deliveries: Iterable[Delivery]) -> int:
    return sum([len(tags) for tags, _, _ in deliveries])


def _leaves_letters(queue: Queue) -> bool:
    return queue.kind.arguments.dead_letter_exchange is not None and not queue.deleted


@attrs.define(eq=False)
class QueueChange:
    """Messages that come to queues and leave others in one step: after a crash all of it is done, or nothing.

    When the disk has it, or refuses it, call `let_go`.
    """

    _broker: Broker
    requeued: dict[Queue, list[Run]] = attrs.Factory(dict)
    rejected: dict[Queue, list[Run]] = attrs.Factory(dict)
    """Dead letters that have no room yet: they are rejected behind this step, and wait for it."""
    letters: int = 0  # dead letters that have a queue to go to,
    letters_lost: int = 0  # and that have none
    _runs: list[tuple[Queue, Head, Sequence[bytes]]] = attrs.Factory(list)
    _coming: dict[Queue, tuple[int, int]] = attrs.Factory(dict)
    """Messages of `_runs`, and bytes of their bodies, of queues that may be full."""
    _leaving: dict[Queue, list[Run]] = attrs.Factory(dict)

    def put(self, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> bool:
        """Add a run; a full queue gets what it has room for (`Capacity.room_for`). Returns whether any queue
        is left."""
        is_routed = False
        for queue in queues:
            if queue.deleted:
                continue
            is_routed = True
            fitting = bodies
            if queue.capacity.capped:
                count, size = self._coming.get(queue, (0, 0))
                room = queue.capacity.room_for(head, len(bodies), count, size)
                self._broker.counts.dropped_full += len(bodies) - room
                fitting = bodies[:room]
                self._coming[queue] = count + room, size + room * head.body_bytes
            if fitting:
                self._runs.append((queue, head, fitting))
        return is_routed

    def settle(self, outcome: Outcome, deliveries: Sequence[Delivery]) -> None:
        """Have messages leave their queues, or return there. Dead letters come to theirs."""
        change = self.requeued if outcome is Outcome.REQUEUED else self._leaving
        for queue, runs in by_queue(deliveries).items():
            for run in runs:
                letters = outcome is Outcome.REJECTED and _leaves_letters(queue)
                waits = letters and (queue in self.rejected or not self._put_letters(queue, run))
                (self.rejected if waits else change).setdefault(queue, []).append(run)

    def _put_letters(self, queue: Queue, run: Run) -> bool:
        """False: they are to wait for room."""
        broker = self._broker
        head = letter_head(broker, queue, run.head, "rejected")
        targets = broker.dead_letters.targets(head)
        has_room = any(self._has_room(target, head, len(run.bodies)) for target in targets)
        if not has_room and (targets or queue.kind.arguments.keeps_letters):
            return False
        if self.put(head, targets, run.bodies):
            self.letters += len(run.bodies)
        else:
            self.letters_lost += len(run.bodies)
        return True

    def _has_room(self, queue: Queue, head: Head, count: int) -> bool:
        """Whether the queue takes so many dead letters, or drops them where it is full."""
        if not queue.kind.arguments.rejects:
            return True
        return queue.capacity.room_for(head, count, *self._coming.get(queue, (0, 0))) == count

    def apply(self) -> Ticket | None:
        """Apply it. Returns the ticket that all of it waits for, if any.

        Raises StoreError; then nothing has changed.
        """
        comes_with_record = any(queue.durable and head.persistent for queue, head, _ in self._runs)
        ticket = self._broker.append(self._runs, self._leaving, reserved=not comes_with_record)
        for queue, runs in self._leaving.items():
            if queue.log is not None:
                queue.log.part(runs)
        return ticket

    def let_go(self, written: Ticket | None = None) -> None:
        """Have the queues forget what leaves, or have it back where the disk has refused that."""
        refused = written is not None and self._broker.was_taken_back(written)
        for queue, runs in self._leaving.items():
            if refused:
                queue.requeue(runs, failed=False)
            else:
                queue.settle_written(runs)
        if refused:
            self.dispatch()

    @property
    def queues(self) -> Collection[Queue]:
        """The queues whose deliveries are settled."""
        return self._leaving | self.requeued | self.rejected

    def dispatch(self) -> None:
        """Have the queues give out what they can."""
        for queue in self.queues:
            if not queue.deleted:
                queue.dispatch()
