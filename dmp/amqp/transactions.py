"""Transactions of a channel (`tx.select`): publishes and acknowledgements are held until the commit.

A commit is one entry of the journal, however many queues it touches, so a crash leaves all of it or nothing.
The reply waits until that entry is on the disk. A rejected message moves to its dead-letter exchange in the
same step. Held messages count as memory, and have limits of their own.

What few queues get is applied in one stretch. Very many deliveries, and messages to very many queues, are
applied in slices, and the connection takes nothing more until the commit is answered. It is one entry of the
journal all the same (`wide`). Whatever ends the connection after that has begun, the commit is carried out.

A client cannot settle a delivery twice in a transaction. Until the commit the delivery still counts against
prefetch, and a rollback makes it unacknowledged again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING

import attrs
from pamqp import commands

from dmp.amqp.channel import (
    RETURNED_AT_ONCE,
    SETTLED_AT_ONCE,
    by_queue,
    dispatched,
    forget_unacked,
    settled_in_slices,
)
from dmp.dead_letters import letter_head, without_circles
from dmp.exchanges import DEFAULT_IN_RULES, RouteSearch
from dmp.memory import check
from dmp.message import Head, Message
from dmp.pacing import WORK_PER_STRETCH
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, refused_by_store
from dmp.series import QUEUES_PER_STEP, Leaving, Series, bug
from shared.access import READ, WRITE
from shared.budget import Account
from shared.errors import StoreError
from shared.garbage import paused
from shared.queues.sliced_work import batched

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel, Delivery
    from dmp.amqp.publishing import Post
    from dmp.broker import Broker
    from dmp.wide import WideAppend
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
    _in_slices: bool = False  # so are its deliveries gathered
    _applied: Ticket | None = None  # of a commit that goes in slices: done, or refused
    _applying: bool = False  # that is under way, and may not be taken back
    _refused: Refusal | None = None  # it was
    _ended: bool = False  # its channel, meanwhile
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
        check(self._memory, POST_BYTES)
        self._memory.charge(POST_BYTES)
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
        if outcome is Outcome.REJECTED:
            queues = Counter(map(itemgetter(1), taken.values()))
            letters = sum(count for queue, count in queues.items() if _leaves_letters(queue))
            self._need_room(letters * LETTER_MESSAGES, 0)
            self._messages += letters * LETTER_MESSAGES

    def rollback(self) -> None:
        """Drop the publishes, and make the deliveries unacknowledged again. A commit that goes in slices is
        carried out where it has begun: then its channel has ended."""
        channel = self._channel
        if self._applying:
            self._ended = True
            return
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
        if self._prepared is None:
            self._prepared = prepared = QueueChange(self._channel.mux.broker)
            steps = prepared.gather(self._deliveries)
            self._in_slices = self.settled > SETTLED_AT_ONCE or any(
                settled_in_slices(by_tag.values()) for by_tag in self._deliveries.values()
            )
            if self._in_slices:
                self._channel.mux.broker.sliced_work.add(chain(steps, prepared.address()))
            else:
                _go_through(steps)
                steps = prepared.address()
                if next(steps, steps) is not steps:  # bindings are made for a route to take long
                    self._channel.mux.broker.sliced_work.add(steps)
        change, applied = self._prepared, self._applied
        if applied is None:
            if not change.whole:
                return self._channel.mux.broker.sliced_work.when_idle
            puts = sum([len(queues) for _, queues, _ in self._posts])
            puts += sum([len(targets) for _, _, _, targets in change.addressed])
            if puts <= PUTS_AT_ONCE and not self._in_slices:
                return None
            applied = self._unwritten() or self._begin(change, puts)
        return None if applied.done else lambda go_on: applied.when_done(lambda _: go_on())

    def commit(self) -> None:
        """Apply everything, and reply when it is on the disk. Raises Refusal; then nothing is applied."""
        channel, change = self._channel, self._prepared
        if self._applied is not None:
            self._end()
            return
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
        mux.worked(self._messages + min(self.settled, SETTLED_AT_ONCE))
        settled = list(self._deliveries.values())
        self._forget()
        channel.reply(commands.Tx.CommitOk(), ticket)  # before the deliveries that the commit makes possible
        for deliveries in settled:
            forget_unacked(deliveries.values())
        if ticket is None:
            _go_through(change.let_go())
        else:
            ticket.when_done(lambda done: self._let_go(change, done))
        for queue, messages in change.requeued.items():
            queue.requeue(messages)
        channel.crowded = False
        channel.dispatch()
        _go_through(dispatched(change.queues))
        for queue in change.requeued:
            if not queue.deleted:
                queue.trim()
        if broker.memory.full:
            mux.wait_for_memory()

    def _let_go(self, change: QueueChange, done: Ticket) -> None:
        steps = change.let_go(done)
        if next(steps, steps) is not steps:
            self._channel.mux.broker.sliced_work.add(steps)

    def _entries(
        self, change: QueueChange, returned: list[tuple[Head, Sequence[bytes]]], letters: list[int]
    ) -> Iterator[tuple[Queue, Series]]:
        """What comes to queues, each found to have room when it is asked for. `letters`: how many dead
        letters have no queue to go to, and how many have one. Raises Refusal."""
        if change.laborious:
            text = "the routes of the dead letters are too much work for one transaction"
            raise Refusal(Code.PRECONDITION_FAILED, text)
        for post, queues, bodies in self._posts:
            runs: Iterable[Sequence[bytes]] = (bodies,)
            if self._applying:
                runs = batched(bodies, BODIES_PER_RUN if len(queues) <= QUEUES_PER_STEP else 1)
            for some in runs:
                if not (yield from change.open_to(Series(post.head, some), queues)):
                    self._channel.mux.broker.counts.unroutable += len(some)
                    if post.content.mandatory:
                        returned.append((post.head, some))
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

    # -- in slices

    def _require_exchanges(self) -> None:
        """Rules may have changed since the publishes. Raises Refusal."""
        for exchange in {post.content.exchange for post, _, _ in self._posts}:
            self._channel.mux.require(WRITE, exchange or DEFAULT_IN_RULES)

    def _unwritten(self) -> Ticket | None:
        """What a large body waits for that it publishes. Raises Refusal where that cannot be written."""
        bodies = self._channel.mux.broker.bodies
        for post, _, references in self._posts:
            if post.head.large:
                for reference in references:
                    written = bodies.unwritten(reference)
                    if written is not None and written.error is not None:
                        raise refused_by_store(written.error)
                    if written is not None:
                        return written
        return None

    def _begin(self, change: QueueChange, puts: int) -> Ticket:
        broker = self._channel.mux.broker
        leaving: list[Leaving] = []
        wide = broker.append_in_slices(leaving)
        self._applied, self._applying = wide.done, True
        broker.sliced_work.add(self._apply(change, wide, leaving, puts))
        return wide.done

    def _end(self) -> None:
        """The transaction was applied, or refused: go on behind it. Raises Refusal."""
        refused, self._refused = self._refused, None
        self._applied = None
        if refused is not None:
            raise refused
        if self._channel.mux.broker.memory.full:
            self._channel.mux.wait_for_memory()

    def _apply(
        self, change: QueueChange, wide: WideAppend, leaving: list[Leaving], puts: int
    ) -> Iterator[None]:
        """The steps of `commit`, in the same order. Others may look at the queues in between: each has what
        comes when all have it."""
        broker = self._channel.mux.broker
        returned: list[tuple[Head, Sequence[bytes]]] = []
        letters = [0, 0]
        try:
            with paused(puts + len(change.queues)):
                yield from wide.steps(self._slices(change, returned, letters, leaving))
        except Refusal as refusal:
            self._not_applied(refusal)
            return
        except StoreError as error:
            broker.counts.refused_publishes += sum(len(bodies) for _, _, bodies in self._posts)
            self._not_applied(refused_by_store(error))
            return
        except Exception as error:
            broker.report_crash(error)
            self._not_applied(refused_by_store(bug(error)))
            return
        yield from self._go_on(change, wide.done, returned, letters)

    def _slices(
        self,
        change: QueueChange,
        returned: list[tuple[Head, Sequence[bytes]]],
        letters: list[int],
        leaving: list[Leaving],
    ) -> Iterator[Iterator[tuple[Queue, Series]]]:
        """What comes to queues; and behind it, without any, what leaves. Raises Refusal."""
        mux = self._channel.mux
        self._require_exchanges()
        for some in batched(change.queues, QUEUES_PER_STEP):
            for queue in some:
                mux.require(READ, queue.name)
            yield iter(())
        entries = self._entries(change, returned, letters)
        for first in entries:
            yield chain((first,), islice(entries, QUEUES_PER_STEP - 1))
        for those in change.leaving():
            leaving += those
            yield iter(())

    def _go_on(
        self,
        change: QueueChange,
        done: Ticket,
        returned: Sequence[tuple[Head, Sequence[bytes]]],
        letters: list[int],
    ) -> Iterator[None]:
        """All is appended: reply when it is on the disk, and have the queues hear of it."""
        channel = self._channel
        mux = channel.mux
        if not (self._ended or channel.silent):
            for head, bodies in returned:
                for body in bodies:
                    channel.send_return(Code.NO_ROUTE, head, body)
            channel.reply(commands.Tx.CommitOk(), done)
        posts, deliveries = list(self._posts), self._deliveries
        self._count_settled(letters)
        self._applying = False
        self._forget()
        done.when_done(lambda done: mux.broker.sliced_work.add(self._settle(change, deliveries, done)))
        for some in batched(posts, RETURNED_AT_ONCE):
            self._count_published(some)
            yield

    def _settle(
        self, change: QueueChange, deliveries: Mapping[Outcome, Mapping[int, Delivery]], done: Ticket
    ) -> Iterator[None]:
        """The disk has it, or refuses it: so have the queues hear of what was settled."""
        channel = self._channel
        requeued = list(deliveries.get(Outcome.REQUEUED, {}).values())
        if requeued:
            channel.mux.return_in_slices(requeued)
        for by_tag in deliveries.values():
            for settled in batched(by_tag.values(), RETURNED_AT_ONCE):
                forget_unacked(settled)
                yield
        yield from change.let_go(done)
        channel.crowded = False
        channel.dispatch()
        yield from dispatched(change.queues)

    def _not_applied(self, refusal: Refusal) -> None:
        """The transaction is refused. The client hears of it when the queues have. Where the client is gone,
        what it had returns."""
        self._applying = False
        self._refused = refusal
        if self._ended:
            by_tag = {tag: delivery for each in self._deliveries.values() for tag, delivery in each.items()}
            self._forget()
            if by_tag:
                self._channel.mux.return_in_slices([by_tag[tag] for tag in sorted(by_tag)])

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
        self._memory.give(len(self._posts) * POST_BYTES)
        self._posts.clear()
        self._deliveries = {}
        self._prepared = None
        self._in_slices = False
        self.settled = self._messages = self._bytes = self._cost_bytes = 0


def _go_through(steps: Iterator[None]) -> None:
    """Take all steps at once."""
    for _ in steps:
        pass


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
    `gather` and `address`, then call `put` and `apply`, without a wait in between. Or have a `WideAppend`
    take what comes (`open_to`) and what leaves (`leaving`). When the disk has it, or refuses it, go through
    `let_go`.
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
    _in_slices: bool = False  # `leaving` was asked for

    def gather(self, settled: Mapping[Outcome, Mapping[int, Delivery]]) -> Iterator[None]:
        """Take what a transaction has settled, a slice at each step."""
        for outcome, by_tag in settled.items():
            for some in batched(list(by_tag.values()), RETURNED_AT_ONCE):
                if outcome is Outcome.REJECTED:
                    self.letters += [(queue, message) for _, queue, message in some if _leaves_letters(queue)]
                for queue, messages in by_queue(some).items():
                    self.queues[queue] = None
                    if outcome is Outcome.REQUEUED:
                        self.requeued.setdefault(queue, []).extend(messages)
                    else:
                        self.leave(queue, messages)
                yield

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

    def leaving(self) -> Iterator[list[Leaving]]:
        """What leaves queues, in slices."""
        self._in_slices = True
        for some in batched(self._parts.items(), QUEUES_PER_STEP):
            yield [
                Leaving(queue, queue.log, b"".join(part.taken), len(part.taken), queue.log.leave_in_slices)
                for queue, part in some
                if part.taken and queue.log is not None
            ]

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

    def let_go(self, written: Ticket | None = None) -> Iterator[None]:
        """Have the queues forget what leaves, or have it back where the disk has refused that, in slices."""
        done = 0
        refused = written is not None and self._broker.was_taken_back(written)
        for queue, part in self._parts.items():
            if not part.leaving:
                continue
            try:
                part.leaving.reverse()
                while part.leaving:
                    messages = part.leaving.pop()
                    if refused:
                        queue.not_settled(list(messages))
                    else:
                        queue.settle_written(messages)
                    done += 1 + len(messages)
                    if done >= RETURNED_AT_ONCE:
                        done = 0
                        yield
            finally:
                if self._in_slices and part.taken and queue.log is not None:
                    queue.log.all_left()
        if refused:
            yield from dispatched(self.queues)
