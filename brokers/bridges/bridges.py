"""All bridges of a process: their tasks, their changes on reload, and their stored positions.

One table stores them: a row by bridge and source name for each position, and a row by bridge for the rest.
The rows of a bridge that is removed from the settings stay for a day.
"""

import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
import trio

from brokers.bridges.actions import PAUSE, RESUME
from brokers.bridges.bridge import Bridge
from brokers.bridges.positions import KeptPositions
from brokers.bridges.settings import BridgeSettings, Ends, start_of
from brokers.settings.config import Config
from shared.access import Access, User
from shared.actions import action, changing
from shared.budget import Account
from shared.errors import StoreError
from shared.metrics import Gauge, Sample, samples
from shared.objects import BRIDGES, Argument, BadValue, Objects, a_text, key_of, time_text
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.storage.table import Table
from shared.task_turns import TaskTurn

NAMESPACE, TABLE, MARKS = "bridges", "positions", "marks"
_KEY_BYTES = 32
_MODE = Durability.parse("interval:50ms")
"""A position shares its journal entry with the written messages, so it is as durable as they are."""
KEPT_SECONDS = 24 * 3600.0
"""How long the positions of a removed bridge stay."""
LOOK_SECONDS = 600.0
CRASH_SECONDS_MIN, CRASH_SECONDS_MAX = 0.1, 30.0


