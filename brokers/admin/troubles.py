"""The kinds of trouble that need a person, an entry each in `TROUBLES`.

An `ObjectTrouble` is one that objects of a list may have: `when` looks at the columns of one, many thousand
times a reading, so the cheapest comes first. A `ServerTrouble` is found in what the server knows of itself.
`brokers.admin.attention` reads both, and leaves out what heals by itself. Each kind has a metric
(`brokers_attention{kind=...}`), and an alert and a panel that name it.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from brokers.admin.listing import path_of, reader
from brokers.settings.sections import AttentionSettings
from shared.net.stops import SHORTAGES
from shared.net.tls import DAY_SECONDS
from shared.objects import BRIDGES, CONNECTIONS, GROUPS, QUEUES, SESSIONS, ObjectKind, Objects
from shared.units import readable

if TYPE_CHECKING:
    from shared.storage.store import StoreStatistics

NEAR_PERCENT = 90
"""From here on a queue, or the room for a session's messages, is nearly full."""
ENDS_DAYS = 14
"""A certificate that ends within these days needs a person."""
SPAN_SECONDS, SPANS = 10.0, 6
"""What comes again and again is counted by spans, for the last minute."""
SPANS_LEAST = 3
"""Spans in which it must have come: what ends within 10 s is in two at most."""
REFUSED_LEAST, STRETCHES_LEAST = 60, 6
"""Refused requests of one user, and long stretches of the loop, in the last minute."""
UNSHIPPED_SECONDS = 60.0
"""So long the bucket may lack what was acknowledged."""
TREND_SECONDS = 60.0
"""A group falls back if it is farther behind than so long ago."""


@attrs.frozen
class Advice:
    """What is said of a trouble: what it means, and what to do, in a sentence each. `of`: what on the server
    has it; "" for an object of a list."""

    means: str
    advice: str
    severity: Literal["critical", "warning"] = "warning"
    of: str = ""


@attrs.frozen
class ServerReading:
    """What the server knows of itself.

    `protocols`: rows as `/status` has them. `read_only`: why nothing is written; None: it is. `accounts`: by
    name how many requests had no room. `certificates`: (whose, when it ends). `wall`: the time, in seconds of
    1970, as these. `refused`: refusals since the last reading, by (protocol, user or address, action).
    `stretches`: how many long stretches the loop had since then, the longest in seconds, and its place.
    """

    protocols: Sequence[Mapping[str, Any]] = ()
    store: "StoreStatistics | None" = None
    read_only: str | None = None
    accounts: Mapping[str, int] = {}
    certificates: Sequence[tuple[str, float]] = ()
    wall: float = 0.0
    refused: Mapping[tuple[str, str, str], int] = {}
    stretches: tuple[int, float, str] = (0, 0.0, "")
    shipping: Mapping[str, Any] | None = None
    """As `brokers ship status` has it; None: nothing is shipped."""


