"""What all connections share: exchanges, queues, and how messages get from one to the other.

`route` finds the queues of a message; `publish` puts a run of like messages into them. Where queues are
durable and the messages persistent, the records of all queues are appended together, all or nothing; the
ticket says when they are on the disk. What leaves durable queues is written once a round (`flush`).
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence

import attrs

from dmp.bodies import BODIES, Bodies, Body
from dmp.dead_letters import DeadLetters
from dmp.exchanges import DEFAULT, Exchange, route
from dmp.known_keys import KnownKeys
from dmp.leases import LeaseBook
from dmp.memory import Accounts, Memory
from dmp.message import Head
from dmp.metrics import Counts
from dmp.queue_log import QueueLog
from dmp.queue_records import QUEUES, put, put_bytes
from dmp.queues import Application, Queue
from dmp.refusals import Code, shown
from dmp.settings import DmpSettings
from dmp.topology import Topology
from dmp.topology_table import TopologyTable
from shared.errors import StoreError
from shared.plugin import Context
from shared.queues.runs import Run
from shared.queues.timers import Timers
from shared.queues.waits import Waits
from shared.storage.log import Log
from shared.storage.lost import Lost
from shared.storage.store import Ticket
from shared.turns import LongWork, Turn

NOTHING_LEAVES: Mapping[Queue, Sequence[Run]] = {}
_NAME_BYTES = 16  # random ones, of a name that nobody can guess

Observer = Callable[[bytes, Head, Sequence[Queue], Sequence[bytes]], None]


@attrs.define(eq=False)
class ChangedLogs:
    """The logs of queues which messages have left, where that is not written yet. `deadline` and `scheduled`
    are the timers'."""

    _broker: "Broker"
    deadline: float = math.inf
    scheduled: float = math.inf
    logs: dict[QueueLog, None] = attrs.Factory(dict)
    _disk_failed: bool = False

    def flush(self, *, whole: bool) -> None:
        """Write it; of very many queues some at once, unless it is to be `whole`. The timers bring the
        rest."""
        broker = self._broker
        before, self.logs = self.logs, {}
        turn = Turn()
        try:
            while before and (whole or not turn.over()):
                log = next(iter(before))
                try:
                    log.flush()
                except StoreError:
                    raise
                except Exception as error:
                    broker.report_crash(error)
                del before[log]
            if before:
                broker.timers.set(self, broker.timers.now())
        except StoreError as error:
            if not self._disk_failed:
                # Once: the store says more itself. What is not written comes back at a restart.
                self._disk_failed = True
                broker.log.error(
                    "acknowledgements cannot be written: their messages come again after a restart; look at "
                    "the disk",
                    reason=str(error),
                )
        if before:
            self.logs = before | self.logs
        if not self.logs:  # else a large body would go before the word that its message has
            broker.bodies.flush()

    def expire(self, now: float) -> None:
        """The timers': there is more."""
        self.flush(whole=False)


