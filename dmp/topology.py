"""Declaring, deleting, binding: how exchanges and queues come and go. What is not allowed, or makes no sense,
raises `Refusal` and changes nothing.

What is durable is also written to the `TopologyTable`; the answer waits for that ticket. Names that begin
with `amq.` are the broker's. The default exchange has a binding for every queue, which nobody can touch.

*Deleting.* What is deleted is gone at once, with its bindings. A crash in between leaves bindings, and a
record that says whose they are, by which the next start drops them.

*What a start misses.* Only a record of a deletion deletes; that something else is missing never does. A log
without a definition becomes a durable queue without bindings, under its name; its first declaration says what
it is. A definition whose log is gone is a queue that has lost its messages. A binding whose exchange or queue
is not there waits until that is declared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from dmp.data_types import EMPTY_TABLE, describe_field, sorted_table
from dmp.declarations import FIELDS, TYPES, Binding, ExchangeKind, QueueArguments, QueueKind
from dmp.exchanges import (
    DEFAULT,
    GENERATED,
    PREDECLARED,
    REPLY_TO,
    RESERVED,
    Destination,
    Exchange,
    HeaderMatch,
    check_not_default,
)
from dmp.loading import load
from dmp.memory import check
from dmp.queue_log import QueueLog
from dmp.queues import Application, Queue
from dmp.refusals import Code, Refusal, inequivalent, locked, not_found, shown
from dmp.topology_table import Saved, SavedQueue
from shared.budget import Account, CacheBytes
from shared.errors import StoreError
from shared.queues import pausing
from shared.queues.core import HOT_LEAST_BYTES
from shared.storage.lost import describe_lost
from shared.storage.store import Log, Ticket

if TYPE_CHECKING:
    from dmp.broker import Broker

REPLIES_WAITING_MAX = 16_384
"""For one consumer of these whose connection does not take them: some megabytes of the shortest."""
_SHOWN_MAX = 10  # names in one line of the log

# What things take of memory, measured (tracemalloc), beside their names, keys and arguments.
EXCHANGE_BYTES = 1500
QUEUE_BYTES = 3300
PRIORITY_BYTES = 780  # each of a queue's priorities: a row of its own
DURABLE_BYTES, DURABLE_KEY_BYTES = 300, 3  # the row of what is durable, and for each byte of its key
LOG_BYTES = 2800  # the log of a durable queue
BINDING_BYTES = 500
TOPIC_BYTES, TOPIC_KEY_BYTES, WILD_WORD_BYTES = 700, 8, 80
"""What a binding to a topic exchange takes; for each byte of its key, and each of its `wild_words`: in the
trie."""
HEADERS_BYTES = 20
"""Each byte of the arguments of a binding to a headers exchange, which are decoded: 19 at most."""


_End = tuple[bytes, bool]  # a name, and whether it is an exchange's


class WaitingBindings:
    """Bindings that a start found, and whose exchange or queue it did not; found by either end."""

    def __init__(self, memory: Account) -> None:
        self._memory = memory
        self._bindings: dict[Binding, None] = {}
        self._by_end: dict[_End, dict[Binding, None]] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._bindings)

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        self._memory.charge(_waiting_bytes(binding))
        for end in _ends(binding):
            self._by_end.setdefault(end, {})[binding] = None

    def discard(self, binding: Binding) -> None:
        """Remove a waiting binding, which must be there."""
        del self._bindings[binding]
        self._memory.give(_waiting_bytes(binding))
        for end in set(_ends(binding)):  # both are one where an exchange is bound to itself
            del self._by_end[end][binding]
            if not self._by_end[end]:
                del self._by_end[end]

    def naming(self, name: bytes, is_exchange: bool) -> list[Binding]:
        """The bindings that lead to or from that exchange or queue."""
        return list(self._by_end.get((name, is_exchange), ()))


class Topology:
    """Declares, deletes and binds, for one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._names = broker.accounts.names
        self._of_users = {
            setting: broker.accounts.names.new_shares()
            for setting in ("exchanges_max", "queues_max", "bindings_max", "wild_words_max")
        }
        self.waiting = WaitingBindings(broker.accounts.names)
        for name, type_ in PREDECLARED.items():
            kind = ExchangeKind(type_, durable=True)
            broker.exchanges[name] = Exchange(name, kind, CacheBytes(broker.accounts.caches))
        broker.exchanges[DEFAULT] = Exchange(DEFAULT, ExchangeKind("direct", durable=True))

    def _need_room(self, setting: str, there: int, user: str, more: int = 1) -> None:
        """Raises Refusal where `more` are more than the setting allows, or than the user's share of it."""
        most = getattr(self._broker.settings, setting)
        if there + more > most:
            raise Refusal(Code.PRECONDITION_FAILED, f"there are {setting} = {most} already")
        if not self._of_users[setting].fits(user, most, more):
            raise Refusal(Code.PRECONDITION_FAILED, f"{user} has his share of {setting} = {most}")

    # -- exchanges

    def check_exchange(self, name: bytes, kind: ExchangeKind, user: str = "") -> bool:
        """Whether one would be made. Raises Refusal where it would be refused."""
        broker = self._broker
        check_not_default(name)
        if kind.type not in TYPES:
            raise Refusal(Code.PRECONDITION_FAILED, f"invalid exchange type {shown(kind.type.encode())}")
        found = broker.exchanges.get(name)
        if found is not None:
            self._same_exchange(name, kind, found.kind)
            return False
        if name.startswith(RESERVED):
            raise _reserved("exchange", name)
        self._need_room("exchanges_max", len(broker.exchanges), user)
        check(self._names, _exchange_bytes(name, kind), user=user)
        return True

    def declare_exchange(self, name: bytes, kind: ExchangeKind, user: str = "") -> Ticket | None:
        """Make it, unless there is one just like it."""
        if not self.check_exchange(name, kind, user):
            return None
        broker = self._broker
        ticket = broker.topology_table.put_exchange(name, kind) if kind.durable else None
        exchange = self._new_exchange(name, kind)
        self._of_users["exchanges_max"].take(name, user)
        self._names.shares.take(name, user, _exchange_bytes(name, kind))
        broker.generation += 1
        self._find_waiting(exchange)
        return ticket

    def _new_exchange(self, name: bytes, kind: ExchangeKind) -> Exchange:
        self._names.charge(_exchange_bytes(name, kind))
        exchange = self._broker.exchanges[name] = Exchange(
            name, kind, CacheBytes(self._broker.accounts.caches)
        )
        return exchange

    def exchange(self, name: bytes) -> Exchange:
        """The exchange by that name. Raises Refusal (NOT_FOUND)."""
        found = self._broker.exchanges.get(name)
        if found is None:
            raise not_found("exchange", name)
        return found

    def open_exchange(self, name: bytes) -> Exchange:
        """The exchange by that name, if clients may publish to it. Raises Refusal."""
        found = self.exchange(name)
        if found.kind.internal:
            raise Refusal(Code.ACCESS_REFUSED, f"exchange {shown(name)} is internal")
        return found

    def check_deletable(self, name: bytes) -> None:
        """Raises Refusal where the exchange is the broker's own."""
        if name == DEFAULT or name.startswith(RESERVED):
            raise Refusal(Code.ACCESS_REFUSED, f"exchange {shown(name)} is the broker's own")

    def delete_exchange(self, name: bytes, *, if_unused: bool = False) -> Ticket | None:
        """One that is not there is deleted already, as RabbitMQ has it: clients tear down more than once."""
        self.check_deletable(name)
        exchange = self._broker.exchanges.get(name)
        if exchange is None:
            return None
        if if_unused and exchange.bindings:
            raise Refusal(Code.PRECONDITION_FAILED, f"exchange {shown(name)} in vhost '/' in use")
        broker = self._broker
        ticket = None
        if exchange.kind.durable:
            self._drop_waiting(exchange)
            bound = bool(exchange.bindings or exchange.bound)
            ticket = broker.topology_table.drop_exchange(name, bound=bound)
        del broker.exchanges[name]
        self._names.give(_exchange_bytes(name, exchange.kind))
        self._of_users["exchanges_max"].drop(name)
        self._names.shares.drop(name)
        broker.generation += 1
        exchange.deleted = True
        exchange.forget_routes()
        return self._drop_bindings(exchange, ticket)

    def _same_exchange(self, name: bytes, kind: ExchangeKind, now: ExchangeKind) -> None:
        _same("exchange", name, kind, now, ("type",))
        if name in PREDECLARED:
            return  # whatever its flags: WireAPI, DMP's best-known client, declares them by its own
        _same("exchange", name, kind, now, ("durable", "auto_delete", "internal"))
        if kind.alternate != now.alternate:
            received, current = (
                "none" if each is None else f"the value {shown(each)} of type 'longstr'"
                for each in (kind.alternate, now.alternate)
            )
            raise inequivalent("alternate-exchange", "exchange", name, received, current)

    # -- queues

    def declare_queue(
        self, name: bytes, kind: QueueKind, owner: Application, user: str = ""
    ) -> tuple[Queue, Ticket | None]:
        """Make it, unless there is one just like it. An empty name: the broker chooses one."""
        broker = self._broker
        found = self.find_queue(name, owner)
        if found is not None:
            ticket = self._define(found, kind) if found.adopted else None
            self._same_queue(found, kind)
            found.used_now()
            return found, ticket
        self.check_new_queue(name, kind, user)
        name = name or GENERATED + broker.new_name()
        queue = Queue(name, kind, broker, owner if kind.exclusive else None)
        ticket = None
        if kind.durable and not kind.exclusive:
            rows = [broker.topology_table.queue_row(SavedQueue(name, kind))]
            if kind.arguments.once_ms:
                rows.append(broker.known_keys.begin(name, broker.new_name()))
            try:
                log, ticket = broker.logs.create(_log_name(name), beside=lambda _: rows)
            except StoreError:
                broker.known_keys.ended(name)
                raise
            queue.keep_in(QueueLog(log))
            self._keep_known(queue)
        broker.queues[name] = queue
        self._count_queue(queue, user)
        broker.generation += 1
        if queue.owner is not None:
            queue.owner.queues[queue] = None
        queue.used_now()
        self._find_waiting(queue)
        return queue, ticket

    def _keep_known(self, queue: Queue) -> None:
        """The windows of a durable queue's keys outlive the process."""
        if queue.once is not None and queue.once.window_ms:
            queue.once.kept = self._broker.known_keys

    def check_new_queue(self, name: bytes, kind: QueueKind, user: str = "") -> None:
        """Raises Refusal where one that is not there would be refused."""
        if name.startswith(RESERVED):
            raise _reserved("queue", name)
        self._need_room("queues_max", len(self._broker.queues), user)
        check(self._names, _queue_bytes(name, kind), user=user)

    def make_reply_queue(self, user: str = "") -> Queue:
        """For a consumer of `REPLY_TO`; it is deleted with that. Its name cannot be guessed: whoever was told
        it reaches the consumer through the default exchange, and can do nothing else to the queue.

        What waits there is bounded. The oldest are dropped, since nobody may wait for those any more.
        """
        broker = self._broker
        self._need_room("queues_max", len(broker.queues) + len(broker.reply_queues), user)
        name = REPLY_TO + b"." + broker.new_name()
        arguments = QueueArguments(
            messages_max=REPLIES_WAITING_MAX, bytes_max=broker.settings.message_bytes_max
        )
        kind = QueueKind(auto_delete=True, arguments=arguments)
        check(self._names, _queue_bytes(name, kind), user=user)
        queue = Queue(name, kind, broker, limited=False)
        broker.reply_queues[name] = queue
        self._count_queue(queue, user)
        return queue

    def _count_queue(self, queue: Queue, user: str) -> None:
        """Charge for a queue that a user has made."""
        self._charge_queue(queue)
        self._of_users["queues_max"].take(queue, user)
        self._names.shares.take(queue, user, queue.memory_bytes)

    def _charge_queue(self, queue: Queue) -> None:
        """Charge for a queue that is new or has changed."""
        before, queue.memory_bytes = queue.memory_bytes, _queue_bytes(queue.name, queue.kind)
        self._names.charge(queue.memory_bytes - before)

    def purge_queue(self, queue: Queue) -> tuple[int, Ticket | None]:
        """How many messages that were, and what the answer waits for. Raises StoreError."""
        saved = self._save(queue, lost=False) if queue.lost else None
        whole = Ticket()
        count = queue.purge(whole)
        if saved is None:
            return count, None if whole.done and whole.error is None else whole
        both = Ticket()
        whole.when_done(lambda gone: saved.when_done(lambda done: both.resolve(gone.error or done.error)))
        return count, both

    def _save(self, queue: Queue, **changes: Any) -> Ticket:
        """Write its row, with these changes."""
        now = SavedQueue(queue.name, queue.kind, queue.adopted, queue.lost, queue.paused)
        return self._broker.topology_table.put_queue(attrs.evolve(now, **changes))

    def set_paused(self, queue: Queue, paused: bool) -> Ticket | None:
        """Give nothing out, or again. A queue that is not durable forgets it at exit. Raises StoreError."""
        if queue.paused == paused:
            return None
        ticket = None if queue.log is None else self._save(queue, paused=paused)
        pausing.switch(queue, paused, ticket)
        return ticket

    def queue(self, name: bytes, owner: Application | None) -> Queue:
        """The one by that name. Raises Refusal: NOT_FOUND, or as `find_queue`."""
        found = self.find_queue(name, owner)
        if found is None:
            raise not_found("queue", name)
        return found

    def find_queue(self, name: bytes, owner: Application | None) -> Queue | None:
        """The one by that name, if it is there. Raises Refusal (RESOURCE_LOCKED) for another's own."""
        found = self._broker.queues.get(name)
        if found is not None and found.owner not in (None, owner):
            raise locked(name)
        return found

    def delete_queue(
        self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False
    ) -> tuple[int, Ticket | None]:
        """How many messages went with it."""
        if if_unused and queue.takers.in_use:
            raise Refusal(Code.PRECONDITION_FAILED, f"queue {shown(queue.name)} in vhost '/' in use")
        if if_empty and (queue.later.count or not queue.empty):
            raise Refusal(Code.PRECONDITION_FAILED, f"queue {shown(queue.name)} in vhost '/' not empty")
        broker = self._broker
        ticket = None
        if queue.log is not None:
            self._drop_waiting(queue)
            rows = broker.topology_table.queue_dropped(queue.name, bound=bool(queue.bound))
            rows += broker.known_keys.end(queue.name)
            ticket = broker.logs.delete(queue.log.log.name, rows)
            broker.known_keys.ended(queue.name)
        if broker.reply_queues.pop(queue.name, None) is None:
            del broker.queues[queue.name]
        self._names.give(queue.memory_bytes)
        self._of_users["queues_max"].drop(queue)
        self._names.shares.drop(queue)
        broker.generation += 1
        if queue.owner is not None:
            queue.owner.queues.pop(queue, None)
        count = queue.depth
        queue.delete()
        return count, self._drop_bindings(queue, ticket)

    def consumer_left(self, queue: Queue) -> None:
        """An auto-delete queue goes with the last of its consumers, a feed counting as one."""
        if (
            queue.kind.auto_delete
            and queue.takers.were_some
            and not queue.takers.in_use
            and not queue.deleted
        ):
            self.delete_unused(queue)

    def delete_unused(self, queue: Queue) -> None:
        """Delete a queue as `delete_queue` does, but log a failure: nobody waits for an answer."""
        if queue.deleted:
            return
        try:
            self.delete_queue(queue)
        except StoreError as error:
            self._broker.log.error(
                "a queue that nobody uses any more cannot be deleted: it stays; look at the disk",
                queue=shown(queue.name),
                reason=str(error),
            )

    def _define(self, queue: Queue, kind: QueueKind) -> Ticket | None:
        """The first declaration of a queue whose definition was lost is its definition."""
        if not kind.durable or kind.exclusive:
            return None  # it is another's queue that is meant; `_same_queue` says why not
        ticket = self._save(queue, kind=kind, adopted=False)
        self._set_kind(queue, kind)
        return ticket

    def change_queue(self, queue: Queue, kind: QueueKind) -> Ticket | None:
        """It has other arguments from now on. Raises StoreError."""
        before = queue.kind
        ticket = None if queue.log is None else self._save(queue, kind=kind)
        self._set_kind(queue, kind)
        queue.used_now()
        queue.dispatch_new()
        if ticket is not None:
            ticket.when_done(lambda done: None if done.error is None else self._set_kind(queue, before))
        return ticket

    def _set_kind(self, queue: Queue, kind: QueueKind) -> None:
        if not queue.deleted:
            queue.define(kind)
            self._broker.generation += 1
            self._charge_queue(queue)

    def _same_queue(self, queue: Queue, kind: QueueKind) -> None:
        now = queue.kind
        if kind.exclusive != now.exclusive:
            raise locked(queue.name)
        _same("queue", queue.name, kind, now, ("durable", "auto_delete"))
        declared = now.declared
        for argument, field in FIELDS.items():
            asked = getattr(kind.arguments, field)
            if asked not in (getattr(declared, field), getattr(now.arguments, field)):
                said = (describe_field(table, argument) for table in (kind.table, now.table))
                raise inequivalent(argument, "queue", queue.name, *said)

    # -- bindings

    def check_binding(
        self, source: bytes, destination: Destination, key: bytes, table: bytes, user: str = ""
    ) -> Binding | None:
        """What `bind` would make; None: it is there. Raises Refusal where it would be refused."""
        broker = self._broker
        check_not_default(source)
        exchange = self.exchange(source)
        binding = _binding(source, destination, key, table)
        if binding in exchange.bindings:
            return None
        self._need_room("bindings_max", broker.bindings, user)
        wild = exchange.wild_words(key)
        if wild:
            self._need_room("wild_words_max", broker.wild_words, user, wild)
        check(self._names, _binding_bytes(exchange, binding), user=user)
        arguments = binding.read_arguments()
        if exchange.kind.type == "headers":
            HeaderMatch(arguments)
        return binding

    def bind(
        self,
        source: bytes,
        destination: Destination,
        key: bytes = b"",
        table: bytes = EMPTY_TABLE,
        user: str = "",
    ) -> Ticket | None:
        """`table`: the arguments as they came. A binding that is there already stays as it is."""
        binding = self.check_binding(source, destination, key, table, user)
        if binding is None:
            return None
        broker, exchange = self._broker, self.exchange(source)
        ticket = None
        if exchange.kind.durable and destination.durable:
            ticket = broker.topology_table.put_binding(binding)
        self._add(exchange, binding, destination)
        self._of_users["bindings_max"].take(binding, user)
        self._names.shares.take(binding, user, _binding_bytes(exchange, binding))
        self._of_users["wild_words_max"].take(binding, user, exchange.wild_words(key))
        return ticket

    def unbind(
        self, source: bytes, destination: "Destination | None", key: bytes = b"", table: bytes = EMPTY_TABLE
    ) -> Ticket | None:
        """What is not bound, or not there at all, is unbound already, as RabbitMQ has it."""
        check_not_default(source)
        exchange = self._broker.exchanges.get(source)
        if exchange is None or destination is None:
            return None
        check_not_default(destination.name)
        binding = _binding(source, destination, key, table)
        return self._unbind((binding,)) if binding in exchange.bindings else None

    def _add(self, exchange: Exchange, binding: Binding, destination: Destination) -> None:
        exchange.add(binding, destination, binding.read_arguments())
        destination.bound.add(binding)
        self._broker.bindings += 1
        self._names.charge(_binding_bytes(exchange, binding))
        self._broker.wild_words += exchange.wild_words(binding.key)
        self._broker.generation += 1

    def _unbind(
        self, bindings: Sequence[Binding], gone: Exchange | None = None, *, recorded: bool = True
    ) -> Ticket | None:
        """Remove those that are there. An auto-delete exchange is deleted with its last binding.

        `gone`: the exchange that is being deleted, which is not found by its name any more. `recorded`: in
        the `TopologyTable`, too.
        """
        broker = self._broker
        there: list[tuple[Exchange, Binding]] = []
        rows: list[Binding] = []
        for binding in bindings:
            is_gone = gone is not None and binding.source == gone.name
            exchange = gone if is_gone else broker.exchanges.get(binding.source)
            if exchange is not None and binding in exchange.bindings:
                there.append((exchange, binding))
                if exchange.kind.durable and exchange.bindings[binding].durable:
                    rows.append(binding)
        ticket = broker.topology_table.drop_bindings(rows) if rows and recorded else None
        for exchange, binding in there:
            destination = exchange.bindings[binding]
            exchange.remove(binding)
            self._names.give(_binding_bytes(exchange, binding))
            self._of_users["bindings_max"].drop(binding)
            self._names.shares.drop(binding)
            self._of_users["wild_words_max"].drop(binding)
            broker.wild_words -= exchange.wild_words(binding.key)
            destination.bound.discard(binding)
        broker.bindings -= len(there)
        broker.generation += 1
        for exchange in {exchange: None for exchange, _ in there}:
            if exchange.kind.auto_delete and not exchange.bindings and not exchange.deleted:
                ticket = self.delete_exchange(exchange.name) or ticket
        return ticket

    def _drop_bindings(self, gone: Destination, ticket: Ticket | None) -> Ticket | None:
        """Remove all bindings of what is deleted. Returns what the answer waits for: `ticket`, of the
        deletion, or that they are gone."""
        source = gone if isinstance(gone, Exchange) else None
        bindings = [*gone.bound]
        if source is not None:  # a binding of it to itself is among both
            bindings = [*source.bindings, *(gone.bound - source.bindings.keys())]
        if not bindings:
            return ticket
        tickets = [ticket]
        try:
            tickets.append(self._unbind(bindings, source))
            if gone.durable:
                table = self._broker.topology_table
                tickets.append(table.bindings_gone(gone.name, source is not None))
        except StoreError as error:  # nothing more is written; a start drops them
            self._unbind(bindings, source, recorded=False)
            refused = Ticket()
            refused.resolve(error)
            return refused
        waiting = [one for one in tickets if one is not None]
        if not waiting:
            return None
        whole = Ticket()
        waiting[-1].when_done(
            lambda _: whole.resolve(next((one.error for one in waiting if one.error is not None), None))
        )
        return whole

    # -- after a start

    async def restore(self, saved: Saved) -> None:
        """Bring back what was durable, with the messages. Raises StoreError."""
        broker = self._broker
        await broker.bodies.restore()
        for key in saved.unreadable:
            broker.log.error(
                "a definition cannot be read: its exchange, queue or binding is not there; declare it again",
                row=shown(key),
            )
        for name, exchange_kind in saved.exchanges:
            self._new_exchange(name, exchange_kind)
        windows = broker.known_keys.load(int(broker.wall_seconds() * 1000))
        for queue in saved.queues:
            await self._restore_queue(queue)
            self._restore_known(broker.queues[queue.name], windows)
        known = {_log_name(name) for name in broker.queues}
        for left in [left for left in broker.logs.logs if left not in known]:
            await self._adopt(left.encode(), defined=b"q" + left.encode() in saved.unreadable)
        broker.bodies.restored()
        self._restore_bindings(saved)
        for restored in list(broker.queues.values()):
            restored.dispatch_new()
        pausing.tell_paused(
            broker.log, [shown(queue.name) for queue in broker.queues.values() if queue.paused]
        )

    def _restore_known(self, queue: Queue, windows: Mapping[bytes, Mapping[str, int]]) -> None:
        known_keys = self._broker.known_keys
        if queue.once is not None and queue.once.window_ms:
            if queue.name not in known_keys and self._broker.store.read_only is None:
                self._broker.store.append_all([known_keys.begin(queue.name, self._broker.new_name())], True)
            self._keep_known(queue)
            queue.once.restore(windows.get(queue.name, {}))

    async def _restore_queue(self, saved: SavedQueue) -> None:
        broker = self._broker
        log = broker.logs.logs.get(_log_name(saved.name))
        lost = saved.lost
        if log is None:
            lost = True
            row = broker.topology_table.queue_row(attrs.evolve(saved, lost=True))
            log, _ = broker.logs.create(_log_name(saved.name), reserved=True, beside=lambda _: [row])
            broker.log.error(
                "the log of a durable queue is not there: its messages are lost; restore a backup, or purge "
                "the queue to go on without them",
                queue=shown(saved.name),
            )
        queue = Queue(saved.name, saved.kind, broker)
        queue.adopted = saved.adopted
        if saved.paused:
            queue.pause()
        await self._load(queue, log, lost=lost)

    async def _adopt(self, name: bytes, *, defined: bool) -> None:
        """A log without a definition becomes a queue. `defined`: there is one that cannot be read."""
        broker = self._broker
        queue = Queue(name, QueueKind(durable=True), broker)
        queue.adopted = True
        if not defined and broker.store.read_only is None:
            self._save(queue)
        await self._load(queue, broker.logs.logs[_log_name(name)], lost=False)
        broker.log.error(
            "a queue's log has no definition: the queue is there with its messages, durable and without "
            "arguments or bindings; declare and bind it again, or delete it",
            queue=shown(name),
            messages=queue.depth,
        )

    async def _load(self, queue: Queue, log: Log, *, lost: bool) -> None:
        broker = self._broker
        queue_log = QueueLog(log)
        queue.keep_in(queue_log)
        broker.queues[queue.name] = queue
        self._charge_queue(queue)
        memory = broker.memory
        room = max(memory.hot_bytes - memory.total_bytes, HOT_LEAST_BYTES)
        messages, following, damaged = await load(queue_log, queue.row.cold, room, broker.bodies, queue.later)
        queue.recovered(messages, following, lost=lost or bool(damaged))
        if damaged:
            broker.log.error(
                "a queue's log is damaged: messages there are lost, or come again that had been taken; the "
                "others are served; look at the disk",
                queue=shown(queue.name),
                path=log.file.path,
                **describe_lost(damaged),
            )
        queue.used_now()

    def _restore_bindings(self, saved: Saved) -> None:
        broker = self._broker
        going = set(saved.going)
        gone: list[Binding] = []
        # Versions before kept the fields of a table as they came.
        in_order = {binding: _in_order(binding) for binding in saved.bindings}
        older = [binding for binding, sorted_ in in_order.items() if binding is not sorted_]
        if older and broker.store.read_only is None:
            for binding in older:
                broker.topology_table.put_binding(in_order[binding])
            broker.topology_table.drop_bindings(older)
        for binding in dict.fromkeys(in_order.values()):
            if (binding.source, True) in going or (binding.destination, binding.to_exchange) in going:
                gone.append(binding)
            elif not self._add_found(binding):
                self.waiting.add(binding)
        if broker.store.read_only is None and going:
            broker.topology_table.drop_bindings(gone)
            for name, to_exchange in going:
                broker.topology_table.bindings_gone(name, to_exchange)
        if self.waiting:
            ends = (end for binding in self.waiting for end in _ends(binding))
            missing = dict.fromkeys(name for name, of in ends if name not in self.destinations_of(of))
            broker.log.error(
                "bindings name exchanges or queues that are not there: they wait until you declare those",
                bindings=len(self.waiting),
                missing=[shown(name) for name in islice(missing, _SHOWN_MAX)],
            )

    # -- bindings that wait for what they name

    def _find_waiting(self, declared: Destination) -> None:
        """Put bindings into effect that waited for this one."""
        if declared.durable:
            for binding in self.waiting.naming(declared.name, isinstance(declared, Exchange)):
                if self._add_found(binding):
                    self.waiting.discard(binding)

    def _drop_waiting(self, deleted: Destination) -> None:
        """Forget the bindings of this one that wait for their other end."""
        rows = self.waiting.naming(deleted.name, isinstance(deleted, Exchange))
        if rows:
            self._broker.topology_table.drop_bindings(rows)
            for binding in rows:
                self.waiting.discard(binding)

    def _add_found(self, binding: Binding) -> bool:
        """Put a saved binding into effect, if both its ends are there."""
        broker = self._broker
        exchange = broker.exchanges.get(binding.source)
        destination = self.destinations_of(binding.to_exchange).get(binding.destination)
        if exchange is None or destination is None or not exchange.kind.durable or not destination.durable:
            return False
        try:
            self._add(exchange, binding, destination)
        except Refusal:  # of an exchange of another type
            return False
        return True

    def destinations_of(self, is_exchange: bool) -> Mapping[bytes, Destination]:
        """Where bindings may lead: all exchanges, or all queues, by name."""
        return self._broker.exchanges if is_exchange else self._broker.queues


