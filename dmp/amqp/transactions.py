"""Transactions of a channel (`tx.select`): publishes and acknowledgements are held until the commit.

A commit is one entry of the journal, however many queues it touches, so a crash leaves all of it or nothing.
The reply waits until that entry is on the disk. A rejected message moves to its dead-letter exchange in the
same step. Held messages count as memory, and have limits of their own.

A commit is applied in one stretch, which the limits of a transaction bound: `transaction_messages_max` counts
messages, once for each of their queues, and deliveries.

A client cannot settle a delivery twice in a transaction. Until the commit the delivery still counts against
prefetch, and a rollback makes it unacknowledged again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING

import attrs
from pamqp import commands

from dmp.amqp.channel import (
    by_queue,
    dispatched,
    forget_unacked,
)
from dmp.dead_letters import letter_head, without_circles
from dmp.exchanges import DEFAULT_IN_RULES, RouteSearch
from dmp.memory import check
from dmp.message import Head, Message
from dmp.pacing import WORK_PER_STRETCH
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, refused_by_store
from dmp.series import Series
from shared.access import READ, WRITE
from shared.budget import Account
from shared.errors import StoreError

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel, Delivery
    from dmp.amqp.publishing import Post
    from dmp.broker import Broker
    from shared.storage.store import Log, Ticket

PUTS_AT_ONCE = 512  # queues of all messages and dead letters that are put into them in one stretch
BODIES_PER_RUN = 8  # of messages that are alike, in slices; to very many queues they go one by one
LETTER_MESSAGES = 32  # a rejection that makes a dead letter counts as so many: PROTOCOL.md's limits
POST_BYTES = 750
"""Memory of a publish that shares nothing with others: 940 measured, 200 of them count with its message."""


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
    _posts: list[tuple[Post, Sequence[Queue], Sequence[bytes]]] = attrs.Factory(list)
    _deliveries: dict[Outcome, dict[int, Delivery]] = attrs.Factory(dict)  # settled ones, by tag
    _prepared: QueueChange | None = None  # for the commit
    _messages: int = 0
    _bytes: int = 0
    _cost_bytes: int = 0

    @property
    def _memory(self) -> Account:
        return self._channel.mux.broker.accounts.transactions

    @property
    def holds(self) -> bool:
        return bool(self._posts or self._deliveries)

    def publish(self, post: Post, bodies: Sequence[bytes]) -> None:
        """Raises Refusal."""
        if post.content.immediate:
            raise Refusal(Code.NOT_IMPLEMENTED, "immediate in a transaction")
        messages = len(bodies) * max(1, len(post.queues))
        body_bytes = messages * post.head.stored_bytes
        if self.holds or len(bodies) > 1:  # a single message always fits
            self._need_room(messages, body_bytes)
        user = self._channel.mux.session.user
        check(self._memory, POST_BYTES, user=user)
        self._memory.charge(POST_BYTES, user)
        self._messages += messages
        self._bytes += body_bytes
        cost_bytes = post.head.cost_bytes * len(bodies)
        self._cost_bytes += cost_bytes
        self._channel.mux.broker.memory.take(cost_bytes)
        self._posts.append((post, post.queues, bodies))
        if post.head.large:
            for body in bodies:
                self._channel.mux.broker.bodies.refer(body)

    def settle(self, outcome: Outcome, tag: int, multiple: bool) -> None:
        """Raises Refusal."""
        taken = self._channel.pop_unacked(tag, multiple)
        self.settled += len(taken)
        if outcome in self._deliveries:
            self._deliveries[outcome].update(taken)
        else:
            self._deliveries[outcome] = taken
        self._messages += len(taken)
        if outcome is Outcome.REJECTED:
            queues = Counter(map(itemgetter(1), taken.values()))
            letters = sum(count for queue, count in queues.items() if _leaves_letters(queue))
            self._messages += letters * (LETTER_MESSAGES - 1)
        self._need_room(0, 0)  # above the limits the channel ends, which gives all of it back

    def rollback(self) -> None:
        """Drop the publishes, and make the deliveries unacknowledged again."""
        channel = self._channel
        if self._deliveries:
            unacked = channel.unacked
            for settled in self._deliveries.values():
                unacked |= settled
            tags = sorted(unacked)
            channel.unacked = dict(zip(tags, map(unacked.__getitem__, tags), strict=True))
        self._forget()

    def prepare(self) -> Callable[[Callable[[], None]], None] | None:
        """None: `commit` it now. Else something is to be waited for: ask again when this calls back.

        Raises Refusal.
        """
        broker = self._channel.mux.broker
        if self._prepared is None:
            self._prepared = prepared = QueueChange(broker)
            prepared.gather(self._deliveries)
            steps = prepared.address()
            if next(steps, steps) is not steps:  # bindings are made for a route to take long
                broker.long_work.add(steps)
        return None if self._prepared.whole else broker.long_work.when_idle

    def commit(self) -> None:
        """Apply everything, and reply when it is on the disk. Raises Refusal; then nothing is applied."""
        channel, change = self._channel, self._prepared
        assert change is not None
        mux = channel.mux
        broker = mux.broker
        self._require_exchanges()
        for queue in change.queues:
            mux.require(READ, queue.name)
        returned: list[tuple[Head, Sequence[bytes]]] = []
        letters = [0, 0]
        for queue, series in self._entries(change, returned, letters):
            change.put(queue, series)
        broker.memory.give(self._cost_bytes)  # the queues count it from now on
        self._cost_bytes = 0
        try:
            ticket = change.apply()
        except StoreError as error:
            broker.counts.refused_publishes += sum(len(bodies) for _, _, bodies in self._posts)
            raise refused_by_store(error) from error
        self._count_settled(letters)
        self._count_published(self._posts)
        for head, bodies in returned:
            for body in bodies:
                channel.send_return(Code.NO_ROUTE, head, body)
        mux.worked(self._messages)
        settled = list(self._deliveries.values())
        self._forget()
        channel.reply(commands.Tx.CommitOk(), ticket)  # before the deliveries that the commit makes possible
        for deliveries in settled:
            forget_unacked(deliveries.values())
        if ticket is None:
            change.let_go()
        else:
            ticket.when_done(change.let_go)
        for queue, messages in change.requeued.items():
            queue.requeue(messages)
        channel.crowded = False
        channel.dispatch()
        change.dispatch()
        for queue in change.requeued:
            if not queue.deleted:
                queue.trim()
        if broker.memory.full:
            mux.wait_for_memory()

    def _entries(
        self, change: QueueChange, returned: list[tuple[Head, Sequence[bytes]]], letters: list[int]
    ) -> Iterator[tuple[Queue, Series]]:
        """What comes to queues, each found to have room when it is asked for. `letters`: how many dead
        letters have no queue to go to, and how many have one. Raises Refusal."""
        if change.laborious:
            text = "the routes of the dead letters are too much work for one transaction"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        for post, queues, bodies in self._posts:
            if not (yield from change.open_to(Series(post.head, bodies), queues)):
                self._channel.mux.broker.counts.unroutable += len(bodies)
                if post.content.mandatory:
                    returned.append((post.head, bodies))
        for queue, message, head, targets in change.addressed:
            if _leaves_letters(queue):  # else it was deleted meanwhile
                found = yield from change.open_to(Series(head, (message.body,)), targets)
                letters[found] += 1

    def _count_settled(self, letters: list[int]) -> None:
        counts = self._channel.mux.broker.counts
        counts.dead_lettered += letters[True]
        counts.dead_letters_lost += letters[False]
        counts.acknowledged += len(self._deliveries.get(Outcome.ACKNOWLEDGED, ()))
        counts.rejected += len(self._deliveries.get(Outcome.REJECTED, ()))

    def _count_published(self, posts: Iterable[tuple[Post, Sequence[Queue], Sequence[bytes]]]) -> None:
        """Count and record what was published."""
        mux = self._channel.mux
        counts = mux.broker.counts
        for post, _, bodies in posts:
            counts.published += len(bodies)
            counts.published_bytes += len(bodies) * post.head.body_bytes
            mux.publishing.record(post, bodies)

    def _require_exchanges(self) -> None:
        """Rules may have changed since the publishes. Raises Refusal."""
        for exchange in {post.content.exchange for post, _, _ in self._posts}:
            self._channel.mux.require(WRITE, exchange or DEFAULT_IN_RULES)

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
        broker.memory.give(self._cost_bytes)
        for body in [body for post, _, bodies in self._posts if post.head.large for body in bodies]:
            broker.bodies.let_go(body)
        self._memory.give(len(self._posts) * POST_BYTES, self._channel.mux.session.user)
        self._posts.clear()
        self._deliveries = {}
        self._prepared = None
        self.settled = self._messages = self._bytes = self._cost_bytes = 0


def _leaves_letters(queue: Queue) -> bool:
    return queue.kind.arguments.dead_letter_exchange is not None and not queue.deleted


@attrs.define(eq=False)
class _QueuePart:
    """One queue's part. `records`: of those messages that come with one; `logged`: how many these are.
    `leaving`: messages that leave; `taken`: their records.
    """

    coming: int = 0
    body_bytes: int = 0
    logged: int = 0
    records: list[bytes] = attrs.Factory(list)
    leaving: list[Sequence[Message]] = attrs.Factory(list)
    taken: list[bytes] = attrs.Factory(list)


_NOTHING_COMES = _QueuePart()


@attrs.define(eq=False)
class QueueChange:
    """Messages that come to queues and leave others in one step: after a crash all of it is done, or nothing.

    What is durable of it is one entry of the journal, however many queues there are. Go through
    `address` after `gather`, then call `put` and `apply`, without a wait in between. When the disk has it, or
    refuses it, call `let_go`.
    """

    _broker: Broker
    _puts: list[tuple[Queue, Head, list[Message], bool]] = attrs.Factory(list)  # with a record, or without
    _parts: dict[Queue, _QueuePart] = attrs.Factory(lambda: defaultdict(_QueuePart))
    _large: dict[bytes, None] = attrs.Factory(dict)  # references that come to logs
    whole: bool = False  # `gather` and `address` are through
    queues: dict[Queue, None] = attrs.Factory(dict)  # those of all that it has gathered
    requeued: dict[Queue, list[Message]] = attrs.Factory(dict)
    letters: list[tuple[Queue, Message]] = attrs.Factory(list)
    """Rejected messages that become dead letters, in the order in which they were rejected."""
    addressed: list[tuple[Queue, Message, Head, Sequence[Queue]]] = attrs.Factory(list)
    """Dead letters with their new heads and their targets; no targets also where the exchange is not
    there."""
    laborious: bool = False  # their routes are too much work, and not all of them found

    def gather(self, settled: Mapping[Outcome, Mapping[int, Delivery]]) -> None:
        """Take what a transaction has settled."""
        for outcome, by_tag in settled.items():
            deliveries = list(by_tag.values())
            if outcome is Outcome.REJECTED:
                letters = [(queue, message) for _, queue, message in deliveries if _leaves_letters(queue)]
                self.letters += letters
            for queue, messages in by_queue(deliveries).items():
                self.queues[queue] = None
                if outcome is Outcome.REQUEUED:
                    self.requeued.setdefault(queue, []).extend(messages)
                else:
                    self.leave(queue, messages)

    def address(self) -> Iterator[None]:
        """Find where the letters go, all of them in one step unless bindings are made for more."""
        broker, work = self._broker, 0
        for queue, message in self.letters:
            if not _leaves_letters(queue):
                continue
            head = letter_head(broker, queue, message, "rejected")
            search = RouteSearch(broker.route_steps(head.exchange, head))
            yield from search.rest()
            targets: Sequence[Queue] = ()
            try:
                found, route_work = search.found()
                targets = without_circles(head, found)
                work += route_work
            except Refusal:  # the exchange is not there
                pass
            if work > WORK_PER_STRETCH:
                self.laborious = True
                break
            self.addressed.append((queue, message, head, targets))
        self.whole = True

    def put(self, queue: Queue, series: Series) -> None:
        """Add what `open_to` has found room for."""
        head, part = series.head, self._parts[queue]
        messages = queue.number(head, series.bodies)
        part.coming += len(messages)
        part.body_bytes += len(messages) * head.body_bytes
        logged = queue.log is not None and (head.persistent or queue.paged)
        if logged:
            part.records.append(series.pack(messages[0].number))
            part.logged += len(messages)
            if head.large:
                self._large.update(dict.fromkeys(series.bodies))
        self._puts.append((queue, head, messages, logged))

    def leave(self, queue: Queue, messages: Sequence[Message]) -> None:
        """Take unacknowledged messages out of their queue: they are acknowledged, or rejected."""
        part = self._parts[queue]
        part.leaving.append(messages)
        if queue.log is not None:
            taken = queue.log.leaving(messages)
            if taken:
                part.taken.append(taken)

    def open_to(self, series: Series, queues: Sequence[Queue]) -> Generator[tuple[Queue, Series], None, bool]:
        """The queues that take some of `series`, each with what it takes: one that is full (`Queue.room_for`)
        what it has room for. Returns whether any queue is left."""
        found = False
        for queue in queues:
            if queue.deleted:
                continue
            found = True
            if not queue.capped:
                yield queue, series
                continue
            part = self._parts.get(queue, _NOTHING_COMES)
            room = queue.room_for(series.head, len(series.bodies), part.coming, part.body_bytes)
            self._broker.counts.dropped_full += len(series.bodies) - room
            if room:
                yield queue, Series(series.head, series.bodies[:room])
        return found

    def apply(self) -> Ticket | None:
        """Apply it. Returns the ticket that all of it waits for, if any.

        Raises StoreError; then nothing has changed.
        """
        appends: list[tuple[Log, bytes, int]] = []
        written: list[Queue] = []
        reserved = True  # what only leaves has room kept for it
        for queue, part in self._parts.items():
            if queue.log is None or queue.deleted:
                continue
            if part.records or part.taken:
                records = b"".join((*part.records, *part.taken))
                appends.append((queue.log.log, records, part.logged + len(part.taken)))
                written.append(queue)
                reserved = reserved and not part.records
        ends: dict[Queue, int] = {}
        ticket = None
        bodies = self._broker.bodies
        if appends:
            wholes = bodies.whole_records(self._large)
            offsets, ticket = self._broker.store.append_all([*appends, *wholes], reserved=reserved)
            bodies.whole_appended(self._large, ticket)
            ends = dict(zip(written, offsets, strict=False))
        else:
            large = [messages[-1].body for _, head, messages, _ in self._puts if head.large]
            ticket = bodies.unwritten(large[-1]) if large else None
        for queue, head, messages, logged in self._puts:
            if logged and queue.log is not None and ticket is not None:
                ends[queue] = queue.log.appended(head, messages, ends[queue])
                queue.publish_logged(messages, ticket)
            else:
                self._broker.publish_numbered(queue, messages)
        for queue, part in self._parts.items():
            if part.taken and queue.log is not None:
                for leaving in part.leaving:
                    queue.log.part(leaving)
        return ticket

    def let_go(self, written: Ticket | None = None) -> None:
        """Have the queues forget what leaves, or have it back where the disk has refused that."""
        refused = written is not None and self._broker.was_taken_back(written)
        for queue, part in self._parts.items():
            for messages in reversed(part.leaving):
                if refused:
                    queue.not_settled(list(messages))
                else:
                    queue.settle_written(messages)
        if refused:
            self.dispatch()

    def dispatch(self) -> None:
        """Have the queues give out what they can."""
        for _ in dispatched(self.queues):
            pass