class Tally:
    """What came again and again in the last minute, by kind and name."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, Counter[tuple[str, Any]]]] = deque(maxlen=SPANS)
        self._totals: dict[tuple[str, Any], int] = {}

    def begin(self, now: float) -> None:
        """A reading begins."""
        number = now // SPAN_SECONDS
        if not self._spans or self._spans[-1][0] != number:
            self._spans.append((number, Counter()))
        while self._spans[0][0] <= number - SPANS:
            self._spans.popleft()

    def add(self, kind: str, counts: Mapping[Any, int]) -> None:
        """Count what came since the last reading."""
        for name, count in counts.items():
            if count:
                self._spans[-1][1][kind, name] += count

    def add_growth(self, kind: str, totals: Mapping[Any, int]) -> None:
        """Count by what counters have grown since the last reading."""
        before, self._totals = (
            self._totals,
            {**self._totals, **{(kind, name): n for name, n in totals.items()}},
        )
        self.add(kind, {name: max(total - before.get((kind, name), 0), 0) for name, total in totals.items()})

    def lasting(self, kind: str, least: int = 1) -> Mapping[Any, int]:
        """By name how often it came, where it goes on for over 10 s, `least` times a minute."""
        counts: Counter[Any] = Counter()
        spans: Counter[Any] = Counter()
        for _, each in self._spans:
            for (of, name), count in each.items():
                if of == kind:
                    counts[name] += count
                    spans[name] += 1
        return {
            name: count for name, count in counts.items() if count >= least and spans[name] >= SPANS_LEAST
        }


class Trends:
    """Which numbers grow from minute to minute, and which stay, by name. One that is not read any more is
    forgotten."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int, bool]] = {}
        self._now: dict[str, tuple[float, int, bool]] = {}
        self._values_before: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def begin(self) -> None:
        """A reading begins."""
        self._before, self._now = self._now, {}
        self._values_before, self._values = self._values, {}

    def stays(self, name: str, value: Any) -> bool:
        """Whether the reading before found the same value."""
        self._values[name] = value
        return name in self._values_before and self._values_before[name] == value

    def grows(self, name: str, value: int, now: float) -> bool:
        """Whether the number was larger at the end of the last minute than before; while it stays the same,
        what was true before stays true."""
        at, then, grows = self._before.get(name, (now, value, False))
        if now - at >= TREND_SECONDS:
            at, then, grows = now, value, grows if value == then else value > then
        self._now[name] = at, then, grows
        return grows


@attrs.define(eq=False)
class ObjectReading:
    """The object that is being looked at, `item`: its columns by name, and what a decision about it needs."""

    protocol: str
    objects: Objects
    settings: AttentionSettings
    trends: Trends
    now: float
    item: Any = None
    _readers: dict[str, Callable[[Any], Any]] = attrs.Factory(dict)

    def __getitem__(self, column: str) -> Any:
        read = self._readers.get(column)
        if read is None:
            read = self._readers[column] = reader(self.protocol, self.objects, column)
        return read(self.item)

    @property
    def name(self) -> str:
        """Unique within its kind."""
        name = self.objects.name(self.item)
        return f"{self.protocol}/{name}" if self.objects.kind.by_protocol else name

    @property
    def link(self) -> str:
        """The page's view of it."""
        kind = self.objects.kind
        return path_of(kind, {part: self[part] for part in ("protocol", *kind.parts)})

    async def look(self, column: str) -> Any:
        """A looked-up column; None where that takes long."""
        assert self.objects.look is not None
        return (await self.objects.look(self.item, 0.0)).get(column)


@attrs.frozen
class ObjectTrouble:
    """A kind of trouble of the objects `over`. `unless`: asked last, for what takes longer to read."""

    name: str
    help: str
    over: ObjectKind
    when: Callable[[ObjectReading], bool]
    say: Callable[[ObjectReading], Advice]
    unless: Callable[[ObjectReading], Awaitable[bool]] | None = None


@attrs.frozen
class ServerTrouble:
    """A kind of trouble of the server. `link`: the page's view of it. `find` yields what is said of each."""

    name: str
    help: str
    link: str
    find: Callable[[ServerReading, Tally], Iterator[Advice]]


# Of objects.


def _queue_full(seen: ObjectReading) -> Advice:
    percent, consumers = seen["full_percent"], seen["consumers"]
    full = percent >= 100
    means = (
        "It is full: publishers are refused" if full else f"It is {percent} % full; full, it refuses messages"
    )
    return Advice(
        f"{means}. {_consumers(consumers)}.",
        "Start consumers or find out why they are slow; else purge it, or make it with more room.",
        "critical" if full else "warning",
    )


def _consumers(count: int) -> str:
    return (
        f"{count} {'consumer takes' if count == 1 else 'consumers take'} from it"
        if count
        else "It has no consumer"
    )


def _dead_letters(seen: ObjectReading) -> Advice:
    dead, obstacle = seen["dead"], seen["dead_obstacle"] or "they move slowly"
    if dead:
        means = f"{dead:,} dead letters wait: {obstacle}."
    else:
        means = f"Its next dead letter has no place: {obstacle}."
    return Advice(
        means, "Make what is missing; or redrive, purge or raise the dead-letter queue that is full."
    )