class Bridges:
    """The bridges of one process.

    `service`: the running service of a protocol; None while it does not run. `now`: monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        log: structlog.stdlib.BoundLogger,
        service: Callable[[str], Any | None],
        ends: Ends,
        *,
        access: Access | None = None,
        budget: Account | None = None,
        clock: Callable[[], float] = trio.current_time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.log = log
        self.service = service
        self.now = clock
        self.ends = ends
        self._access = access or Access()
        self.account = (budget or Account("process", 1 << 40)).account("bridges")
        self._wall = wall
        self._table: Table | None = None
        self.key = secrets.token_bytes(_KEY_BYTES)
        """Of the marks of what bridges write as JSON; once the table is open, that of the folder."""
        self._kept: set[str] = set()
        """Bridges with stored rows."""
        self._running: dict[str, Bridge] = {}
        self._nursery: trio.Nursery | None = None
        self.objects = Objects(
            BRIDGES,
            lambda: [*self._running.values()],
            lambda bridge: key_of(bridge.name),
            lambda parts: self._running.get(parts[0]),
            row,
            (self._pause, self._resume, self._reset, self._test),
            begin='[[bridge]]\nname = "sensors"\nfrom = "pubsub:home/+/temperature"\nto = "dms:readings"',
        )

    def wall_ms(self) -> float:
        return self._wall() * 1000

    def stamp(self) -> tuple[float, bytes]:
        """The time (Unix ms) and the key for what is written now."""
        return self.wall_ms(), self.key

    def may(self, bridge: str, protocol: str, action: str, name: bytes) -> bool:
        """A bridge may do all that its ends need, unless the users file has an entry for it."""
        user = f"bridge/{bridge}"
        if self.rules(bridge) is None:
            return True
        guard = self._access.guards.get(protocol)
        if guard is None or guard.may(user, action, name):
            return True
        guard.refuse(user, action, name, user)
        return False

    def rules(self, bridge: str) -> User | None:
        """A bridge's entry in the users file, if there is one."""
        return (self._access.users or {}).get(f"bridge/{bridge}")

    async def run(self) -> None:
        """Run the bridges of the settings, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for each in self._running.values():
                nursery.start_soon(self._carry, each)
            try:
                while True:
                    self.forget_removed()
                    await trio.sleep(LOOK_SECONDS)
            finally:
                self._nursery = None

    async def open(self) -> None:
        """Read what is stored, once all services are open and before any is served."""
        if self.store.has_log(NAMESPACE, TABLE):
            with suppress(StoreError):  # `change` raises it, where there are bridges
                await self._open_table()

    async def _open_table(self) -> None:
        table = self._table = await Table.open(self.store.namespace(NAMESPACE, _MODE), TABLE)
        self._kept = {key.partition(b"\0")[0].decode() for key, _ in table.items()}
        with suppress(StoreError):  # without it a circle goes round once more
            marks = await Table.open(self.store.namespace(NAMESPACE, _MODE), MARKS)
            kept = marks.get(b"key")
            if kept is None:
                marks.put(b"key", self.key)
            self.key = kept or self.key

    async def change(self, settings: Sequence[BridgeSettings]) -> Mapping[str, Sequence[str]]:
        """Run exactly these bridges. Returns the names added, changed and removed. Raises StoreError."""
        if self._table is None:
            if not settings:
                return {"added": [], "changed": [], "removed": []}
            await self._open_table()
        assert self._table is not None
        wanted = {each.name: each for each in settings}
        before = {name: each.settings for name, each in self._running.items()}
        removed = [name for name in before if name not in wanted]
        changed = [name for name in before if name in wanted and wanted[name] != before[name]]
        added = [name for name in wanted if name not in before]
        turn = TaskTurn()
        for name in (*removed, *changed):
            self._end(self._running.pop(name))
            await turn.item()
        self._note_removed(wanted)
        for name in (*changed, *added):
            self._start(wanted[name], self._table)
            await turn.item()
        return {"added": added, "changed": changed, "removed": removed}

    async def prepare(self, config: Config) -> Callable[[], Awaitable[None]]:
        """`reloading.Prepare`: the settings are checked already."""

        async def apply() -> None:
            try:
                changes = await self.change(config.bridges)
            except StoreError as error:
                self.log.error(
                    "bridges could not be changed: the store takes nothing; look at the disk, then reload",
                    reason=str(error),
                )
                return
            if any(changes.values()):
                self.log.info(
                    "bridges are as the settings now say",
                    **{key: ", ".join(value) for key, value in changes.items()},
                )

        return apply

    def stop(self) -> None:
        """Stop all: carry what volatile sources have given, and give back the rest."""
        for each in self._running.values():
            self._end(each)

    def forget_removed(self) -> None:
        """Delete the positions of bridges that were removed a day ago."""
        if self._table is None:
            return
        try:
            for name in self._kept - set(self._running):
                kept = KeptPositions.read(self._table, name)
                if kept.removed_ms is not None and self.wall_ms() - kept.removed_ms >= KEPT_SECONDS * 1000:
                    kept.forget()
                    self._kept.discard(name)
        except StoreError:
            pass  # the next round deletes them

    def samples(self) -> Iterator[Sample]:
        for each in self._running.values():
            yield from _samples(each)

    # -- one bridge

    def _start(self, settings: BridgeSettings, table: Table) -> None:
        positions = KeptPositions.read(table, settings.name)
        if positions.removed_ms is not None:
            positions.removed_ms = None
            positions.keep()
        positions.take_from(settings.source)
        bridge = self._running[settings.name] = Bridge(settings, self, positions)
        self._kept.add(settings.name)
        if self._nursery is not None:
            self._nursery.start_soon(self._carry, bridge)

    def _end(self, bridge: Bridge) -> None:
        bridge.stop()
        self.store.commit_pending()

    async def _carry(self, bridge: Bridge) -> None:
        """One bridge's task. A bug in one bridge leaves the others running."""
        crash_seconds = CRASH_SECONDS_MIN
        while not bridge.stopped:
            bridge.woken = trio.Event()
            try:
                delay = bridge.step()
            except Exception as error:
                self.log.error(
                    "a bridge crashed, and begins again where it was; a message may pass twice; report this",
                    bridge=bridge.name,
                    restart_in_seconds=crash_seconds,
                    exc_info=error,
                )
                bridge.close()
                await trio.sleep(crash_seconds)
                crash_seconds = min(2 * crash_seconds, CRASH_SECONDS_MAX)
                continue
            if delay is None:
                await bridge.woken.wait()
            elif delay > 0:
                with trio.move_on_after(delay):
                    await bridge.woken.wait()
            else:
                await trio.sleep(0)

    def _note_removed(self, wanted: Mapping[str, BridgeSettings]) -> None:
        """Note the time at which bridges were removed: a day later their positions are deleted."""
        assert self._table is not None
        for name in self._kept - set(wanted):
            kept = KeptPositions.read(self._table, name)
            if kept.removed_ms is None:
                kept.removed_ms = self.wall_ms()
                kept.keep()

    # -- objects and actions of the API

    @PAUSE
    async def _pause(self, bridge: Bridge, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        return {"paused": self._set_paused(bridge, True, dry_run)}

    @RESUME
    async def _resume(self, bridge: Bridge, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        return {"resumed": self._set_paused(bridge, False, dry_run)}

    def _set_paused(self, bridge: Bridge, paused: bool, dry_run: bool) -> int:
        changes = bridge.paused is not paused
        if changes and not dry_run:
            bridge.set_paused(paused)
            self.store.commit_pending()
        return int(changes)

    @changing(
        "reset",
        "Begin again at another position of the source.",
        takes={"to": Argument("first, end, an offset, or a time (RFC 3339)", required=True)},
        answers=("reset",),
    )
    async def _reset(self, bridge: Bridge, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        try:
            start = start_of(a_text(arguments, "to"))
        except ValueError as error:
            raise BadValue(f"to: {error}") from None
        if dry_run:
            bridge.check_reset()
        else:
            bridge.reset(start)
            self.store.commit_pending()
        return {"reset": 1}

    @action(
        "test",
        "What the bridge would do with a message; nothing is sent.",
        takes={
            "body": Argument("its text", "lines"),
            "base64": "or its bytes",
            "name": "of its topic or queue",
            "key": "an AMQP message's routing key, which is its name, too; or a job's key",
        },
        looks=True,
    )
    async def _test(self, bridge: Bridge, arguments: Mapping[str, Any], _: bool) -> Mapping[str, Any]:
        try:
            body = b64decode(a_text(arguments, "base64", ""), validate=True)
        except ValueError:
            raise BadValue("base64 is not base64") from None
        body = body or a_text(arguments, "body", "").encode()
        return bridge.would(
            a_text(arguments, "name", "").encode(), a_text(arguments, "key", "").encode(), body
        )


def row(bridge: Bridge) -> dict[str, Any]:
    counts = bridge.counts
    return {
        "name": bridge.name,
        "state": bridge.state,
        "carried": counts.carried,
        "lag": bridge.lag,
        "lag_unit": bridge.lag_unit,
        "last_error": bridge.last_error or None,
        "from": bridge.settings.source,
        "to": bridge.settings.target,
        "as": bridge.settings.form,
        "guarantee": bridge.guarantee or None,
        "filtered": counts.filtered + counts.circled,
        "dead": counts.dead.total(),
        "dropped": counts.dropped.total() + counts.lost.total(),
        "bytes": bridge.inbox.bytes,
        "last_error_time": None if bridge.last_error_ms is None else time_text(bridge.last_error_ms),
    }


GAUGES = (
    Gauge("lag", "Messages not carried yet, for a log bytes.", lambda bridge: bridge.lag or 0),
    Gauge("held_bytes", "Bytes taken and not carried yet.", lambda bridge: bridge.inbox.bytes),
    Gauge("up", "1: it carries.", lambda bridge: bridge.state == "running"),
)


def _samples(bridge: Bridge) -> Iterator[Sample]:
    gauges = GAUGES if bridge.lag is not None else GAUGES[1:]
    return samples("bridge", bridge.counts, gauges, bridge, (("bridge", bridge.name),))
