"""What the administration does with the messages of a queue: look, move, send back, delete.

How messages are taken out of the middle (`MessageActions.sift`). The queue delivers nothing meanwhile. Its
messages are taken off the front, in turns; those that go somewhere go, and the others lie *aside* and return
to their places at the end. An action answers when the disk has what it did, and the other queue shows it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import attrs
import trio

from shared.actions import (
    CANCEL,
    DISCARD,
    JOB,
    MOVE,
    PEEK,
    PEEK_MAX,
    RATED_SECONDS,
    REDRIVE,
    REQUEUE,
    RESCHEDULE,
    SIFTED_MAX,
)
from shared.errors import BrokerError
from shared.objects import (
    SEARCHED_MAX,
    Action,
    BadArgument,
    BadValue,
    MessageRows,
    a_count,
    a_text,
    an_optional_count,
)
from shared.queues.deaths import Death, DeathFilter
from shared.queues.naming import MessageName, NewTime
from shared.queues.runs import Run, split_after, split_by
from shared.rates import Rate, TokenBucket
from shared.task_turns import TaskTurn
from shared.turns import ITEMS, Turn, taken_out

if TYPE_CHECKING:
    from shared.queues.core import RunQueue
    from shared.storage.log import Ticket
    from shared.turns import LongWork

Q = TypeVar("Q", bound="RunQueue")
PASS_SECONDS = 1.0
"""From one pass of a redrive with a rate to the next, at least: each looks at the queue from its front."""


class MessageActions(Generic[Q]):
    """The actions on messages of queues; `work`: of the protocol, in turns. Where a method raises
    NotImplementedError the protocol has its own. `reasons`: what messages die of."""

    reasons: ClassVar[Sequence[str]]

    def __init__(self, work: LongWork) -> None:
        self._work = work

    # -- what a protocol tells

    def find(self, name: str) -> Q | None:
        """The queue of this name."""
        raise NotImplementedError

    def may_write(self, queue: Q) -> bool:
        """Whether who asks may write to it."""
        raise NotImplementedError

    def waiting(self, queue: Q) -> int:
        """How many messages nobody holds."""
        raise NotImplementedError

    def look(self, queue: Q, most: int, least: int) -> AsyncGenerator[tuple[Run, int | None]]:
        """The first `most` of these from the number `least` on, each as a run, with its time of arrival (Unix
        ms), where that is known. They stay."""
        raise NotImplementedError

    async def show(self, rows: MessageRows, queue: Q, message: Run, time_ms: int | None) -> None:
        """Add a message's row."""
        raise NotImplementedError

    def now_ms(self) -> int:
        """The time in Unix ms, by the clock of dead letters."""
        raise NotImplementedError

    def death(self, queue: Q, run: Run, place: int) -> Death[Q] | None:
        """How a dead letter died in another queue; None where that is gone, or it is no dead letter."""
        raise NotImplementedError

    async def ready_to_sift(self, queue: Q) -> None:
        """Wait until what is in the queue now can be taken out of it."""
        raise NotImplementedError

    async def load(self, queue: Q) -> bool:
        """Have the front of the row in memory; False: there is nothing more."""
        raise NotImplementedError

    def take_front(self, queue: Q, most: int) -> list[Run]:
        """Take the next messages, as far as they are in memory. They are still in the queue."""
        raise NotImplementedError

    async def read(self, queue: Q, runs: list[Run]) -> None:
        """Have messages that were taken in memory, bodies and all, where they need not be. What is lost is no
        more among them."""

    def return_front(self, queue: Q, runs: list[Run]) -> None:
        """Messages that were taken return to their places."""
        raise NotImplementedError

    def room(self, target: Q, run: Run | None) -> float:
        """How many of these a queue would take; None: messages of which nothing is known."""
        raise NotImplementedError

    def send(self, queue: Q, run: Run, target: Q) -> Ticket | None:
        """Messages that were taken are at the end of another queue. The ticket: of the record; where the disk
        refuses that, they are back. Raises BrokerError, and then nothing has changed."""
        raise NotImplementedError

    def drop(self, queue: Q, run: Run) -> Ticket | None:
        """Messages that were taken leave. Raises as `send`."""
        raise NotImplementedError

    async def named(self, queue: Q, name: MessageName) -> tuple[Run, int | None, str]:
        """A message that is in the queue, alone: the run, when it came (Unix ms), and its state: `ready`,
        `waiting` (for its time) or `held`. It stays. Raises BrokerError."""
        raise NotImplementedError

    async def cancel_named(self, queue: Q, name: MessageName) -> Ticket | None:
        """A message leaves. Raises BrokerError, and then nothing has changed."""
        raise NotImplementedError

    async def reschedule_named(self, queue: Q, name: MessageName, time: NewTime) -> Ticket | None:
        """A message is not to be delivered before that. Raises as `cancel_named`."""
        raise NotImplementedError

    def take_back(self, queue: Q, name: MessageName, *, dry_run: bool) -> None:
        """A message that a client holds is in its place again. Raises BrokerError, and then nothing has
        changed."""
        raise NotImplementedError

    async def settle(self, ticket: Ticket | None = None) -> None:
        """Commit what was changed, and wait for it. Raises StoreError."""
        raise NotImplementedError

    async def shown(self, target: Q) -> None:
        """Wait until what is in the queue now may be delivered."""
        raise NotImplementedError

    # -- the actions

    @PEEK
    async def peek(self, queue: Q, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        rows = MessageRows(a_count(arguments, "limit", 10, 1, PEEK_MAX), a_text(arguments, "contains", ""))
        least = a_count(arguments, "from", 0, 0, 1 << 63)
        following = None
        turn = TaskTurn()
        most = SEARCHED_MAX if rows.is_search else rows.left
        async with aclosing(self.look(queue, most + 1, least)) as messages:
            async for message, time_ms in messages:
                if not rows.left:
                    following = message.first
                    break
                await self.show(rows, queue, message, time_ms)
                await turn.item()
        return {"items": rows.items, "next": following}

    @REDRIVE
    async def redrive(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        """Move dead letters back. Others stay, and so do those whose queue is missing or full, or not to be
        written to by who asks."""
        wanted = an_optional_count(arguments, "position")
        meant, rate = DeathFilter.of(arguments, self.reasons, self.now_ms()), _a_rate(arguments)

        def goes_to(run: Run, place: int) -> Q | None:
            if wanted not in (None, run.first + place):
                return None
            death = self.death(queue, run, place)
            if death is None or not meant.fits(death) or not self.may_write(death.queue):
                return None
            return death.queue

        if rate is not None and wanted is None and not dry_run:
            moved, left = await self._sift_at(rate, queue, goes_to)
        else:
            moved, left = await self.sift(queue, goes_to, None if wanted is None else 1, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} is no dead letter that waits here, fits and can go back")
        return {"moved": moved, "left": left}

    async def _sift_at(
        self, rate: Rate, queue: Q, goes_to: Callable[[Run, int], Q | None]
    ) -> tuple[int, int]:
        """Sift in passes: what one leaves is in its place, and the queue delivers until the next."""
        bucket, moved = TokenBucket(rate), 0
        until = trio.current_time() + RATED_SECONDS
        while True:
            allowed = bucket.allowance(trio.current_time())
            gone, left = await self.sift(queue, goes_to, allowed, dry_run=False, everywhere=True)
            bucket.take(gone)
            moved += gone
            pause = max(bucket.wait_seconds, PASS_SECONDS)
            if gone < allowed or queue.deleted or trio.current_time() + pause > until:
                return moved, left
            await trio.sleep(pause)

    @MOVE
    async def move(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name, wanted = a_text(arguments, "to"), an_optional_count(arguments, "position")
        target = self.find(name)
        if target is None or target is queue:
            raise BadArgument(f"to: there is no other queue {name}")
        if not self.may_write(target):
            raise BadArgument(f"to: the user may not write to {name}")
        most = self.waiting(queue) if wanted is None else 1
        if "limit" in arguments:
            most = min(most, a_count(arguments, "limit", 0, 1, 1 << 63))

        def goes_to(run: Run, place: int) -> Q | None:
            return target if wanted in (None, run.first + place) else None

        if wanted is None and dry_run:  # nobody needs to look at each
            waiting = self.waiting(queue)
            moved = int(min(most, waiting, self.room(target, None)))
            return {"moved": moved, "left": waiting - moved}
        moved, left = await self.sift(queue, goes_to, most, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} does not wait here, or {name} is full")
        return {"moved": moved, "left": left}

    @DISCARD
    async def discard(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        wanted = an_optional_count(arguments, "position")
        if wanted is None:
            raise BadValue("position is missing: of the message to delete")
        discarded, _ = await self.sift(
            queue, lambda run, place: queue if run.first + place == wanted else None, 1, dry_run=dry_run
        )
        if not discarded:
            raise BadArgument(f"position: {wanted} does not wait among the first {SIFTED_MAX:,} here")
        return {"discarded": discarded}

    @JOB
    async def job(self, queue: Q, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        rows = MessageRows(1)
        message, time_ms, state = await self.named(queue, MessageName.of(arguments))
        await self.show(rows, queue, message, time_ms)
        return {"items": [{**row, "state": state} for row in rows.items], "next": None}

    @CANCEL
    async def cancel(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name = MessageName.of(arguments)
        if dry_run:
            await self._not_held(queue, name)
        else:
            await self.settle(await self.cancel_named(queue, name))
        return {"cancelled": 1}

    @RESCHEDULE
    async def reschedule(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name, time = MessageName.of(arguments), NewTime.of(arguments, self.now_ms())
        if dry_run:
            await self._not_held(queue, name)
        else:
            await self.settle(await self.reschedule_named(queue, name, time))
        return {"rescheduled": 1}

    @REQUEUE
    async def requeue(self, queue: Q, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name = MessageName.of(arguments)
        _, _, state = await self.named(queue, name)
        if state == "ready":
            raise BadArgument(f"{name} is ready: nothing keeps it from being delivered")
        if state == "held":
            self.take_back(queue, name, dry_run=dry_run)
        elif not dry_run:
            await self.settle(await self.reschedule_named(queue, name, NewTime(0)))
        return {"requeued": 1}

    async def _not_held(self, queue: Q, name: MessageName) -> None:
        if (await self.named(queue, name))[2] == "held":
            raise BadArgument(f"{name} is held by a client")

    @property
    def on_messages(self) -> Sequence[Action]:
        """All of them, as a list of queues has them."""
        one = self.job, self.cancel, self.reschedule, self.requeue
        return self.peek, *one, self.move, self.redrive, self.discard

    # -- how

    async def sift(
        self,
        queue: Q,
        goes_to: Callable[[Run, int], Q | None],
        most: int | None,
        *,
        dry_run: bool,
        everywhere: bool = False,
    ) -> tuple[int, int]:
        """Take `most` waiting messages out, or all that go somewhere: (how many, how many are left).

        `goes_to`: by a run and the place of a message there, the queue that gets it; the queue itself: none,
        it is deleted; None: it stays. With `most` only the first messages are looked at, `SIFTED_MAX` and
        those that go, unless `everywhere`. Raises BrokerError; what has gone until then has gone.
        """
        looked_most = math.inf if most is None or everywhere else SIFTED_MAX + most
        sift = _Sift(self, queue, goes_to, math.inf if most is None else most)
        if dry_run:
            await sift.count(looked_most)
            return sift.gone, self.waiting(queue) - sift.gone
        await self.ready_to_sift(queue)
        queue.await_returns()
        queue.aside.append(sift.stay)
        back, turn = sift.place_back(), TaskTurn()
        try:
            await sift.run(looked_most)
            for _ in back:
                await turn.others()
        finally:
            self._work.add(back)  # nothing, unless it was cancelled or has failed
        await sift.settled()
        return sift.gone, self.waiting(queue)


@attrs.define(eq=False)
class _Sift(Generic[Q]):
    """One pass over the front of a queue, in which at most `most` messages go."""

    _actions: MessageActions[Q]
    _queue: Q
    _goes_to: Callable[[Run, int], Q | None]
    _most: float
    gone: int = 0
    stay: list[Run] = attrs.Factory(list)
    _targets: dict[Q, None] = attrs.Factory(dict)
    _tickets: list[Ticket] = attrs.Factory(list)

    async def count(self, looked_most: float) -> None:
        """Only count what would go."""
        actions, queue = self._actions, self._queue
        turn = TaskTurn()
        most = int(min(actions.waiting(queue), looked_most))
        async with aclosing(actions.look(queue, most, 0)) as messages:
            async for message, _ in messages:
                self.gone += self._goes_to(message, 0) is not None
                if self.gone >= self._most:
                    break
                await turn.item()

    async def run(self, looked_most: float) -> None:
        actions, queue = self._actions, self._queue
        left = min(actions.waiting(queue), looked_most)
        turn = TaskTurn()
        while left > 0 and self.gone < self._most and not queue.deleted:
            # AMQP's go one by one, and 256 of them have taken 20 ms between two looks at the clock.
            taken = actions.take_front(queue, min(ITEMS, int(left)))
            if not taken:
                if await actions.load(queue):
                    continue
                break
            left -= sum(map(len, taken))
            try:
                await actions.read(queue, taken)
            except BaseException:
                self.stay += taken
                raise
            while taken:
                run = taken.pop(0)
                try:
                    self._send_away(run)
                except BrokerError:
                    self.stay += taken
                    raise
            if turn.over_now():
                await actions.settle()
                await turn.others()

    def _send_away(self, run: Run) -> None:
        """Send the messages of a run where they go; what stays is in `stay`. Raises BrokerError."""
        targets = [self._goes_to(run, place) for place in range(len(run))]
        parts = [*split_by(run, targets)]
        while parts:
            target, part = parts.pop(0)
            going: Sequence[Run] = ()
            staying: Sequence[Run] = (part,)
            if target is not None:
                room = self._most - self.gone
                if target is not self._queue:
                    room = min(room, self._actions.room(target, part))
                going, staying = split_after((part,), int(max(min(room, len(part)), 0)))
            self.stay += staying
            for each in going:
                assert target is not None
                try:
                    self._send(each, target)
                except BrokerError:
                    self.stay += [each, *[rest for _, rest in parts]]
                    raise

    def _send(self, run: Run, target: Q) -> None:
        actions, queue = self._actions, self._queue
        if target is queue:
            ticket = actions.drop(queue, run)
        else:
            ticket = actions.send(queue, run, target)
            self._targets[target] = None
        self.gone += len(run)
        if ticket is not None and (not self._tickets or self._tickets[-1] is not ticket):
            self._tickets.append(ticket)

    def place_back(self) -> Iterator[None]:
        """What stays returns to its places. Until then the queue delivers nothing."""
        actions, queue, stay = self._actions, self._queue, self.stay
        stay.reverse()
        try:
            turn = Turn()
            for batch in taken_out(stay.pop, stay):
                actions.return_front(queue, batch)
                if turn.over_now():
                    yield
                    turn.begin()
        finally:
            queue.aside = [aside for aside in queue.aside if aside is not stay]
            queue.all_returned()

    async def settled(self) -> None:
        """Wait until the disk has all of it, and the other queues show what they got. Raises StoreError."""
        await self._actions.settle()
        for ticket in self._tickets:
            await self._actions.settle(ticket)
        for target in self._targets:
            await self._actions.shown(target)


def _a_rate(arguments: Mapping[str, Any]) -> Rate | None:
    """The argument `rate`, if it is given. Raises BadArgument."""
    if "rate" not in arguments:
        return None
    try:
        return Rate.parse(a_text(arguments, "rate"))
    except ValueError as error:
        raise BadValue(f"rate {error}") from None
