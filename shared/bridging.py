"""The contract between a protocol and bridges: sources of messages, and targets that they are written to.

A bridge carries *runs*: consecutive messages with one name. It takes the next run from its source
(`BridgeSource.take`), writes it to its target, and confirms it at the source. If both ends are in the store
this happens within `Store.together`. The target's records and the source's position or ACKs are then one
entry of the journal, and no crash separates them. Messages that a target refuses stay with the bridge.

All is synchronous. A source never waits: its messages are in the bridge's `Inbox`, or it calls `wake` later.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from shared.addresses import MessageOrigin, NameTemplate, unescaped
from shared.errors import BrokerError
from shared.globs import matcher

if TYPE_CHECKING:
    from shared.budget import Account
    from shared.storage.store import Store

MESSAGE_BYTES = 120
"""Memory of a message in a bridge beside its body: its object and its places in lists."""
INBOX_BYTES_MAX = 8 << 20
"""The most that one bridge holds: messages taken and not yet confirmed."""


@attrs.define(eq=False)
class MessageRun:
    """Messages with one name, in order. `handles`: what their source confirms them by.

    `positions`: their positions in the source, for display. `kind`: the protocol's word for them. `value`: a
    body as JSON has it; `text`: as the protocol's command prints it; None: made from its bytes. `properties`:
    AMQP's. `trail`: the bridges that they have passed. `job_key`: the key of these jobs, which goes with them
    where the target looks at keys; "": they have none. `too_large`: the bodies are too large for memory, and
    left out.
    """

    origin: MessageOrigin
    bodies: Sequence[bytes]
    handles: Sequence[Any] = ()
    positions: Sequence[int] | None = None
    kind: str = ""
    value: Callable[[bytes], Any] | None = None
    text: Callable[[bytes], bytes] | None = None
    properties: Callable[[], Mapping[str, Any]] | None = None
    trail: tuple[str, ...] = ()
    job_key: str = ""
    too_large: bool = False
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = sum(map(len, self.bodies)) + MESSAGE_BYTES * len(self.bodies)

    def __len__(self) -> int:
        return len(self.bodies)

    def part(self, start: int, stop: int) -> "MessageRun":
        """The messages `[start, stop)` of the run."""
        if start == 0 and stop >= len(self.bodies):
            return self
        return attrs.evolve(
            self,
            bodies=self.bodies[start:stop],
            handles=self.handles[start:stop],
            positions=None if self.positions is None else self.positions[start:stop],
        )


@attrs.define(eq=False)
class BridgeRefusal(BrokerError):
    """A target refuses a message, or an end cannot be opened. `lasting`: trying again is useless."""

    reason: str
    text: str
    lasting: bool = False

    def __str__(self) -> str:
        return self.text


def missing(what: str, name: bytes) -> BridgeRefusal:
    return BridgeRefusal("missing", f"there is no {what} {name.decode(errors='backslashreplace')}")


class Inbox:
    """Messages that a bridge has taken and not settled, within its bound and charged to its account."""

    def __init__(
        self, account: "Account", wake: Callable[[], None], lost: Callable[[str, int], None]
    ) -> None:
        self._account = account
        self._wake = wake
        self._lost = lost
        self._runs: deque[MessageRun] = deque()
        self.bytes = 0
        self.waiting = 0
        """Messages that were put in and not taken out yet."""

    @property
    def room_bytes(self) -> int:
        return INBOX_BYTES_MAX - self.bytes

    def put(self, run: MessageRun) -> None:
        """Put in a run of a source that cannot wait. Without room it is counted as lost."""
        if self.bytes and (run.size > self.room_bytes or not self._account.fits(run.size)):
            self._lost("slow" if run.size > self.room_bytes else "memory", len(run))
        else:
            self.hold(run)

    def hold(self, run: MessageRun) -> None:
        """Put in a run of a source that respects `room_bytes` by itself."""
        self._account.charge(run.size)
        self.bytes += run.size
        self.waiting += len(run)
        self._runs.append(run)
        self._wake()

    def take(self, count: int) -> MessageRun | None:
        """The next run, at most `count` messages. Its bytes count until `release`."""
        if not self._runs:
            return None
        run = self._runs.popleft()
        if len(run) > count:
            self._runs.appendleft(run.part(count, len(run)))
            run = run.part(0, count)
        self.waiting -= len(run)
        return run

    def release(self, size: int) -> None:
        """Free the bytes of messages that were taken out and are settled."""
        self.bytes -= size
        self._account.give(size)

    def clear(self) -> int:
        """Drop messages that were not taken out. Returns their number."""
        runs, self._runs = self._runs, deque()
        self.release(sum(run.size for run in runs))
        count, self.waiting = self.waiting, 0
        return count


class Positions(Protocol):
    """A bridge's stored positions in its source, by name. A change is part of the open journal entry."""

    first_run: bool
    """Whether no position is stored, so that `start` says where to begin."""

    def started(self) -> None:
        """Note that positions are stored from now on. Raises StoreError."""

    def get(self, name: bytes) -> bytes | None: ...

    def begin(self, name: bytes, value: bytes) -> None:
        """Store where the source begins in `name`. It holds also while the disk refuses it. Raises
        StoreError.
        """

    def put(self, name: bytes, value: bytes) -> None:
        """Raises StoreError."""

    def delete(self, name: bytes) -> None:
        """Raises StoreError."""


