"""Faults of the disk: what a seed lets each operation of one life of the machine do.

The fake disk itself (tests/support/fake_disk.py) knows what is durable; this says when the power goes off,
when a write finds no space, which sync fails and how long each takes.
"""

import errno
import math
import random
from collections.abc import Callable

import attrs

from tests.support.fake_disk import FakeDisk, Operation
from tests.trials.sim.threads import Pausing, Threads
from tests.trials.sim.world import World


class PowerCut(BaseException):
    """The process is no more: nothing of it runs on. No `except Exception` survives it either."""


NEEDS_SPACE = frozenset({"write", "allocate", "create", "mkdir"})
CHANGES = NEEDS_SPACE | {"truncate", "rename", "unlink", "punch"}
SYNCS = frozenset({"sync", "sync_folder", "sync_all"})
PAUSES = frozenset({"write", "read"})
"""Where another thread may come in between, beside syncs. (The fake looks names up before it tells of a
change of names, so those are left whole.)"""


@attrs.frozen
class FaultPlan:
    """What one life of the machine meets. Operations are counted from its start; None: never."""

    end_at: int | None = None
    """The operation before which the process ends."""
    end_kind: str | None = None
    """Count only operations of this kind for `end_at`, perhaps only in one folder: `"sync journal"`."""
    sync_fails_at: int | None = None
    """The first sync from this operation on fails."""
    errors: float = 0.0
    """The chance of EIO for anything that writes, syncs apart."""
    read_errors: float = 0.0
    short_writes: float = 0.0
    full_from: int | None = None
    full_until: int = 0
    """Between these operations what needs space gets ENOSPC."""
    limited_from: int | None = None
    limited_until: int = 0
    file_bytes_max: int = 0
    """Between these operations no file but the journal's grows beyond that (EFBIG), as under `ulimit -f`."""
    cold: float = 0.0
    """The chance that bytes to be read are not in memory."""
    sync_seconds: float = 0.0
    """A sync takes up to this long."""
    stall_seconds: float = 0.0
    """One sync in ten takes up to this long,"""
    journal_stalls: float = 0.1
    """and of the journal's more, where this says so: checkpoints overtake a commit that hangs."""
    pauses: float = 0.0
    """The chance that another thread comes in between before any other operation,"""
    pause_seconds: float = 0.000_02
    """and for how long."""


CALM = FaultPlan()


class FaultyDisk(FakeDisk):
    """The fake disk with faults. The machines that follow it are of the same kind, and calm at first."""

    faults: "Faults | None" = None

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self._took_time()

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._took_time()

    def sync_all(self) -> bool:
        super().sync_all()
        self._took_time()
        return True

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        if self.faults is not None and self.faults.is_cold():
            return None
        return super().read_nowait(fd, length, offset)

    def size_of(self, path: str) -> int:
        return max((len(file.data) for file in self._files.values() if file.path == path), default=0)

    def _took_time(self) -> None:
        if self.faults is not None:
            self.faults.after_sync()


