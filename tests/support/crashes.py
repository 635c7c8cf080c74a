"""Run a workload on a fake disk, crash it everywhere, recover with the real store, hold it to its promises.

Cuts are taken just before each sync, and at the end: until then writes only add to what may have happened, so
these sets of states hold all those in between, judged by the promises of the later moment, which are the
stricter ones.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from tests.support.explore import TooManyStatesError, every_state, sampled_states
from tests.support.fake_disk import Crash, FakeDisk, Operation
from tests.support.promises import BrokenPromiseError, Seen, Witness
from tests.support.stores import FakeClock

SETTINGS = StorageSettings(
    segment_bytes=4096,
    zero_fill=False,
    reserve_bytes_min=0,
    reserve_fraction=0,
    scrub_bytes_per_second=0,
    cache_bytes=1 << 16,
)
SYNCS = frozenset({"sync", "sync_folder", "sync_all"})
WRITES = frozenset({"write", "truncate", "allocate", "create", "rename", "unlink", "mkdir", "punch"})

Workload = Callable[[Witness], Awaitable[None]]


async def inline(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """In a thread's place: here and now."""
    return function(*arguments)


async def open_store(
    disk: FakeDisk, clock: FakeClock | None = None, settings: StorageSettings = SETTINGS
) -> Store:
    return await Store.open(Path("unused"), settings, disk=disk, clock=clock or FakeClock(), in_thread=inline)


@attrs.frozen
class Cut:
    """The power goes off at `moment`, before operation `number`."""

    number: int
    moment: int
    crash: Crash


@attrs.define(eq=False)
class History:
    """One run of a workload: where it can be cut, and the machine at each operation for `kill -9`."""

    witness: Witness
    cuts: list[Cut] = attrs.Factory(list)
    kills: list[tuple[int, FakeDisk]] = attrs.Factory(list)


@attrs.define
class Tally:
    """What was tried.

    `cuts`: of the power, each with all its legal states, but for the `sampled` ones. `runs`: recoveries run;
    `states`: legal states, all different, that were recovered in these, or shown to be recovered just as one
    that was. `kills`: recoveries after the death of the process alone.
    """

    cuts: int = 0
    sampled: int = 0
    states: int = 0
    runs: int = 0
    kills: int = 0

    def add(self, other: "Tally") -> None:
        self.cuts += other.cuts
        self.sampled += other.sampled
        self.states += other.states
        self.runs += other.runs
        self.kills += other.kills


async def recover(witness: Witness, disk: FakeDisk, moment: float, power: bool) -> Seen:
    """Open what the crash left and compare it with the promises."""
    store = await open_store(disk, settings=witness.settings)
    try:
        return await witness.check(store, moment, power)
    finally:
        store.abandon()


def varied(seed: int) -> StorageSettings:
    """Ways through the store that settings choose."""
    return attrs.evolve(
        SETTINGS,
        sync_all_logs=0 if seed % 3 == 0 else 64,
        zero_fill=seed % 2 == 0,
        tail_log_bytes=1200 if seed % 4 == 1 else 0,  # 0: nothing waits; else all but larger records do
        reference_bytes=800 if seed % 2 else SETTINGS.reference_bytes,
    )


async def record(
    workload: Workload,
    setup: Workload | None = None,
    disk: FakeDisk | None = None,
    settings: StorageSettings = SETTINGS,
) -> History:
    """Run a workload on an empty disk, or on what `setup` left; cuts are taken of the workload alone."""
    disk = disk or FakeDisk()
    witness = Witness(disk, FakeClock(), settings)
    history = History(witness)
    syncing: list[int] = []  # when the journal's sync began, of which nobody knows yet that it came back

    def before(operation: Operation) -> None:
        if syncing:
            witness.journal_synced(syncing.pop())
        moment = witness.tick()
        if operation.kind in SYNCS:
            history.cuts.append(Cut(operation.number, moment, disk.power_cut()))
            if operation.path.startswith("journal/"):
                syncing.append(moment)
        elif operation.kind in WRITES:
            history.kills.append((moment, disk.kill()))

    disk.before = before
    witness.store = await open_store(disk, witness.clock, settings)
    if setup is not None:
        await setup(witness)
        history.cuts.clear()
        history.kills.clear()
    await workload(witness)
    disk.before = None
    if syncing:
        witness.journal_synced(syncing.pop())
    moment = witness.tick()
    history.cuts.append(Cut(disk.operations, moment, disk.power_cut()))
    history.kills.append((moment, disk.kill()))
    await check_whole(witness)
    return history


