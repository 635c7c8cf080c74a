"""The disk fails once, at every operation in turn, in every way it can: nothing acknowledged is lost by that.

A workload with checkpoints, deletions and restarts runs on the fake disk; at its operation k one fault is
injected. Whoever is refused goes on; then the store is looked at as it stands, after a kill, after a kill
that also empties the page cache, and after power cuts.
"""

import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import attrs
import pytest

from shared.errors import StoreError
from shared.storage.journal import Journal
from tests.support.crashes import SETTINGS, open_store, recover
from tests.support.explore import sampled_states
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.promises import BrokenPromiseError, Witness
from tests.support.stores import FakeClock
from tests.support.workloads import Worker


@attrs.frozen
class Fault:
    """`number`: the error; None for a short write. `lose`: what is unsynced stays so, whatever comes.

    `torn`: the first half of the write is taken, and the error comes when the rest is tried.
    """

    name: str
    number: int | None
    lose: bool = False
    torn: bool = False


NO_SPACE = Fault("no space", errno.ENOSPC)
BROKEN = Fault("input/output error", errno.EIO)
SHORT = Fault("short write", None)
TORN = Fault("short write, then no space", errno.ENOSPC, torn=True)
MARKED_CLEAN = Fault("sync fails, and the pages are marked clean", errno.EIO, lose=True)

FAULTS = {
    "write": (NO_SPACE, BROKEN, SHORT, TORN),
    "allocate": (NO_SPACE, BROKEN),
    "create": (NO_SPACE, BROKEN),
    "mkdir": (NO_SPACE, BROKEN),
    "rename": (NO_SPACE, BROKEN),
    "truncate": (BROKEN,),
    "unlink": (BROKEN,),
    "punch": (BROKEN,),
    "open": (BROKEN,),
    "read": (BROKEN,),
    "sync": (BROKEN, MARKED_CLEAN),
    "sync_folder": (BROKEN,),
    "sync_all": (BROKEN, MARKED_CLEAN),
}

STEPS: list[Callable[[Worker], Awaitable[None]]] = [
    lambda worker: worker.together("a", "i", "n"),
    lambda worker: worker.append("a"),
    lambda worker: worker.put("t", b"key"),
    lambda worker: worker.append("n", 700),
    lambda worker: worker.checkpoint(),
    lambda worker: worker.append_all("a", "i"),
    lambda worker: worker.replace("a"),
    lambda worker: worker.append("n"),
    lambda worker: worker.restart(),
    lambda worker: worker.append("a", 900, 900, 900),
    lambda worker: worker.append_all("a", "n"),
    lambda worker: worker.put("t", b"key"),
    lambda worker: worker.drop("a"),
    lambda worker: worker.checkpoint(),
    lambda worker: worker.append("i", 10, 20),
    lambda worker: worker.checkpoint_amid("i"),
    lambda worker: worker.append("i"),
    lambda worker: worker.close_and_open(),
    lambda worker: worker.append("a"),
]


@attrs.define
class _Run:
    """One run of the steps with at most one fault. `told`: every operation, in order."""

    disk: FakeDisk
    witness: Witness
    worker: Worker
    told: list[Operation]
    refused: int = 0


async def _run(at: int | None, fault: Fault | None) -> _Run:
    disk = FakeDisk()
    witness = Witness(disk, FakeClock(), SETTINGS)
    run = _Run(disk, witness, Worker(witness), [])
    syncing: list[int] = []

    def before(operation: Operation) -> int | None:
        if syncing:
            witness.journal_synced(syncing.pop())
        run.told.append(operation)
        moment = witness.tick()
        if fault is not None and at is not None:
            if operation.number == at and (fault.number is None or fault.torn):
                return operation.length // 2
            if operation.number == at + fault.torn:
                assert fault.number is not None
                if fault.lose:
                    disk.lose(operation.path if operation.kind == "sync" else None)
                raise OSError(fault.number, os.strerror(fault.number))
        if operation.kind == "sync" and operation.path.startswith("journal/"):
            syncing.append(moment)
        return None

    disk.before = before
    for step in STEPS:
        try:
            if not run.worker.is_open:
                await run.worker.open()
            await step(run.worker)
        except (StoreError, OSError):
            run.refused += 1
    disk.before = None
    if syncing:
        witness.journal_synced(syncing.pop())
    return run


async def _check(at: int, fault: Fault, seed: int) -> None:
    run = await _run(at, fault)
    witness, moment = run.witness, run.witness.tick()
    if run.worker.is_open:
        await witness.check(witness.store, moment, power=False, tables=False)
    await recover(witness, run.disk.kill(), moment, power=False)
    emptied = run.disk.kill()
    emptied.forget_cache()
    await recover(witness, emptied, moment, power=True)
    for disk in sampled_states(run.disk.power_cut(), seed, 2):
        await recover(witness, disk, moment, power=True)
    assert run.refused <= len(STEPS) // 2, "a fault that is over does not stop the store for good"


@pytest.mark.usefixtures("recoveries")
async def test_one_fault_at_any_operation_breaks_no_promise() -> None:
    told = (await _run(None, None)).told
    faults = [(operation, fault) for operation in told for fault in FAULTS[operation.kind]]
    kinds = Counter(operation.kind for operation in told)
    print(f"{len(faults)} faults at {len(told)} operations: {dict(kinds)}")
    assert min(kinds[kind] for kind in ("write", "sync", "sync_folder", "rename", "create", "read")) > 5
    for operation, fault in faults[::3]:  # at each operation some of those that it may have
        try:
            await _check(operation.number, fault, operation.number)
        except Exception as error:
            raise BrokenPromiseError(f"{fault.name} at {operation}: {error!r}") from error


async def _check_syncs() -> AssertionError | None:
    """Fail each sync in turn; returns the first promise that is broken."""
    for operation in (await _run(None, None)).told:
        if operation.kind == "sync":
            try:
                await _check(operation.number, MARKED_CLEAN, operation.number)
            except AssertionError as error:
                return error
    return None


async def test_a_store_that_tries_a_failed_sync_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this proves nothing."""
    sync = Journal.sync

    def again(journal: Journal) -> None:
        try:
            sync(journal)
        except Exception:
            sync(journal)

    monkeypatch.setattr(Journal, "sync", again)
    assert await _check_syncs()


async def test_a_full_disk_refuses_serves_and_later_takes_again() -> None:
    disk = FakeDisk()
    witness = Witness(disk, FakeClock(), SETTINGS)
    witness.store = await open_store(disk)
    worker = Worker(witness)
    for name in ("a", "i", "n"):
        await worker.append(name)
    disk.full = True
    refused = 0
    for _ in range(40):
        for name in ("a", "i", "n"):
            end = worker.log(name).end
            try:
                await worker.append(name, 300)
            except StoreError:
                assert worker.log(name).end == end
            refused += worker.log(name).end == end
    assert refused > 60, "what the journal cannot take is refused, and taken back"
    assert witness.store.read_only is None
    await witness.check(witness.store, witness.tick(), power=False)
    await recover(witness, disk.kill(), witness.tick(), power=False)
    disk.full = False
    assert await witness.store.checkpoint()
    ends = [worker.log(name).end for name in ("a", "i", "n")]
    for name in ("a", "i", "n"):
        await worker.append(name)
    assert [worker.log(name).visible for name in ("a", "i", "n")] == [end + 44 for end in ends]
    await recover(witness, disk.kill(), witness.tick(), power=False)
