"""What a store was asked and what it acknowledged, and what it must therefore show after a crash.

Everything asked of a store goes through `Witness`, which notes at which *moment* (a count that goes up with
each thing that happens) it was asked, acknowledged, and known to be on disk. `Witness.check` then compares a
recovered store with what PROMISES.md allows for a crash at a moment.
"""

import math
from collections.abc import Sequence

import attrs

from shared.errors import StoreError
from shared.storage import format
from shared.storage.log import Log, Ticket
from shared.storage.settings import Durability, StorageSettings
from shared.storage.store import Namespace, Store
from shared.storage.table import Table
from tests.support.fake_disk import FakeDisk
from tests.support.stores import FakeClock, records

NEVER = math.inf
Key = tuple[str, str]
Seen = dict[Key, tuple[int, list[bytes]]]
"""What a store holds: for each log its first offset, and its payloads."""


@attrs.define(eq=False)
class Promise:
    """Something asked: when, when it was acknowledged, since when it must survive a power cut."""

    asked: float
    mode: str
    acked: float = NEVER
    safe: float = NEVER

    def must(self, moment: float, power: bool) -> bool:
        """Whether a crash at `moment` must leave it done. A process killed loses nothing acknowledged."""
        return (self.safe if power else self.acked) <= moment

    def may(self, moment: float) -> bool:
        return self.asked <= moment


@attrs.define(eq=False)
class Append:
    promise: Promise
    offset: int
    payloads: list[bytes]
    group: int = 0  # those of one `append_all` have one number


@attrs.define(eq=False)
class Life:
    """A log from its creation to its deletion; one made again under the name is another."""

    log_id: int
    mode: str
    created: Promise
    deleted: Promise | None = None
    appends: list[Append] = attrs.Factory(list)
    firsts: list[tuple[Promise, int]] = attrs.Factory(list)

    def must_be(self, moment: float, power: bool) -> bool:
        wanted = [self.created, *(append.promise for append in self.appends)]
        since = -1.0
        if self.deleted is not None and self.deleted.may(moment):
            since = self.deleted.asked  # what came later shows that it was refused
        return any(promise.must(moment, power) and promise.asked > since for promise in wanted)


class BrokenPromiseError(AssertionError):
    """Something that PROMISES.md or a protocol rules out was seen."""