class Broker:
    """One broker, without its sockets.

    `generation` changes with every exchange, queue and binding: a route found before is then no good.
    """

    def __init__(
        self,
        context: Context,
        settings: DmpSettings,
        topology_table: TopologyTable,
        known_keys: KnownKeys,
        now: Callable[[], float],
        wall_seconds: Callable[[], float],
    ) -> None:
        self.wall_seconds = wall_seconds
        """The wall clock, for what dead letters say."""
        self.accounts = Accounts(context.budget)
        self.recorder = context.recorder
        self.access = context.access
        self.store = store = context.store
        self.settings = settings
        self.log = context.log
        self.topology_table = topology_table
        self.known_keys = known_keys
        self.logs = store.namespace(QUEUES, settings.durability)
        self.counts = Counts()
        body_logs = store.namespace(BODIES, settings.durability)
        self.bodies = Bodies(store, body_logs, self.log, settings.begun_bytes_max, self.accounts.connections)
        self.timers = Timers(now, self.report_crash)
        self.waits = Waits(now)
        self.memory = Memory(
            settings.memory_bytes_max, settings.hot_bytes, self.accounts.messages, self.timers
        )
        self.exchanges: dict[bytes, Exchange] = {}
        self.queues: dict[bytes, Queue] = {}
        self.reply_queues: dict[bytes, Queue] = {}
        """The queues of consumers of `amq.rabbitmq.reply-to`: the default exchange alone finds these."""
        self.bindings = 0
        self.wild_words = 0
        """What of these counts against `wild_words_max`."""
        self.generation = 0
        self.draining = False
        """The server stops: what comes back from a connection is given to no other."""
        self.leases = LeaseBook(self.counts, self.timers, settings.leases_max, self.accounts.connections)
        self.work = LongWork(self.timers.set_now, self.report_crash)
        self.topology = Topology(self)
        self.observers: list[Observer] = []
        """Called with what is published, while somebody traces: the exchange, the head, where to, bodies."""
        self._changed = ChangedLogs(self)
        self.dead_letters = DeadLetters(self)

    def take_settings(self, settings: DmpSettings) -> None:
        """Take other settings from now on; connections and channels keep the bounds that they began with."""
        self.settings = settings
        self.bodies.begun_bytes_max = settings.begun_bytes_max
        self.leases.leases_max = settings.leases_max
        self.memory.take_bounds(settings.memory_bytes_max, settings.hot_bytes)

    @property
    def login_seconds_max(self) -> float:
        """The longest time to log in, inf where no login is required. A lease is a login, too."""
        access, settings = self.access, self.settings
        has_to_log_in = access is not None and access.asks_login
        if access is None or not access.has_users:
            has_to_log_in = has_to_log_in or settings.logs_in
        return settings.login_seconds if has_to_log_in else math.inf

    # -- publishing

    def route(self, exchange: bytes, head: Head) -> tuple[Queue, ...]:
        """The queues that a message goes to, each once. Raises Refusal: no such exchange, malformed
        headers."""
        if exchange != DEFAULT:
            return route(self.topology.exchange(exchange), head, self.exchanges.get)
        keys = dict.fromkeys((head.key, *head.more_keys))
        queues = [self.queues.get(key) or self.reply_queues.get(key) for key in keys]
        return tuple([queue for queue in queues if queue is not None])

    def publish(
        self,
        head: Head,
        queues: Sequence[Queue],
        bodies: Sequence[bytes],
        send_return: Callable[[Code, Head, bytes], None] | None = None,
    ) -> Ticket | None:
        """Put a run into its queues. A confirm waits for the ticket; None: for nothing.

        A queue that is full (`Capacity.room_for`) is left out. `send_return`: each message goes to the queues
        that can deliver it now, or else back to its publisher (`immediate`). Raises StoreError where durable
        queues cannot be written; then no queue has got anything.
        """
        if send_return is None:
            count = len(bodies)
            for queue in queues:
                if queue.capacity.capped and queue.capacity.room_for(head, count) < count:
                    break
            else:
                return self.append([(queue, head, bodies) for queue in queues])
        ticket = None
        for body in bodies:
            takers = queues if send_return is None else [queue for queue in queues if _delivers_now(queue)]
            if send_return is not None and not takers:
                send_return(Code.NO_CONSUMERS, head, body)
            open_ = self.with_room(head, takers)
            ticket = self.append([(queue, head, (body,)) for queue in open_]) or ticket
        return ticket

    def with_room(self, head: Head, queues: Sequence[Queue]) -> list[Queue]:
        """The queues without those that are full; what these miss is counted."""
        open_ = [queue for queue in queues if not queue.capacity.capped or queue.capacity.room_for(head, 1)]
        self.counts.dropped_full += len(queues) - len(open_)
        return open_

    def append(
        self,
        runs: Sequence[tuple[Queue, Head, Sequence[bytes]]],
        leaving: Mapping[Queue, Sequence[Run]] = NOTHING_LEAVES,
        *,
        reserved: bool = False,
        moved: bool = False,
    ) -> Ticket | None:
        """Put runs into queues, full or not, and have the records written that messages leave queues.

        What needs a record is one entry of the journal: after a crash all of it is there, or nothing. The
        caller tells the logs of queues that messages leave what became of the ticket (`QueueLog.part`).
        `reserved`: it may use the room that is kept for what leaves. `moved`: they were in other queues, and
        are taken whatever their keys (`Once`): nobody else has them. So are dead letters. Raises StoreError;
        then nothing has changed.
        """
        parts: list[tuple[Log, bytes, int]] = []
        logged: list[tuple[Queue, Run]] = []
        others: list[tuple[Queue, Head, Sequence[bytes]]] = []
        large: dict[bytes, None] = {}
        there: list[Queue] = []
        known: list[tuple[Log, bytes, int]] = []
        for run in runs:
            queue, head, bodies = run
            log = queue.log
            if (
                queue.once is not None
                and not (moved or head.died)
                and len(fresh := queue.once.unseen(head, bodies)) < len(bodies)
            ):
                self.counts.known += len(bodies) - len(fresh)
                there.append(queue)
                run = queue, head, fresh
                bodies = fresh
                if not fresh:
                    continue
            if log is None or not (head.persistent or queue.row.has_cold):
                others.append(run)
                continue
            numbered = queue.number(head, bodies)
            logged.append((queue, numbered))
            parts.append((log.log, put(numbered.head, bodies, numbered.first), len(bodies)))
            if queue.once is not None and (row := queue.once.row(numbered)) is not None:
                known.append(row)
            if head.large:
                large.update(dict.fromkeys(bodies))
        parts += known
        for queue, gone in leaving.items():
            record = b"" if queue.log is None or queue.deleted else queue.log.leaving(gone)
            if record and queue.log is not None:
                parts.append((queue.log.log, record, 1))
        ticket = None
        try:
            if len(parts) == 1 and not (large or reserved):
                offset, ticket = parts[0][0].append(parts[0][1], parts[0][2])
                offsets = [offset]
            elif parts:
                offsets, ticket = self.store.append_all([*parts, *self.bodies.whole_records(large)], reserved)
        except StoreError:
            for queue, numbered in logged:
                if queue.once is not None:
                    queue.once.refused((numbered,))
            raise
        if large and ticket is not None:
            self.bodies.whole_appended(large, ticket)
        if ticket is not None:
            for (queue, numbered), offset in zip(logged, offsets, strict=False):
                numbered.offset, numbered.stride = offset, put_bytes(numbered.head)
                queue.admit(numbered, ticket)
        for queue, head, bodies in others:
            try:
                queue.publish(head, bodies)
            except Exception as error:
                self.report_crash(error)
            if head.large and ticket is None:
                ticket = self.bodies.unwritten(bodies[-1])
        for queue in there:  # what was there may still wait for the disk
            ticket = ticket or queue.arrivals.last_ticket()
        return ticket

    # -- what queues ask for

    def was_taken_back(self, done: "Ticket") -> bool:
        """Whether the disk has refused what this ticket is of. Where the store is read-only since, a restart
        tells what the disk has.
        """
        return done.error is not None and self.store.read_only is None

    def log_changed(self, log: QueueLog) -> None:
        self._changed.logs[log] = None

    def flush(self) -> None:
        """At the end of a stretch of work: write what has left durable queues."""
        self._changed.flush(whole=self.draining)

    def dead_letter(self, queue: Queue, runs: list[Run], reason: str) -> None:
        if queue.kind.arguments.dead_letter_exchange is None:
            queue.leave(runs)
            return
        self.dead_letters.add(queue, runs, reason)

    def queue_unused(self, queue: Queue) -> None:
        self.topology.delete_unused(queue)

    def queue_lost(self, name: bytes, lost: Lost) -> None:
        self.log.error(
            "a queue's log is damaged: the messages there are lost, the others are served; look at the disk",
            queue=shown(name),
            offset=lost.offset,
            bytes=lost.length,
            records=lost.records,
        )

    def body_sent(self, reference: bytes) -> None:
        """A large body was sent to a client, or never will be: it goes where that was the last of it."""
        self.bodies.let_go(reference)
        if self.bodies.some_left:
            self.timers.set(self._changed, self.timers.now())  # nobody may have anything else to flush

    def body_damaged(self, body: Body, error: StoreError | None) -> None:
        """A body that was being sent to a client cannot be read; the caller closes that connection."""
        if not body.damaged:
            body.damaged = True
            self.log.error(
                "the body of a message is damaged: it is not given out any more, and kept; look at the disk",
                path=body.log.file.path,
                reason=str(error or "it is too short"),
            )

    def queue_above_warning(self, queue: Queue) -> None:
        self.counts.warned += 1
        self.log.warning(
            "a queue is above queue_warn_messages: its consumers are too slow, or away; start more",
            queue=shown(queue.name),
            ready=queue.depth,
            consumers=queue.takers.count,
        )

    def report_crash(self, error: Exception) -> None:
        """A queue's own code has failed: a bug, which must hurt nobody but that queue."""
        self.counts.crashes += 1
        self.log.error("a bug in the code of queues; other queues go on; report this bug", exc_info=error)

    def closed_late(self, peer: str, missing: str) -> None:
        """A connection closes because something is not there in time. Its peer is told nothing."""
        self.counts.too_late += 1
        self.log.info(
            "a client was too late: its connection is closed; `missing` says what did not come; where "
            "clients need longer, raise net.first_request_seconds, dmp.login_seconds or dmp.frame_seconds",
            peer=peer,
            missing=missing,
        )

    # -- applications

    def new_name(self) -> bytes:
        """A name that nobody can guess."""
        return secrets.token_urlsafe(_NAME_BYTES).encode()

    def new_application(self, user: str) -> Application:
        return Application(user, self._delete_queues_of)

    def _delete_queues_of(self, application: Application) -> None:
        for queue in [*application.queues]:
            self.topology.delete_unused(queue)


def _delivers_now(queue: Queue) -> bool:
    """Whether a message that came now would be given to somebody at once."""
    return queue.empty and queue.takers.have_room()