def _is_old(seen: ObjectReading) -> bool:
    limit = seen.settings.oldest_seconds
    if not limit or not seen["ready"] or seen["paused"]:
        return False
    age = seen["oldest_seconds"]
    return age is not None and age >= limit


def _old_message(seen: ObjectReading) -> Advice:
    age, ready = seen["oldest_seconds"], seen["ready"]
    return Advice(
        f"The oldest of {ready:,} ready messages has waited {_for(age)}. {_consumers(seen['consumers'])}.",
        "Look at its messages and its consumers. Dead letters wait for you: redrive or purge them.",
    )


def _for(seconds: float) -> str:
    """A duration, to the second or minute."""
    return readable(seconds // 60 * 60 if seconds >= 60 else round(seconds), "seconds")


def _is_behind(seen: ObjectReading) -> bool:
    lag = seen["lag_bytes"]
    return bool(lag and seen.settings.lag_seconds) and seen.trends.grows(seen.name, lag, seen.now)


async def _is_recent(seen: ObjectReading) -> bool:
    waited = await seen.look("lag_seconds")
    return waited is None or waited < seen.settings.lag_seconds


def _group_lag(seen: ObjectReading) -> Advice:
    limit, lag = seen.settings.lag_seconds, seen["lag_bytes"]
    return Advice(
        f"It is over {_for(limit)} and {readable(lag, 'bytes')} behind, and falls back further.",
        "Look whether its reader runs and keeps up. Where nobody reads with it any more, delete it.",
    )


def _kept(seen: ObjectReading) -> Advice:
    percent = seen["kept_percent"]
    lost = (
        "the oldest are lost" if percent >= 100 else f"{percent} % of their room is taken, then the oldest go"
    )
    return Advice(
        f"Its client is away, and messages are kept for it: {lost}.",
        "Bring the client back or end the session; or raise kept_messages_max and kept_bytes_max.",
    )


def _is_held_back(seen: ObjectReading) -> bool:
    """A client that is slowed down has sent more since the last reading."""
    if seen["state"] != "paused" or not any(each.startswith(SHORTAGES) for each in seen["waits_for"]):
        return False
    return seen.trends.stays(f"connections/{seen.name}", seen["bytes_in"])


def _held_back(seen: ObjectReading) -> Advice:
    short = [each for each in seen["waits_for"] if each.startswith(SHORTAGES)]
    return Advice(
        f"The server takes nothing from it: it waits for {', '.join(short)}.",
        "Have consumers take what is queued, or free memory or the disk: the store's view shows both.",
    )


OBJECT_TROUBLES = (
    ObjectTrouble(
        "bridge",
        "A bridge carries nothing.",
        BRIDGES,
        lambda seen: (
            seen["state"] not in ("running", "paused")
            and seen.trends.stays(f"bridges/{seen.name}", seen["carried"])
        ),
        lambda seen: Advice(
            f"It carries nothing: {seen['last_error'] or seen['state']}.",
            "Make room at its target, or what is missing there. A queue or log keeps what waits.",
        ),
    ),
    ObjectTrouble(
        "queue_full",
        f"A queue that refuses messages once it is full is full to {NEAR_PERCENT} %.",
        QUEUES,
        lambda seen: (seen["full_percent"] or 0) >= NEAR_PERCENT,
        _queue_full,
    ),
    ObjectTrouble(
        "dead_letters",
        "Dead letters of a queue wait, or have no place to go.",
        QUEUES,
        lambda seen: bool(seen["dead"] or seen["dead_obstacle"]),
        _dead_letters,
    ),
    ObjectTrouble(
        "old_message",
        "A queue's oldest ready message is older than `attention.oldest_seconds`.",
        QUEUES,
        _is_old,
        _old_message,
    ),
    ObjectTrouble(
        "paused",
        "A queue is paused.",
        QUEUES,
        lambda seen: bool(seen["paused"]),
        lambda seen: Advice(
            f"Nothing is delivered from it; {seen['ready']:,} messages wait, and publishing goes on.",
            "Resume it once it need not be paused.",
        ),
    ),
    ObjectTrouble(
        "paused",
        "A bridge is paused.",
        BRIDGES,
        lambda seen: seen["state"] == "paused",
        lambda seen: Advice("It carries nothing.", "Resume it once it need not be paused."),
    ),
    ObjectTrouble(
        "group_lag",
        "A group's next record is older than `attention.lag_seconds`, and the group falls back further.",
        GROUPS,
        _is_behind,
        _group_lag,
        _is_recent,
    ),
    ObjectTrouble(
        "kept",
        f"Messages kept for a pub/sub client take {NEAR_PERCENT} % of their room.",
        SESSIONS,
        lambda seen: (seen["kept_percent"] or 0) >= NEAR_PERCENT,
        _kept,
    ),
    ObjectTrouble(
        "held_back",
        "The server reads nothing from a client, since it is short of memory or the disk is slow.",
        CONNECTIONS,
        _is_held_back,
        _held_back,
    ),
)


# Of the server.


def _memory(server: ServerReading, tally: Tally) -> Iterator[Advice]:
    tally.add_growth("memory", server.accounts)
    for account, count in tally.lasting("memory").items():
        yield Advice(
            f"Clients were refused {count:,} times in a minute, for want of memory.",
            "Look who has it: end what takes much, or give the server more memory.",
            "critical",
            of=account,
        )


def _disk(server: ServerReading, _: Tally) -> Iterator[Advice]:
    store = server.store
    if store is None:
        return
    free = readable(store.free_bytes, "bytes")
    if server.read_only is not None:
        yield Advice(
            f"Nothing more is written: {server.read_only}.",
            "Look at the disk and the log; then restart the server.",
            "critical",
            of="read-only",
        )
    if store.full:
        yield Advice(
            f"The disk is full, {free} are free: publishing has stopped.",
            "Free space, or lower what is retained.",
            "critical",
            of="space",
        )
    elif store.scarce:
        yield Advice(
            f"The disk is nearly full, {free} are free: publishing stops soon.",
            "Free space, or lower what is retained.",
            of="space",
        )
    if store.unapplied_logs:
        yield Advice(
            f"{store.unapplied_logs:,} log files take no bytes, and are served from memory.",
            "Look at the log, which says why, and at the disk.",
            "critical",
            of="log files",
        )
    if store.retention_paused:
        yield Advice(
            "Retention by age waits, for the wall clock has jumped: the disk fills.",
            "Set the machine's clock right, then restart the server.",
            of="retention",
        )


def _damage(server: ServerReading, _: Tally) -> Iterator[Advice]:
    store = server.store
    if store is None:
        return
    if store.damaged_ranges:
        yield Advice(
            f"{store.damaged_ranges:,} places hold other bytes than were written.",
            "brokers fsck says which; restore a backup, or look at the disk.",
            "critical",
            of="damaged places",
        )
    if store.restored_files:
        yield Advice(
            f"{store.restored_files:,} log files had been removed or replaced, and were written anew.",
            "Find out who does that: the server's log names them.",
            of="removed files",
        )


def _certificate(server: ServerReading, _: Tally) -> Iterator[Advice]:
    soon: dict[float, list[str]] = {}
    for name, ends in server.certificates:
        if ends < server.wall + ENDS_DAYS * DAY_SECONDS:
            soon.setdefault(ends, []).append(name)
    for ends, names in soon.items():
        left = ends - server.wall
        yield Advice(
            f"It ends in {_for(left)}, and clients refuse to connect then."
            if left > 0
            else "It has ended: clients refuse to connect.",
            "Put a new one in its place; it is taken up within a minute.",
            "warning" if left > 0 else "critical",
            of=", ".join(names),
        )


def _refused(server: ServerReading, tally: Tally) -> Iterator[Advice]:
    tally.add("refused", server.refused)
    for (protocol, who, action), count in tally.lasting("refused", REFUSED_LEAST).items():
        yield Advice(
            f"{who} was refused {count:,} times in a minute: no rule allows {action} in {protocol}.",
            "The log names the rules: brokers user allow, or look what that client does.",
            of=f"{protocol}/{who}/{action}",
        )


def _loop(server: ServerReading, tally: Tally) -> Iterator[Advice]:
    count, seconds, at = server.stretches
    tally.add("loop", {"process": count})
    for name, times in tally.lasting("loop", STRETCHES_LEAST).items():
        lately = f"; lately for {readable(round(seconds, 3), 'seconds')}{f' at {at}' if at else ''}"
        yield Advice(
            f"Every client waited for over 100 ms, {times} times in a minute{lately if count else ''}.",
            "Give the server a processor and a disk of its own, or look at the clients of that protocol.",
            of=name,
        )


def _protocol(server: ServerReading, _: Tally) -> Iterator[Advice]:
    for each in server.protocols:
        if each["state"] not in ("serving", "draining", "starting"):
            yield Advice(
                f"It is {each['state']}: its clients are not served.",
                "Report the traceback in the log.",
                "critical",
                of=each["protocol"],
            )
        elif each["restarts"]:
            yield Advice(
                f"It crashed, and was started again; {each['restarts']} times since the start.",
                "Report the traceback in the log.",
                of=each["protocol"],
            )


def _shipping(server: ServerReading, _: Tally) -> Iterator[Advice]:
    seen = server.shipping
    if seen is None:
        return
    if seen["state"] in ("refused", "fenced"):
        yield Advice(
            f"Nothing is shipped any more: {seen['reason']}.",
            "See to it that one server runs, then restart the one that is to ship.",
            "critical",
            of="bucket",
        )
    elif seen["lag_seconds"] > UNSHIPPED_SECONDS:
        yield Advice(
            f"The bucket lacks what was acknowledged since {_for(seen['lag_seconds'])}, "
            f"{readable(seen['lag_bytes'], 'bytes')}: {seen['reason'] or 'it is slow'}.",
            "Look at the bucket, its rights and the network; what waits is kept and shipped later.",
            "critical",
            of="lag",
        )
    if seen.get("drill_ok") is False:
        yield Advice(
            "A restore that was tried out is not what is served.",
            "brokers ship verify says which object is damaged; keep a backup until that is clear.",
            "critical",
            of="drill",
        )


SERVER_TROUBLES = (
    ServerTrouble("memory", "Requests are refused for want of memory, again and again.", "/store", _memory),
    ServerTrouble("disk", "The disk is nearly full, or takes nothing more.", "/store", _disk),
    ServerTrouble("damage", "Bytes on the disk are not what was written.", "/store", _damage),
    ServerTrouble("certificate", f"A certificate ends within {ENDS_DAYS} days.", "/", _certificate),
    ServerTrouble(
        "refused",
        f"Requests of a user, or of an address, are refused by the rules {REFUSED_LEAST} times a minute.",
        "/logs?level=warning",
        _refused,
    ),
    ServerTrouble(
        "loop",
        f"Everybody waits for over 100 ms, {STRETCHES_LEAST} times a minute.",
        "/logs?level=warning",
        _loop,
    ),
    ServerTrouble(
        "protocol", "A protocol is down, or has crashed since the start.", "/logs?level=error", _protocol
    ),
    ServerTrouble(
        "shipping",
        "The bucket lacks what is a minute old, or is another's; a drill failed.",
        "/store",
        _shipping,
    ),
)
TROUBLES: Sequence[ObjectTrouble | ServerTrouble] = (*SERVER_TROUBLES, *OBJECT_TROUBLES)
KINDS = tuple(dict.fromkeys(each.name for each in TROUBLES))
"""The names of all kinds."""