class Witness:
    """Drives a store and remembers. `tick` once for each thing that happens to the disk, too."""

    store: Store

    def __init__(self, disk: FakeDisk, clock: FakeClock, settings: StorageSettings) -> None:
        self.disk = disk
        self.clock = clock
        self.settings = settings
        self.moment = 0
        self.lives: dict[Key, list[Life]] = {}
        self.tables: dict[Key, dict[bytes, list[tuple[Promise, bytes | None]]]] = {}
        self._unsafe: list[Promise] = []  # acknowledged before they were known to be synced
        self._groups = 0

    def tick(self) -> int:
        self.moment += 1
        return self.moment

    # -- asking

    def create(self, namespace: Namespace, name: str, mode: str) -> Log:
        log, ticket = namespace.create(name, Durability.parse(mode))
        life = Life(log.id, mode, self._promise(ticket, mode))
        self.lives.setdefault((namespace.name, name), []).append(life)
        return log

    def delete(self, namespace: Namespace, name: str) -> None:
        life = self.lives[namespace.name, name][-1]
        life.deleted = self._promise(namespace.delete(name), life.mode)

    def change_mode(self, namespace: Namespace, log: Log, mode: str) -> None:
        """What is appended from here on is promised what this mode promises."""
        namespace.change_mode(log.name, Durability.parse(mode))
        self._life(log).mode = mode

    def append(self, log: Log, payloads: Sequence[bytes]) -> None:
        data = records(*payloads)
        offset, ticket = log.append(data, len(payloads))
        life = self._life(log)
        life.appends.append(Append(self._promise(ticket, life.mode), offset, list(payloads)))

    def append_all(self, parts: Sequence[tuple[Log, Sequence[bytes]]]) -> None:
        packed = [(log, records(*payloads), len(payloads)) for log, payloads in parts]
        self._all_or_none(parts, *self.store.append_all(packed))

    def append_together(self, parts: Sequence[tuple[Log, Sequence[bytes]]]) -> None:
        """The same by an append for each, in one entry."""
        with self.store.together(64) as batch:  # it may be more than was said
            offsets = [log.append(records(*payloads), len(payloads))[0] for log, payloads in parts]
        assert batch.strictest is not None
        self._all_or_none(parts, offsets, batch.strictest)

    def _all_or_none(
        self, parts: Sequence[tuple[Log, Sequence[bytes]]], offsets: Sequence[int], ticket: Ticket
    ) -> None:
        modes = {self._life(log).mode for log, _ in parts}
        strictest = next(
            mode for mode in ("always", "interval", "none") if mode in {m.split(":")[0] for m in modes}
        )
        self._groups += 1
        for (log, payloads), offset in zip(parts, offsets, strict=True):
            promise = self._promise(ticket, strictest)
            self._life(log).appends.append(Append(promise, offset, list(payloads), self._groups))

    def put(self, table: Table, key: bytes, value: bytes | None) -> None:
        """None deletes."""
        log = table.log
        mode = str(log.mode)
        ticket = table.delete(key) if value is None else table.put(key, value)
        values = self.tables.setdefault((log.namespace, log.name), {}).setdefault(key, [])
        values.append((self._promise(ticket, mode), value))

    def drop_below(self, log: Log, offset: int) -> None:
        life = self._life(log)
        life.firsts.append((self._promise(log.drop_below(offset), life.mode), offset))

    def _life(self, log: Log) -> Life:
        return next(life for life in self.lives[log.namespace, log.name] if life.log_id == log.id)

    def _promise(self, ticket: Ticket, mode: str) -> Promise:
        promise = Promise(self.tick(), mode)

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                promise.acked = self.tick()
                if mode == "always":
                    promise.safe = promise.acked
                else:
                    self._unsafe.append(promise)

        ticket.when_done(done)
        return promise

    def journal_synced(self, since: float) -> None:
        """The journal's sync that began at moment `since` came back."""
        self._make_safe(since, self._unsafe)

    def everything_safe(self, since: float, unless: str = "") -> None:
        """A checkpoint, or a sync of all but what is in a mode, that began at moment `since` came back."""
        self._make_safe(since, [promise for promise in self._unsafe if promise.mode != unless])

    def _make_safe(self, since: float, promises: list[Promise]) -> None:
        moment = self.tick()
        for promise in promises:
            if promise.acked <= since:
                promise.safe = moment
        self._unsafe = [promise for promise in self._unsafe if promise.safe == NEVER]

    def last_offset(self, log: Log) -> int:
        """Where the last record begins that the log was given."""
        append = self._life(log).appends[-1]
        return append.offset + sum(format.LENGTH_BYTES + len(payload) for payload in append.payloads[:-1])

    # -- checking

    async def check(self, store: Store, moment: float, power: bool, tables: bool = True) -> Seen:
        """Compare a store with the promises; returns what it holds. Raises BrokenPromiseError.

        `tables` are opened anew, which the store must not have done before.
        """
        seen: Seen = {}
        groups: dict[int, set[bool]] = {}
        for key, lives in self.lives.items():
            log = store.namespace(key[0], Durability("always")).logs.get(key[1])
            if log is None:
                for life in lives:
                    if life.must_be(moment, power):
                        raise BrokenPromiseError(f"{key}: an acknowledged log is gone")
                continue
            position = next((n for n, life in enumerate(lives) if life.log_id == log.id), None)
            if position is None or not lives[position].created.may(moment):
                raise BrokenPromiseError(f"{key}: a log that nobody made (id {log.id})")
            life = lives[position]
            if life.deleted is not None and life.deleted.must(moment, power):
                raise BrokenPromiseError(f"{key}: a deleted log is back")
            if any(later.must_be(moment, power) for later in lives[position + 1 :]):
                raise BrokenPromiseError(f"{key}: an acknowledged log is gone, an older one is in its place")
            records = await read_all(store, log)
            seen[key] = log.first, [payload for _, payload in records]
            self._check_life(key, life, log, records, moment, power, groups)
        for number, present in groups.items():
            if len(present) > 1:
                raise BrokenPromiseError(f"change {number} of several logs was done by half")
        for table_key, keys in self.tables.items() if tables else ():
            seen[table_key] = 0, await self._check_table(store, table_key, keys, moment, power)
        return seen

    async def _check_table(
        self,
        store: Store,
        table_key: Key,
        keys: dict[bytes, list[tuple[Promise, bytes | None]]],
        moment: float,
        power: bool,
    ) -> list[bytes]:
        namespace = store.namespace(table_key[0], Durability("always"))
        found: dict[bytes, bytes] = {}
        if table_key[1] in namespace.logs:
            found = dict((await Table.open(namespace, table_key[1])).items())
        for key, values in keys.items():
            asked = [(promise, value) for promise, value in values if promise.may(moment)]
            kept = [n for n, (promise, _) in enumerate(asked) if promise.must(moment, power)]
            allowed = [value for _, value in asked[kept[-1] if kept else 0 :]] + ([] if kept else [None])
            if found.get(key) not in allowed:
                raise BrokenPromiseError(f"{table_key}: {key!r} is {found.get(key)!r}, and not {allowed!r}")
        if not found.keys() <= keys.keys():
            raise BrokenPromiseError(f"{table_key}: has keys that nobody put")
        return [part for item in sorted(found.items()) for part in item]

    def _check_life(
        self,
        key: Key,
        life: Life,
        log: Log,
        records: list[tuple[int, bytes]],
        moment: float,
        power: bool,
        groups: dict[int, set[bool]],
    ) -> None:
        lowest = max((first for promise, first in life.firsts if promise.must(moment, power)), default=0)
        highest = max((first for promise, first in life.firsts if promise.may(moment)), default=0)
        if not lowest <= log.first <= highest:
            raise BrokenPromiseError(f"{key}: first is {log.first}, and may be {lowest} to {highest}")
        # What was refused is taken back, and its offset given again: there may be several at one place.
        asked = [append for append in life.appends if append.promise.may(moment)]
        places: dict[tuple[int, bytes], list[int]] = {}
        wholes: list[set[int]] = []
        for number, append in enumerate(asked):
            offsets = set()
            offset = append.offset
            for payload in append.payloads:
                places.setdefault((offset, payload), []).append(number)
                offsets.add(offset)
                offset += format.LENGTH_BYTES + len(payload)
            wholes.append({offset for offset in offsets if offset >= log.first})
        last = 0
        for record in records:
            number = next((number for number in places.get(record, ()) if number >= last), -1)
            if number < 0:
                raise BrokenPromiseError(
                    f"{key}: {_brief([record])} was not appended there, in {_brief(records)}"
                )
            last = number
            wholes[number].discard(record[0])
        for append, missing in zip(asked, wholes, strict=True):
            if missing and append.promise.must(moment, power):
                raise BrokenPromiseError(f"{key}: acknowledged records are missing at {sorted(missing)}")
            if append.group and append.offset >= log.first:
                groups.setdefault(append.group, set()).add(not missing)
        if records and records[-1][0] + format.LENGTH_BYTES + len(records[-1][1]) != log.visible:
            raise BrokenPromiseError(f"{key}: {log.visible} is not its last record's end")


def _brief(records: list[tuple[int, bytes]]) -> str:
    return "[" + ", ".join(f"{offset}:{payload[:24]!r}" for offset, payload in records) + "]"


async def read_all(store: Store, log: Log) -> list[tuple[int, bytes]]:
    """Every record of a log, as (offset, payload). Raises the StoreError of the first read that fails."""
    records: list[tuple[int, bytes]] = []
    offset = log.first
    while True:
        data = await read(store, log, offset)
        if not data:
            return records
        at = 0
        while at < len(data):
            length = format.length_at(data, at)[0]
            records.append((offset + at, data[at + format.LENGTH_BYTES :][:length]))
            at += format.LENGTH_BYTES + length
        offset += at


async def read(store: Store, log: Log, offset: int, max_bytes: int = 1 << 20) -> bytes:
    """One read, waited for."""
    got: list[bytes | StoreError] = []
    log.read(offset, max_bytes, got.append)
    assert got, "with threads inline every read is answered at once"
    if isinstance(got[0], StoreError):
        raise got[0]
    return got[0]