class Faults:
    """Carries out one plan on one disk. `end` is called when the plan's end is reached.

    `ended`: the machine is off; every further call on its disk raises PowerCut. `slowest_sync_seconds` is of
    this life. `failed_sync`: a sync failed, at `failed_seconds`; what it should have covered may be lost.
    """

    def __init__(
        self,
        world: World,
        threads: Threads,
        disk: FaultyDisk,
        plan: FaultPlan,
        chance: random.Random,
        end: Callable[[], None],
    ) -> None:
        self._world = world
        self._threads = threads
        self._disk = disk
        self._plan = plan
        self._chance = chance
        self._end = end
        self.operations = 0
        self._counted = 0  # of the kind that may end it
        self._rest: dict[Pausing | None, float] = {}
        self.ended = False
        self.failed_sync = False
        self.failed_seconds = math.inf
        self.injected = 0
        self.slowest_sync_seconds = 0.0
        disk.before = self.before
        disk.faults = self

    def pause(self) -> FaultPlan:
        """No faults until `resume`; returns the plan."""
        plan, self._plan = self._plan, CALM
        return plan

    def resume(self, plan: FaultPlan) -> None:
        self._plan = plan

    def before(self, operation: Operation) -> int | None:
        """Ahead of each operation of the disk; see FakeDisk."""
        if self.ended:
            raise PowerCut
        plan, kind = self._plan, operation.kind
        if kind in SYNCS:
            seconds = self._sync_seconds(operation)
            # It takes effect somewhere in between: what is written meanwhile is covered, or not.
            effect = seconds * self._chance.choice((0.0, 1.0, 0.5))
            self._rest[self._threads.current()] = seconds - effect
            self._spend(effect)
        elif plan.pauses and kind in PAUSES and self._chance.random() < plan.pauses:
            self._spend(plan.pause_seconds)
        self.operations += 1
        self._world.say(f"disk {kind} {operation.path} {operation.offset}+{operation.length}")
        if plan.end_kind is None or plan.end_kind in (kind, f"{kind} {operation.path.partition('/')[0]}"):
            self._counted += 1
            if plan.end_at is not None and self._counted >= plan.end_at:
                self._end()
                raise PowerCut
        return self._fault(operation)

    def after_sync(self) -> None:
        self._spend(self._rest.pop(self._threads.current(), 0.0))

    def is_cold(self) -> bool:
        if self.ended:
            raise PowerCut
        return bool(self._plan.cold) and self._chance.random() < self._plan.cold

    def _spend(self, seconds: float) -> None:
        if not seconds:
            return
        worker = self._threads.current()
        if worker is not None:
            worker.pause(seconds)
        else:
            self._world.clock.jump(seconds)  # the trio thread itself waits for the disk
        if self.ended:
            raise PowerCut

    def _sync_seconds(self, operation: Operation) -> float:
        plan, chance = self._plan, self._chance
        is_commit = operation.kind == "sync" and operation.path.startswith("journal/")
        if plan.stall_seconds and chance.random() < (plan.journal_stalls if is_commit else 0.1):
            seconds = chance.random() * plan.stall_seconds
        elif plan.sync_seconds:
            seconds = chance.random() * plan.sync_seconds
        else:
            return 0.0
        self.slowest_sync_seconds = max(self.slowest_sync_seconds, seconds)
        return seconds

    def _fault(self, operation: Operation) -> int | None:
        plan, chance, kind = self._plan, self._chance, operation.kind
        if kind in SYNCS:
            if (
                plan.sync_fails_at is not None
                and self.operations >= plan.sync_fails_at
                and not self.failed_sync
            ):
                self._fail_sync(operation)
        elif kind == "read":
            if plan.read_errors and chance.random() < plan.read_errors:
                self._fail(errno.EIO, operation)
        elif kind in CHANGES:
            if self._is_full(operation):
                self._fail(errno.ENOSPC, operation)
            if self._is_too_long(operation):
                self._fail(errno.EFBIG, operation)
            if plan.errors and chance.random() < plan.errors:
                self._fail(errno.EIO, operation)
            if kind == "write" and plan.short_writes and chance.random() < plan.short_writes:
                taken = chance.randint(min(1, operation.length), operation.length)
                self._world.say(f"fault: {taken} bytes taken")
                return taken
        return None

    def _is_full(self, operation: Operation) -> bool:
        plan, kind = self._plan, operation.kind
        if plan.full_from is None or not plan.full_from <= self.operations < plan.full_until:
            return False
        if kind == "write":  # into blocks that are there: no space needed
            return operation.offset + operation.length > self._disk.size_of(operation.path)
        return kind in NEEDS_SPACE

    def _is_too_long(self, operation: Operation) -> bool:
        plan = self._plan
        return (
            plan.limited_from is not None
            and plan.limited_from <= self.operations < plan.limited_until
            and operation.kind == "write"
            and not operation.path.startswith("journal/")
            and operation.offset + operation.length > plan.file_bytes_max
        )

    def _fail_sync(self, operation: Operation) -> None:
        """As Linux has it: the error is told once, the pages count as clean, their bytes may be gone."""
        self.failed_sync = True
        self.failed_seconds = self._world.now()
        if operation.kind == "sync":
            self._disk.lose(operation.path)
        self._fail(errno.EIO, operation)

    def _fail(self, number: int, operation: Operation) -> None:
        self.injected += 1
        self._rest.pop(self._threads.current(), None)
        self._world.say(f"fault: {errno.errorcode[number]} on {operation.kind} {operation.path}")
        raise OSError(number, errno.errorcode[number], operation.path)