async def check_whole(witness: Witness) -> None:
    """Without any crash: all that was acknowledged is served, now and after a clean stop."""
    try:
        await witness.check(witness.store, witness.tick(), power=False, tables=False)
        if witness.store.read_only is None:
            await witness.store.close()
            await recover(witness, witness.disk, witness.tick(), power=False)
    except Exception as error:
        raise BrokenPromiseError(f"without a crash: {error!r}") from error


async def check_cuts(cuts: Sequence[Cut], witness: Witness, runs_max: int, seed: int) -> Tally:
    """All states of each cut; where that takes more than `runs_max` runs, so many, and so many drawn."""
    tally = Tally()
    for cut in cuts:
        tally.cuts += 1
        covered: dict[frozenset[object], int] = {}  # by what was chosen: two of these have no state in common
        try:
            for disk in every_state(cut.crash, runs_max):
                await check_state(witness, cut, disk)
                covered[disk.chosen()] = disk.states()
                tally.runs += 1
            assert sum(covered.values()) == cut.crash.states(), "every state was met once"
        except TooManyStatesError:
            tally.sampled += 1
            for disk in sampled_states(cut.crash, seed, runs_max):
                await check_state(witness, cut, disk)
                covered[disk.chosen()] = disk.states()
                tally.runs += 1
        tally.states += sum(covered.values())
    return tally


async def check_state(witness: Witness, cut: Cut, disk: FakeDisk) -> Seen:
    """Recover one state after a power cut. Raises BrokenPromiseError that says which."""
    try:
        return await recover(witness, disk, cut.moment, power=True)
    except Exception as error:
        text = f"power cut before operation {cut.number}, at moment {cut.moment}; {disk.picked()}: {error!r}"
        raise BrokenPromiseError(text) from error


async def check_recovery(witness: Witness, cut: Cut, seed: int, runs: int) -> Tally:
    """Cut the power again while the store recovers from the first cut, and after: some states of each.

    What a finished recovery showed is what every later one shows.
    """
    tally = Tally()
    for disk in sampled_states(cut.crash, seed, runs):
        again: list[Cut] = []

        def before(operation: Operation, disk: FakeDisk = disk, again: list[Cut] = again) -> None:
            if operation.kind in SYNCS:
                again.append(Cut(operation.number, cut.moment, disk.power_cut()))

        disk.before = before
        seen = await check_state(witness, cut, disk)
        disk.before = None
        tally.runs += 1
        for second in again:
            for other in sampled_states(second.crash, seed, runs):
                await check_state(witness, second, other)
                tally.runs += 1
        after = Cut(disk.operations, cut.moment, disk.power_cut())
        for other in [disk.kill(), *sampled_states(after.crash, seed, runs)]:
            if await check_state(witness, after, other) != seen:
                raise BrokenPromiseError(f"a second recovery shows something else; {disk.picked()}")
            tally.runs += 1
    return tally


async def check_kills(history: History) -> Tally:
    """The process dies before each operation that changes something."""
    tally = Tally()
    for moment, disk in history.kills:
        try:
            await recover(history.witness, disk, moment, power=False)
        except Exception as error:
            raise BrokenPromiseError(f"killed at moment {moment}: {error!r}") from error
        tally.kills += 1
    return tally
