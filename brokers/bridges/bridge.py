"""One bridge: from its source to its target, in entries of the journal.

`step` does all the work and never waits. It takes runs from the source. Within one `Store.together` it writes
them to the target and confirms them at the source, so the journal has both or neither. A message that the
target refuses is held back, and no later one overtakes it. Messages count as carried when the disk has their
entry. If the disk refuses an entry, both ends are opened again where they were; messages of a volatile source
are written again.

A bridge holds no more than its inbox. A source that can wait is not asked for more; a source that cannot
wait loses messages, and they are counted.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from brokers.bridges import forms
from brokers.bridges.positions import KeptPositions
from brokers.bridges.settings import BridgeSettings
from shared.addresses import MessageOrigin, NameTemplate, split
from shared.bridging import (
    MESSAGE_BYTES,
    BridgeContext,
    BridgeEnds,
    BridgeRefusal,
    BridgeSource,
    BridgeTarget,
    Inbox,
    MessageRun,
)
from shared.errors import StoreError
from shared.metrics import counter, counter_by
from shared.rates import TokenBucket
from shared.storage.log import CommitBatch
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from brokers.bridges.bridges import Bridges

MESSAGES_PER_STEP = 2048
FORMED_PER_STEP = 256
"""Messages in an entry that become text or JSON: some milliseconds."""
RUNS_PER_STEP = 128
"""Runs in an entry: takes as long, where each message has its own name."""
BYTES_PER_STEP = 1 << 20
"""Bytes in an entry; then other tasks run."""
IN_FLIGHT_BYTES = 3 << 20
"""Above these bytes waiting for the disk, nothing more is taken."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.005, 0.25
"""Pauses before a target that refuses is asked again: the first, doubled each time, and the longest."""
OPEN_SECONDS_MAX = 1.0
"""Pause before a missing end is looked for again."""
TOLD_SECONDS = 60.0
"""Between two log lines about one reason."""
_HEAD_BYTES = 4096

State = Literal["starting", "running", "waiting", "paused", "stopped"]


@attrs.define(eq=False)
class BridgeCounts:
    """Counts of messages since the process started."""

    carried: int = counter("messages_total", "Messages carried.")
    carried_bytes: int = counter("bytes_total", "Bytes of their bodies.")
    filtered: int = counter("filtered_total", "Messages that its filter left out.")
    circled: int = counter("circled_total", "Messages that had passed this bridge before.")
    dead: Counter[str] = counter_by("reason", "dead_total", "Dead messages, which the target never takes.")
    dropped: Counter[str] = counter_by(
        "reason", "dropped_total", "Messages that were dropped because the target refused them."
    )
    lost: Counter[str] = counter_by(
        "reason", "lost_total", "Messages of a source that cannot wait, without room for them."
    )
    waited: Counter[str] = counter_by("reason", "waits_total", "Refusals after which the bridge waited.")


@attrs.define(eq=False)
class _Entry:
    """What one journal entry confirms. `carried`: the messages written, without filtered and dead ones.

    It is counted when the disk has it: what the disk refuses comes again.
    """

    runs: list[MessageRun] = attrs.Factory(list)
    size: int = 0
    carried: int = 0
    carried_bytes: int = 0
    filtered: int = 0
    circled: int = 0
    dead: Counter[str] = attrs.Factory(Counter)
    dropped: Counter[str] = attrs.Factory(Counter)