@attrs.frozen
class BridgeContext:
    """What a bridge gives its ends. `start`: `first`, `end`, an offset, or Unix milliseconds as `@<ms>`.

    `may(action, name)`: whether the bridge's user may do it. `warn`: writes a line to the log.
    """

    name: str
    store: "Store"
    inbox: Inbox
    positions: Positions
    start: str
    wake: Callable[[], None]
    may: Callable[[str, bytes], bool]
    warn: Callable[..., None]

    @property
    def user(self) -> str:
        return f"bridge/{self.name}"

    def require(self, action: str, name: bytes) -> None:
        """Raises BridgeRefusal."""
        if not self.may(action, name):
            shown = name.decode(errors="backslashreplace")
            raise BridgeRefusal("denied", f"user {self.user} may not {action} {shown}")


class BridgeSource(Protocol):
    """The source of a bridge. It `gives_back`: after `close`, too, unconfirmed messages come again."""

    gives_back: bool

    @property
    def durable(self) -> bool:
        """Whether unconfirmed messages come again after a crash."""

    def take(self, count: int) -> MessageRun | None:
        """The next run, at most `count` messages. None: there is none now; `wake` is called for the next."""

    def confirm(self, run: MessageRun) -> None:
        """Confirm the oldest taken messages. Raises StoreError, and BridgeRefusal if the source no longer has
        them.
        """

    def seal(self) -> None:
        """The entry's messages are all confirmed: write what is written once per entry. Raises StoreError."""

    def refill(self) -> None:
        """The inbox has room again."""

    def lag(self) -> int | None:
        """Messages (for a log: bytes) that the bridge has not carried yet; None: unknown."""

    def close(self) -> None:
        """Return everything unconfirmed to where it came from. May be called twice."""


class VolatileSource:
    """A `BridgeSource` of passing messages, which cannot wait: what has no room in the inbox is lost and
    counted. `end` stops the flow.
    """

    durable = gives_back = False

    def __init__(self, inbox: Inbox, end: Callable[[], None]) -> None:
        self.inbox = inbox
        self._end: Callable[[], None] | None = end

    def take(self, count: int) -> MessageRun | None:
        return self.inbox.take(count)

    def confirm(self, run: MessageRun) -> None:
        """Passing messages never come again, so nothing is confirmed."""

    def seal(self) -> None:
        """Nothing is written for confirmations."""

    def refill(self) -> None:
        """Nothing waits for room."""

    def lag(self) -> int:
        return self.inbox.waiting

    def close(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class BridgeTarget(Protocol):
    """The target of a bridge."""

    @property
    def durable(self) -> bool:
        """Whether what it writes is in the open journal entry."""

    def check(self, name: bytes, body: bytes) -> None:
        """Raises BridgeRefusal if this message could not be written now."""

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        """Write the first of these bodies; returns how many. `trail`: the bridges that they have passed;
        `job_key`: as in `MessageRun`. Raises StoreError, and BridgeRefusal if not even one can be written.
        """

    def flush(self) -> bool:
        """Continue unfinished writes; False: some are still unfinished, call again."""

    def close(self) -> None:
        """No more is written."""


class BridgeEnds(Protocol):
    """A protocol's bridge ends, named by its plugin (`Plugin.bridges`). `place`: an address behind the colon.

    `keeps_position`: its sources store positions in the bridge's `positions`, so `start` has a meaning.
    """

    keeps_position: bool

    def check_source(self, place: str) -> None:
        """Raises ValueError."""

    def target_name(self, place: str) -> NameTemplate:
        """The name, or template of names, that messages are written to. Raises ValueError."""

    def gives_back(self, source: str) -> bool:
        """Whether the messages of `source` are its bridge's alone (`BridgeSource.gives_back`)."""

    def may_feed(self, target: str, source: str) -> bool:
        """Whether messages written to `target` may come out of `source`."""

    def open_source(self, service: Any, place: str, context: BridgeContext) -> BridgeSource:
        """Raises BridgeRefusal, StoreError."""

    def open_target(self, service: Any, place: str, context: BridgeContext) -> BridgeTarget:
        """Raises BridgeRefusal, StoreError."""

    def lag_of(self, service: Any, place: str, positions: Positions) -> int | None:
        """As `BridgeSource.lag`, for a paused bridge, whose source is not open."""


class VolatileEnds:
    """What ends with volatile sources share: nothing is kept for a paused bridge."""

    keeps_position = False

    def gives_back(self, source: str) -> bool:
        return False

    def lag_of(self, service: Any, place: str, positions: Positions) -> None:
        return None


def globs_meet(one: str, other: str) -> bool:
    """Whether some name matches both globs (`*`, `?`)."""
    places = {(0, 0)}
    seen = set(places)
    while places:
        following: set[tuple[int, int]] = set()
        for a, b in places:
            if a == len(one) and b == len(other):
                return True
            x, y = one[a : a + 1], other[b : b + 1]
            if x == "*":
                following |= {(a + 1, b), (a, b + 1)} if y else {(a + 1, b)}
            if y == "*":
                following |= {(a, b + 1), (a + 1, b)} if x else {(a, b + 1)}
            if x and y and "*" not in (x, y) and (x == y or "?" in (x, y)):
                following.add((a + 1, b + 1))
        places = following - seen
        seen |= places
    return False


def may_name(template: NameTemplate, pattern: str) -> bool:
    """Whether the template may make a name that matches the glob."""
    if not template.fields:
        return bool(matcher([pattern])(template.name_for(MessageOrigin("", b"")).decode("latin-1")))
    return globs_meet(template.as_glob(), pattern)


def may_be(template: NameTemplate, place: str) -> bool:
    """Whether the template may make the address's one name; wildcards in the address are plain characters."""
    return may_name(template, unescaped(place).decode("latin-1").replace("*", "?"))


def target_template(place: str, check: Callable[[str], None]) -> NameTemplate:
    """The template of a target's address. One without fields is a name, which `check` accepts or raises
    ValueError.
    """
    template = NameTemplate.parse(place)
    if not template.fields:
        check(place)
    return template
