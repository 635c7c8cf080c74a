"""Dead letters: messages that leave a queue without being acknowledged, and how they get elsewhere.

A dead letter keeps its body and its properties, except `expiration`. Its header `x-death` says what has
happened to it: a table for each queue and reason, the newest first, as RabbitMQ writes it.

Dead-lettering a message costs about thirty times what a publish costs, and very many may die at once. That is
all that expires behind a message that lived longer, or all that a consumer rejects in one word. So they are
delivered in turns of the loop. Queues take turns, one letter each, so that many of one queue do not
delay the few of another. A letter that waits for its turn is in no queue and counts as memory. Its record
stands, so a restart has it in its old queue again. So does one that the disk refuses to move, which waits a
second longer. Where all queues that a letter goes to are full, and reject what comes, it waits so, too, and
those of its queue behind it. They stay in order, and one is tried each second, however many wait. So it is
where no queue takes one whose queue was declared so that none is lost (`x-dead-letter-strategy`).
"""

import datetime
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from dmp.data_types import EMPTY_TABLE, field_table, joined_tables, read_field, without_field
from dmp.message import Head
from dmp.properties import CC, KEYS_MAX, expiration_in, keys_in, with_headers
from dmp.queues import Queue
from dmp.refusals import Refusal, shown
from dmp.tries import uncounted
from shared.errors import StoreError
from shared.queues.deaths import Death
from shared.queues.runs import Run
from shared.turns import Turn

if TYPE_CHECKING:
    from dmp.broker import Broker
    from shared.storage.store import Ticket

RETRY_SECONDS = 1.0  # from a refusal of the disk on
TELL_SECONDS = 60.0  # between two lines of the log about letters that wait, or are lost
REASONS = ("expired", "rejected", "maxlen", "delivery_limit")
_DEATHS_MAX = 64  # entries that are kept: a header must fit one frame