class Bridge:
    """One bridge. `woken` is set when `step` has work again."""

    def __init__(self, settings: BridgeSettings, host: "Bridges", positions: KeptPositions) -> None:
        self.settings = settings
        self.name = settings.name
        self.counts = BridgeCounts()
        self.state: State = "starting"
        self.last_error = ""
        self.last_error_ms: float | None = None
        self._host = host
        self._positions = positions
        positions.on_refused = self._position_refused
        self.woken = trio.Event()
        self.stopped = False
        """True also while the disk has not answered the last entries."""
        self.inbox = Inbox(host.account, self._wake, self._lost)
        self._source_protocol, self._source_place = split(settings.source)
        self._target_protocol, _ = split(settings.target)
        self._dead_protocol, _ = split(settings.dead)
        self._template = self._template_of(settings.target)
        self._dead_template = self._template_of(settings.dead)
        self._wanted = settings.filter.by_name()
        self._source: BridgeSource | None = None
        self._target: BridgeTarget | None = None
        self._dead: BridgeTarget | None = None
        self._services: tuple[Any, Any] = (None, None)
        self._held: deque[MessageRun] = deque()
        """Messages that were taken and are refused for now, the oldest first."""
        self._failed: list[MessageRun] = []
        """Runs of a volatile source whose entries the disk refused, in order; they will be written again."""
        self._rules = host.rules(settings.name)
        self._reopen = False
        self._gives_back = False
        """The source as last opened."""
        self._in_flight = 0
        self._settled = 0
        """How many messages of the current run are done."""
        self._retry_at = -math.inf
        self._delay = 0.0
        self._bucket = None if settings.rate is None else TokenBucket(settings.rate)
        self._told: dict[str, float] = {}

    # -- control

    @property
    def guarantee(self) -> str:
        """The delivery guarantee with its present ends."""
        if self._source is None or self._target is None:
            return ""
        if not self._source.durable:
            return "at most once"
        return "exactly once" if self._target.durable else "at least once"

    @property
    def lag(self) -> int | None:
        if self._source is not None:
            lag = self._source.lag()
            if lag is not None and not self._source.gives_back:  # what we hold is in no count of its own
                lag += sum(map(len, (*self._held, *self._failed)))
            return lag
        service = self._host.service(self._source_protocol)
        if self.state != "paused" or service is None:
            return None
        ends: BridgeEnds = self._end(self._source_protocol)
        return ends.lag_of(service, self._source_place, self._positions)

    @property
    def lag_unit(self) -> str:
        return "bytes" if self._end(self._source_protocol).keeps_position else "messages"

    @property
    def paused(self) -> bool:
        return self._positions.paused

    def set_paused(self, paused: bool) -> None:
        """A paused bridge takes nothing more, and gives back what is not carried. A restart keeps the
        pause."""
        self._positions.paused = paused
        self._positions.keep()
        self._wake()

    def reset(self, start: str) -> None:
        """Begin again at `start`. Raises BridgeRefusal if the source keeps no position."""
        self.check_reset()
        self.close()
        self._positions.reset(start)
        self._wake()

    def check_reset(self) -> None:
        """Raise BridgeRefusal if the source keeps no position."""
        if not self._end(self._source_protocol).keeps_position:
            raise BridgeRefusal("source", "its source keeps no position: what is in a queue is carried once")

    def would(self, name: bytes, key: bytes, body: bytes) -> Mapping[str, Any]:
        """What the bridge would do with a message; nothing is sent."""
        origin = MessageOrigin(self._source_protocol, name or key, key, time=self._host.wall_ms() / 1000)
        run = MessageRun(origin, [body])
        ((_, fate, trail),) = self._parts(run) if self._wanted(origin.name) else [(1, "filtered", ())]
        if fate:
            return {"result": fate, "to": None, "body": None}
        (written,) = forms.bodies_of(self.settings.form, run, (*trail, self.name), *self._host.stamp())
        to = self._template.name_for(origin)
        outcome: dict[str, Any] = {"result": "carried", "to": f"{self._target_protocol}:{shown(to)}"}
        refused = self._refusal(to, written)
        if refused is not None:
            policy = self._policy(refused)
            result = {"wait": "waits", "drop": "dropped"}.get(policy, "dead")
            outcome |= {"result": result, "reason": refused.reason, "error": str(refused)}
            if policy == "dead":
                outcome["to"] = f"{self._dead_protocol}:{shown(self._dead_template.name_for(origin))}"
        return {**outcome, "bytes": len(written), "body": shown(written)}

    def _refusal(self, name: bytes, body: bytes) -> BridgeRefusal | None:
        """Why the target would refuse a message now; None if it would take it."""
        target = self._target
        try:
            if target is None:
                target = self._open_target(self.settings.target)
            target.check(name, body)
        except BridgeRefusal as refused:
            return refused
        finally:
            if target is not None and target is not self._target:
                target.close()
        return None

    def _wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        """Close both ends. What is not carried goes back to a source that can take it. Harmless twice."""
        for end in (self._source, self._target, self._dead):
            if end is not None:
                try:
                    end.close()
                except Exception as error:
                    self._host.log.error(
                        "a bug: an end of a bridge could not be closed; report this",
                        bridge=self.name,
                        exc_info=error,
                    )
        gives_back = self._source is not None and self._source.gives_back
        self._source = self._target = self._dead = None
        if gives_back:
            held, self._held = self._held, deque()
            self._release(held)
            self.inbox.clear()

    def stop(self) -> None:
        """Stop for good: write what a volatile source has given, as far as one step can."""
        self.stopped = True
        self._wake()
        while self._source is not None and not self._source.durable and (self._held or self.inbox.waiting):
            before = len(self._held) + self.inbox.waiting
            self._retry_at = -math.inf
            if self.step() is None or len(self._held) + self.inbox.waiting >= before:
                break
        self.close()
        left = self.inbox.clear() + sum(map(len, self._held))
        if left:
            self._lost("stopped", left)
        self._release(self._held)
        self._held.clear()
        self.state = "stopped"

    # -- carrying

    def step(self) -> float | None:
        """Carry what can be carried now. Returns seconds until the next call; None: call it at the next
        `wake`."""
        now = self._host.now()
        if self._positions.paused:
            self.close()
            self.state = "paused"
            return self._store_positions(now)
        rules = self._host.rules(self.name)
        if self._reopen or rules != self._rules:  # the source's permission is checked when it is opened
            self._reopen, self._rules = False, rules
            self.close()
        if self._failed:
            self._held.extendleft(reversed(self._failed))
            self._failed.clear()
        if now < self._retry_at:
            return self._retry_at - now
        delay = self._store_positions(now)
        if delay is not None:
            return delay
        if not self._is_open():
            return self._retry_at - now
        assert self._source is not None
        assert self._target is not None
        flushed = self._target.flush()
        if self._in_flight > IN_FLIGHT_BYTES:
            return None
        if self._host.store.congested:
            self._host.store.when_uncongested(self._wake)
            return None
        worked = False
        try:
            runs = self._gather()
            if runs:
                worked = True
                read_only = self._host.store.read_only
                if read_only is None or not self._source.durable:
                    self._carry(runs)
                else:  # it could not be confirmed, and would be written again and again
                    self._put_back(runs)
                    self._wait(read_only, OPEN_SECONDS_MAX)
        except (BridgeRefusal, StoreError) as error:
            self._wait(error, OPEN_SECONDS_MAX)
            self.close()
        self._host.store.commit_pending()
        if self._retry_at > now:
            return self._retry_at - now
        if self._bucket is not None and self._bucket.wait_seconds > 0:
            return self._bucket.wait_seconds
        return 0.0 if worked or not flushed else None

    def _store_positions(self, now: float) -> float | None:
        """Store again what the disk has refused. Returns seconds until the next call; None: all is stored."""
        if not self._positions.is_refused:
            return None
        if now >= self._retry_at:
            try:
                self._positions.store_again()
            except StoreError as error:
                self._wait(error, OPEN_SECONDS_MAX)
            self._host.store.commit_pending()
        return self._retry_at - now if self._retry_at > now else None

    def _is_open(self) -> bool:
        services = (self._host.service(self._source_protocol), self._host.service(self._target_protocol))
        if self._source is not None and services == self._services:
            return True
        if self._source is not None:
            self.close()  # the protocol crashed, and has a new engine now
        self._services = services
        try:
            source = self._served(self._source_protocol)
            self._target = self._open_target(self.settings.target)
            self._source = self._end(self._source_protocol).open_source(
                source, self._source_place, self._context(self._source_protocol)
            )
        except (BridgeRefusal, StoreError) as error:
            self._wait(error, OPEN_SECONDS_MAX)
            self.close()
            return False
        self._gives_back = self._source.gives_back
        self._runs()
        return True

    def _gather(self) -> list[MessageRun]:
        """Take runs from the source for one entry."""
        assert self._source is not None
        left = self._allowance()
        runs: list[MessageRun] = []
        size = 0
        while left > 0 and size < BYTES_PER_STEP and len(runs) < RUNS_PER_STEP:
            try:
                run = self._held.popleft() if self._held else self._source.take(left)
            except (BridgeRefusal, StoreError):
                self._held.extendleft(reversed(runs))
                raise
            if run is None:
                break
            if len(run) > left:
                self._held.appendleft(run.part(left, len(run)))
                run = run.part(0, left)
            runs.append(run)
            left -= len(run)
            size += run.size
        if self._bucket is not None:
            self._bucket.take(sum(map(len, runs)))
        return runs

    def _allowance(self) -> int:
        most = MESSAGES_PER_STEP if self.settings.form == "raw" else FORMED_PER_STEP
        return most if self._bucket is None else min(most, self._bucket.allowance(self._host.now()))

    def _carry(self, runs: list[MessageRun]) -> None:
        """Write and confirm runs in one entry, up to the first message that the target refuses."""
        assert self._source is not None
        assert self._target is not None
        done = _Entry()
        size = sum(run.size for run in runs) + _HEAD_BYTES
        one_entry = self._source.durable or self._target.durable
        joined: AbstractContextManager[CommitBatch | None]
        joined = self._host.store.together(size) if one_entry else nullcontext()
        try:
            with joined as batch:
                while runs:
                    self._settled = 0
                    if not self._carry_run(runs[0], done):
                        break
                    runs.pop(0)
                self._source.seal()
        finally:
            if runs:
                runs[0] = runs[0].part(self._settled, len(runs[0]))
                self._put_back(runs)
            ticket = batch.strictest if batch is not None else None
            if ticket is None:
                self._carried(done)
            else:
                self._in_flight += done.size
                ticket.when_done(lambda ticket: self._written(ticket, done))

    def _put_back(self, runs: Sequence[MessageRun]) -> None:
        """Hold back what was gathered and is not settled."""
        self._held.extendleft(reversed([run for run in runs if len(run)]))
        if self._bucket is not None:
            self._bucket.give_back(sum(map(len, runs)))

    def _written(self, ticket: Ticket, entry: _Entry) -> None:
        """The disk has taken or refused an entry."""
        self._in_flight -= entry.size
        if ticket.error is None:
            self._carried(entry)
        else:
            self._wait(ticket.error, OPEN_SECONDS_MAX)
            self._reopen = True
            if not self._gives_back and not self.stopped:
                self._failed += entry.runs
            else:
                if not self._gives_back:
                    self._lost("stopped", sum(map(len, entry.runs)))
                self._release(entry.runs)
        self._wake()

    def _position_refused(self, error: StoreError) -> None:
        if self._host.now() >= self._retry_at:  # an entry may have many positions
            self._wait(error, OPEN_SECONDS_MAX)
        self._reopen = True
        self._wake()

    def _carried(self, entry: _Entry) -> None:
        counts = self.counts
        counts.carried += entry.carried
        counts.carried_bytes += entry.carried_bytes
        counts.filtered += entry.filtered
        counts.circled += entry.circled
        counts.dead += entry.dead
        counts.dropped += entry.dropped
        self._release(entry.runs)

    def _release(self, runs: Iterable[MessageRun]) -> None:
        self.inbox.release(sum(run.size for run in runs))
        if self._source is not None:
            self._source.refill()

    def _carry_run(self, run: MessageRun, entry: _Entry) -> bool:
        """Carry a run. False: the target refuses the next message for now."""
        if not self._wanted(run.origin.name):
            entry.filtered += len(run)
            self._settle(run, entry, carried=False)
            return True
        at = 0
        for stop, fate, trail in self._parts(run):
            part = run.part(at, stop)
            if fate == "":
                if not self._write(part, (*trail, self.name), entry):
                    return False
            else:
                if fate == "filtered":
                    entry.filtered += len(part)
                else:
                    entry.circled += len(part)
                self._settle(part, entry, carried=False)
            at = stop
        return True

    def _parts(self, run: MessageRun) -> Iterator[tuple[int, str, tuple[str, ...]]]:
        """Split a run into parts of one fate: (end, fate, the bridges that the part has passed)."""
        bodies, trail = run.bodies, run.trail
        if not (self.settings.filter.by_size or any(body.startswith(forms.JSON_START) for body in bodies)):
            yield len(bodies), "circled" if self.name in trail else "", trail
            return
        for at, body in enumerate(bodies, 1):
            bridges = forms.bridges_passed(body, self._host.key)
            passed = (*trail, *(name for name in bridges if name not in trail))
            fate = "circled" if self.name in passed else ""
            yield at, fate if self.settings.filter.fits(body) else "filtered", passed

    def _write(self, run: MessageRun, trail: tuple[str, ...], entry: _Entry) -> bool:
        """Write messages that the filter lets through; returns as `_carry_run`."""
        assert self._target is not None
        origin = run.origin
        if "date" in self._template.fields and not origin.time:
            origin = attrs.evolve(origin, time=self._host.wall_ms() / 1000)
        name = self._template.name_for(origin)
        bodies = forms.bodies_of(self.settings.form, run, trail, *self._host.stamp())
        at = 0
        while at < len(run):
            try:
                if run.too_large:
                    raise BridgeRefusal(
                        "too_large", "its body is too large to be held in memory", lasting=True
                    )
                count = self._target.write(name, bodies[at:] if at else bodies, trail, run.job_key)
                carried = True
                self._delay = 0.0
            except (BridgeRefusal, StoreError) as error:
                refused = _as_refusal(error)
                if not self._settle_refused(run, at, trail, refused, entry):
                    return False
                count, carried = 1, False
            self._settle(run.part(at, at + count), entry, carried=carried)
            at += count
        return True

    def _settle(self, run: MessageRun, entry: _Entry, *, carried: bool) -> None:
        assert self._source is not None
        self._source.confirm(run)
        if self.state == "waiting":
            self._runs()
        self._settled += len(run)
        entry.runs.append(run)
        entry.size += run.size
        if carried:
            entry.carried += len(run)
            entry.carried_bytes += run.size - MESSAGE_BYTES * len(run)

    # -- refused messages

    def _settle_refused(
        self, run: MessageRun, at: int, trail: tuple[str, ...], refused: BridgeRefusal, entry: _Entry
    ) -> bool:
        """Treat one refused message as `on_refused` says. False: it waits."""
        policy = self._policy(refused)
        if policy == "wait":
            self._wait(refused, RETRY_SECONDS_MAX)
            return False
        self._note(refused)
        if policy == "drop":
            entry.dropped[refused.reason] += 1
            return True
        try:
            self._write_dead_letter(run, at, trail, refused)
        except (BridgeRefusal, StoreError) as error:
            if isinstance(error, BridgeRefusal) and error.lasting:
                entry.dropped[f"dead_{error.reason}"] += 1
                self._note(error)
                return True
            self._wait(error, RETRY_SECONDS_MAX)
            return False
        entry.dead[refused.reason] += 1
        return True

    def _policy(self, refused: BridgeRefusal) -> str:
        """`wait`, `drop` or `dead`."""
        policy = self.settings.on_refused.partition(":")[0] or "wait"
        return "dead" if refused.lasting and policy == "wait" else policy

    def _write_dead_letter(
        self, run: MessageRun, at: int, trail: tuple[str, ...], refused: BridgeRefusal
    ) -> None:
        """Write a message to the address for dead messages. Raises BridgeRefusal, StoreError."""
        if self._dead is None:
            self._dead = self._open_target(self.settings.dead, ", where dead messages go")
        name = self._dead_template.name_for(run.origin)
        stamp = self._host.stamp()
        for cut in (False, True) if len(run.bodies[at]) <= forms.DEAD_WHOLE_BYTES_MAX else (True,):
            body = forms.dead_letter_of(run, at, trail, *stamp, refused.reason, str(refused), cut=cut)
            try:
                self._dead.write(name, [body], trail)
                return
            except BridgeRefusal as error:
                if cut or error.reason != "too_large":
                    raise

    def _runs(self) -> None:
        """What it waited for is over, and no error any more."""
        self.state, self.last_error, self.last_error_ms = "running", "", None

    def _wait(self, error: BridgeRefusal | StoreError, most: float) -> None:
        refused = _as_refusal(error)
        self.counts.waited[refused.reason] += 1
        self._delay = min(max(2 * self._delay, RETRY_SECONDS_MIN), most)
        self._retry_at = self._host.now() + self._delay
        if refused.reason != "busy":
            self.state = "waiting"
            self._note(refused, waits=True)

    def _note(self, refused: BridgeRefusal, *, waits: bool = False) -> None:
        """Remember the reason, and log it from time to time."""
        self.last_error, self.last_error_ms = str(refused), self._host.wall_ms()
        text = (
            "a bridge waits, and goes on by itself once that is over"
            if waits
            else "a bridge's target refuses messages, which are dropped or set apart as on_refused says; "
            "`error` says what to change"
        )
        self._tell(refused.reason, text, reason=refused.reason, error=str(refused))

    def _lost(self, reason: str, count: int) -> None:
        self.counts.lost[reason] += count
        text = (
            "a bridge loses messages: its source cannot wait, and its target is slower; brokers bridge list "
            "tells how many"
        )
        self._tell(f"lost {reason}", text, reason=reason)

    def _tell(self, matter: str, text: str, **more: str) -> None:
        """Log a warning, unless there was one of this matter shortly before."""
        now = self._host.now()
        if now - self._told.get(matter, -math.inf) >= TOLD_SECONDS:
            self._told[matter] = now
            self._host.log.warning(text, bridge=self.name, **more)

    # -- the ends

    def _served(self, protocol: str, why: str = " just now") -> Any:
        """The running service of a protocol. Raises BridgeRefusal, whose text ends with `why`."""
        service = self._host.service(protocol)
        if service is None:
            raise BridgeRefusal("missing", f"{protocol} is not served{why}")
        return service

    def _open_target(self, address: str, why: str = " just now") -> BridgeTarget:
        """Raises BridgeRefusal, StoreError."""
        protocol, place = split(address)
        service = self._served(protocol, why)
        target: BridgeTarget = self._end(protocol).open_target(service, place, self._context(protocol))
        return target

    def _end(self, protocol: str) -> Any:
        ends = self._host.ends(protocol)
        if ends is None:
            raise BridgeRefusal("missing", f"{protocol} has no ends for bridges")
        return ends

    def _template_of(self, address: str) -> NameTemplate:
        protocol, place = split(address)
        ends = self._host.ends(protocol)
        assert ends is not None, "the settings were checked"
        return ends.target_name(place)

    def _context(self, protocol: str) -> BridgeContext:
        return BridgeContext(
            self.name,
            self._host.store,
            self.inbox,
            self._positions,
            self._positions.start or self.settings.start,
            self._wake,
            lambda action, name: self._host.may(self.name, protocol, action, name),
            partial(self._host.log.warning, bridge=self.name),
        )


def _as_refusal(error: BridgeRefusal | StoreError) -> BridgeRefusal:
    return error if isinstance(error, BridgeRefusal) else BridgeRefusal("store", str(error))


def shown(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