def _binding(source: bytes, destination: Destination, key: bytes, table: bytes) -> Binding:
    return _in_order(Binding(source, destination.name, isinstance(destination, Exchange), key, table))


def _in_order(binding: Binding) -> Binding:
    table = sorted_table(binding.arguments)
    return binding if table == binding.arguments else attrs.evolve(binding, arguments=table)


def _exchange_bytes(name: bytes, kind: ExchangeKind) -> int:
    return EXCHANGE_BYTES + 2 * len(name) + kind.durable * (DURABLE_BYTES + DURABLE_KEY_BYTES * len(name))


def _queue_bytes(name: bytes, kind: QueueKind) -> int:
    size = (
        QUEUE_BYTES
        + 2 * len(name)
        + 2 * len(kind.table + kind.changes)
        + PRIORITY_BYTES * kind.arguments.priority_max
    )
    return size + kind.durable * (LOG_BYTES + DURABLE_BYTES + DURABLE_KEY_BYTES * len(name))


def _binding_bytes(exchange: Exchange, binding: Binding) -> int:
    """What a binding takes. A durable exchange's bindings count as durable, whatever they lead to."""
    key, arguments = len(binding.key), len(binding.arguments)
    size = BINDING_BYTES + key + arguments
    if exchange.kind.type == "topic":
        words = exchange.wild_words(binding.key)
        size = TOPIC_BYTES + TOPIC_KEY_BYTES * key + WILD_WORD_BYTES * words + arguments
    elif exchange.kind.type == "headers":
        size += HEADERS_BYTES * arguments
    if exchange.kind.durable:
        names = len(binding.source) + len(binding.destination)
        size += DURABLE_BYTES + DURABLE_KEY_BYTES * (names + key + arguments)
    return size


def _waiting_bytes(binding: Binding) -> int:
    return BINDING_BYTES + DURABLE_BYTES + 2 * (len(binding.key) + len(binding.arguments))


def _log_name(queue: bytes) -> str:
    return queue.decode()  # names of queues come through pamqp, which takes nothing but UTF-8


def _same(kind: str, name: bytes, asked: object, now: object, fields: Iterable[str]) -> None:
    """Raises Refusal for the first field that differs."""
    for what in fields:
        one, other = getattr(asked, what), getattr(now, what)
        if one != other:
            raise inequivalent(what, kind, name, *(f"'{value}'".lower() for value in (one, other)))


def _reserved(kind: str, name: bytes) -> Refusal:
    text = f"{kind} name {shown(name)} contains reserved prefix 'amq.*'"
    return Refusal(Code.ACCESS_REFUSED, text)


def _ends(binding: Binding) -> tuple[_End, _End]:
    return (binding.source, True), (binding.destination, binding.to_exchange)