@attrs.define(eq=False)
class DeadLetters:
    """The dead letters of one broker that wait to be delivered. `scheduled` is the timers'."""

    _broker: "Broker"
    deadline: float = math.inf
    scheduled: float = math.inf
    _waiting: dict[Queue, deque[tuple[Run, str]]] = attrs.Factory(dict)
    _refused: list[tuple[Queue, Run, str]] = attrs.Factory(list)
    """Single messages, each as a run."""
    _counted: set[Run] = attrs.Factory(set)  # those of them that are counted as passed on
    _retry_at: float = math.inf  # then these wait for their turn again
    _tell_at: float = -math.inf
    _turns: deque[Queue] = attrs.Factory(deque)
    _parked: dict[Queue, str] = attrs.Factory(dict)
    """Queues whose next letter has no place, each with why."""
    _busy: bool = False

    def add(self, queue: Queue, runs: Sequence[Run], reason: str) -> None:
        """Deliver messages that have left `queue` for `reason`, in turns."""
        if not runs:
            return
        waited = bool(self._turns)
        self._wait(queue, runs, reason)
        if not (waited or self._busy):  # busy: it was pushed out by a letter that is being delivered
            self._deliver_some()

    def _wait(self, queue: Queue, runs: Sequence[Run], reason: str) -> None:
        letters = self._waiting.get(queue)
        if letters is None:
            letters = self._waiting[queue] = deque()
            self._turns.append(queue)
        letters += [(run, reason) for run in runs]

    def waiting(self, queue: Queue) -> int:
        """How many letters of a queue wait for their turn."""
        return sum([len(run) for run, _ in self._waiting.get(queue, ())])

    def obstacle(self, queue: Queue) -> str | None:
        """Why the next letter of a queue waits; None: none was tried and had no place."""
        return self._parked.get(queue)

    def send_to(self, queue: Queue, run: Run, target: Queue) -> "Ticket | None":
        """Have messages that were taken off the front of `queue` be in another one. The ticket: of their
        arrival there; where the disk refuses it they are back. Raises StoreError, and they are still yours.
        """
        head = run.head.sent_to(b"", target.name, run.head.properties)
        if head.due_ms:  # it has waited
            head.due_ms = 0

        def moved(done: "Ticket") -> None:
            if self._broker.was_taken_back(done):
                queue.return_front([run])
                queue.dispatch()

        moving = self._move(queue, run, head, [target])
        if moving is not None:
            moving.when_done(moved)
        return moving

    def death(self, queue: Queue, head: Head) -> Death[Queue] | None:
        """How a message with that head died last, in another queue; None where that is not there. The key is
        that with which it came there."""
        deaths = _deaths_of(head)
        name = deaths[0].get("queue") if deaths else None
        found = self._broker.queues.get(name.encode()) if isinstance(name, str) else None
        if found is None or found is queue:
            return None
        time, keys = deaths[0].get("time"), deaths[0].get("routing-keys")
        return Death(
            found,
            str(deaths[0].get("reason", "")),
            str(keys[0]) if isinstance(keys, list) and keys else _text(head.key),
            int(time.timestamp() * 1000) if isinstance(time, datetime.datetime) else 0,
        )

    def expire(self, now: float) -> None:
        """The timers': it is our turn again."""
        if now >= self._retry_at:
            refused, self._refused = self._refused, []
            self._retry_at = math.inf
            for queue, message, reason in refused:
                self._wait(queue, (message,), reason)
            self._turns += self._parked
            self._parked = {}
        self._deliver_some()

    def _deliver_some(self) -> None:
        self._busy = True
        turn = Turn()
        queues = 0  # that the last letter went to
        try:
            while self._turns and not turn.over(1 + queues):
                queue = self._turns.popleft()
                letters = self._waiting[queue]
                message, reason = letters[0]
                head = letter_head(self._broker, queue, message.head, reason)
                targets = self.targets(head)
                obstacle = self._obstacle(queue, head, targets)
                if obstacle is not None:
                    self._park(queue, obstacle)
                    continue
                if len(message.bodies) > 1:
                    message = message.cut(1)
                else:
                    letters.popleft()
                if letters:
                    self._turns.append(queue)
                else:
                    del self._waiting[queue]
                queues = self._deliver(queue, message, reason, head, targets)
        finally:
            self._busy = False
            self._go_on()

    def _go_on(self) -> None:
        """Go on in the next turn."""
        timers = self._broker.timers
        if self._turns:
            timers.set(self, timers.now())
        elif self._retry_at < math.inf:
            timers.set(self, self._retry_at)

    def targets(self, head: Head) -> Sequence[Queue]:
        """Where its exchange says that a letter goes, and may go."""
        return without_circles(head, self._routed(head))

    def _routed(self, head: Head) -> Sequence[Queue]:
        with suppress(Refusal):  # the exchange is not there, or its keys cost too much
            return self._broker.route(head.exchange, head)
        return ()

    def _obstacle(self, queue: Queue, head: Head, targets: Sequence[Queue]) -> str | None:
        """Why a letter waits: each queue that it goes to rejects it now, of which a publisher would be told;
        or there is none, and it must not be lost. None: it is delivered, or lost."""
        if targets:
            full = all(target.capacity.rejects_now(head) for target in targets)
            return f"queue {shown(targets[0].name)} is full" if full else None
        keeps = queue.kind.arguments.keeps_letters and not self._routed(head)
        return f"no queue takes {shown(head.key)} from exchange {shown(head.exchange)}" if keeps else None

    def _park(self, queue: Queue, obstacle: str) -> None:
        self._parked[queue] = obstacle
        self._retry_soon()
        self._tell(
            "dead letters wait, as the reason says: consume or purge what is full and rejects them, or "
            "make what is missing",
            queue,
            reason=obstacle,
        )

    def _tell(self, text: str, queue: Queue, **more: Any) -> None:
        """A warning about a queue's letters; of all queues' one in `TELL_SECONDS`."""
        now = self._broker.timers.now()
        if now >= self._tell_at:
            self._tell_at = now + TELL_SECONDS
            self._broker.log.warning(text, queue=shown(queue.name), **more)

    def _retry_soon(self) -> None:
        if self._retry_at == math.inf:
            self._retry_at = self._broker.timers.now() + RETRY_SECONDS

    def _deliver(self, queue: Queue, message: Run, reason: str, head: Head, targets: Sequence[Queue]) -> int:
        """Put it there, or lose it. Returns to how many queues it goes."""
        broker = self._broker
        counted = message in self._counted
        self._counted.discard(message)
        targets = broker.with_room(head, targets)
        if not targets:
            queue.leave([message])
            broker.counts.dead_letters_lost += 1
            self._tell(
                "dead letters are lost: no queue takes them, or it has had them; look at where "
                "their queue sends them",
                queue,
                exchange=shown(head.exchange),
                key=shown(head.key),
                lost=broker.counts.dead_letters_lost,
            )
            return 0

        def moved(done: "Ticket") -> None:
            if not self._broker.was_taken_back(done):
                return
            self._refused.append((queue, message, reason))
            self._counted.add(message)
            self._retry_soon()
            self._go_on()

        try:
            moving = self._move(queue, message, head, targets)
            if not counted:
                broker.counts.dead_lettered += 1
            if moving is not None:
                moving.when_done(moved)
        except StoreError:  # its record stands: a restart brings it back
            queue.forget([message])
            broker.counts.dead_letters_lost += 1
        return len(targets)

    def _move(self, queue: Queue, run: Run, head: Head, targets: Sequence[Queue]) -> "Ticket | None":
        """Into the targets and out of the queue, in one batch where both are durable. Raises StoreError.

        The ticket tells whether the disk has that batch; where it has not, the messages are still yours.
        None: nothing waits for the disk.
        """
        broker, log = self._broker, queue.log
        coming = [
            (target, uncounted(head) if target.tries is not None else head, run.bodies) for target in targets
        ]
        if log is None or run.offset < 0 or queue.deleted or not any(target.durable for target in targets):
            log, ticket = None, broker.append(coming, moved=True)
        else:
            ticket = broker.append(coming, {queue: [run]}, reserved=True, moved=True)
        if ticket is None:
            queue.leave([run])
            return None
        if log is not None:
            log.part([run])

        def moved(done: "Ticket") -> None:
            if broker.was_taken_back(done):
                if log is not None:
                    log.stay([run])
            elif log is None:
                queue.leave([run])
            else:
                log.left([run])
                queue.forget([run])
                if not queue.deleted:
                    broker.log_changed(log)

        ticket.when_done(moved)
        return ticket


def letter_head(broker: "Broker", queue: Queue, old: Head, reason: str) -> Head:
    """The head with which messages that had the `old` one, and die in `queue`, go to its exchange for them.

    It has the queue's key for dead letters, or else the old one, and those in `CC`. With the queue's,
    `CC` goes from the headers, as RabbitMQ has it.
    """
    exchange, key = queue.kind.arguments.dead_letter_exchange, queue.kind.arguments.dead_letter_key
    assert exchange is not None
    table = EMPTY_TABLE if old.noted.headers is None else old.properties[slice(*old.noted.headers)]
    copies: tuple[bytes, ...] = ()
    with suppress(Refusal):  # a sink does not look at what stands there
        copies = tuple(keys_in({CC: read_field(table, CC.encode()) or []}, CC))
    death = {
        "count": 1,
        "reason": reason,
        "queue": _text(queue.name),
        "time": datetime.datetime.fromtimestamp(int(broker.wall_seconds()), datetime.UTC),
        "exchange": _text(old.exchange),
        "routing-keys": [_text(each) for each in (old.key, *copies)],
    }
    expiration = expiration_in(old.properties)
    if expiration:
        death["original-expiration"] = expiration
    if key is not None:
        table = without_field(table, CC.encode())
    try:
        head = old.sent_to(exchange, key, _with_death(old, table, death))
    except Refusal:  # no field more fits the table: without x-death a circle has no end
        head = old.sent_to(exchange, key, _with_death(old, EMPTY_TABLE, death))
    if key is None:
        head.more_keys = copies[:KEYS_MAX]
    head.died, head.due_ms = True, 0
    return head


def _with_death(old: Head, table: bytes, death: dict[str, Any]) -> bytes:
    """The properties of a dead letter with these headers. What is not the broker's stays as its publisher
    wrote it, byte for byte."""
    added: dict[str, Any] = {"x-death": _with(_deaths_of(old), death)}
    for name in ("reason", "queue", "exchange"):
        first = f"x-first-death-{name}"
        if not old.died:
            table = without_field(table, first.encode())
        if without_field(table, first.encode()) == table:
            added[first] = death[name]
    table = joined_tables(without_field(table, b"x-death"), field_table(added))
    return with_headers(old.properties, table, without="expiration")


def without_circles(head: Head, queues: Sequence[Queue]) -> list[Queue]:
    """The targets without the queues that the message has died in before, unless somebody has rejected it
    since.

    A circle that no client takes part in would go round for ever; one with a rejection is a client's choice.
    So is the longest way that `x-death` has room for.
    """
    deaths = _deaths_of(head)
    closed: set[str] = set()  # by the deaths since the last rejection
    for death in deaths:
        if death["reason"] == "rejected":
            break
        closed.add(death["queue"])
    if len(closed) == _DEATHS_MAX:
        return []
    return [queue for queue in queues if _text(queue.name) not in closed]


def _deaths_of(head: Head) -> list[dict[str, Any]]:
    """What the broker has written of the message's deaths, the newest first."""
    if not head.died or head.noted.headers is None:
        return []
    try:
        deaths = read_field(head.properties[slice(*head.noted.headers)], b"x-death")
    except Refusal:
        return []
    return [death for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []


def _with(deaths: Sequence[dict[str, Any]], death: dict[str, Any]) -> list[Any]:
    others = []
    for other in deaths:
        if all(other[name] == death[name] for name in ("queue", "reason")):
            death = {**other, "count": other["count"] + 1, "time": death["time"]}
        else:
            others.append(other)
    return [death, *others[: _DEATHS_MAX - 1]]


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
