"""Things to do to a store while it is being crashed: single operations, and sequences drawn by a seed."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from shared.storage.log import Log
from shared.storage.settings import StorageSettings
from shared.storage.store import Namespace
from shared.storage.table import Table
from tests.support.commits import batches_of
from tests.support.crashes import SETTINGS, Tally, Workload, check_cuts, check_kills, open_store, record
from tests.support.promises import Witness
from tests.support.stores import ALWAYS, INTERVAL, running

MODES = {"a": "always", "i": "interval:50ms", "n": "none"}


class Worker:
    """Does operations, each with payloads that occur nowhere else."""

    def __init__(self, witness: Witness, size: int = 40) -> None:
        self.witness = witness
        self.size = size
        self.is_open = hasattr(witness, "store")
        self._table: Table | None = None
        self._is_several = False

    @property
    def namespace(self) -> Namespace:
        return self.witness.store.namespace("logmq", ALWAYS)

    def payload(self, size: int | None = None) -> bytes:
        head = b"<%d>" % self.witness.tick()
        return head.ljust(self.size if size is None else size, b".")

    def log(self, name: str) -> Log:
        """The log by that name, made if there is none; its first letter is its mode."""
        found = self.namespace.logs.get(name)
        return found or self.witness.create(self.namespace, name, MODES[name[0]])

    def settle(self) -> None:
        if not self._is_several:
            self.witness.store.commit_pending()

    @contextmanager
    def several(self) -> Iterator[None]:
        """All that is done within it is one commit, and each append or change in a batch of its own."""
        self._is_several = True
        with batches_of(0):
            yield
        self._is_several = False
        self.settle()

    async def do(self, *names: str) -> None:
        """Operations by name, in one commit of several batches."""
        with self.several():
            for name in names:
                await OPERATIONS[name](self)

    async def append(self, name: str, *sizes: int) -> None:
        self.witness.append(self.log(name), [self.payload(size) for size in sizes] or [self.payload()])
        self.settle()

    async def append_all(self, *names: str, size: int | None = None) -> None:
        self.witness.append_all([(self.log(name), [self.payload(size)]) for name in names])
        self.settle()

    async def join(self, *names: str) -> None:
        """In one entry, an append for each log, behind one that is in the same commit for itself."""
        self.witness.append(self.log(names[0]), [self.payload()])
        self.witness.append_together([(self.log(name), [self.payload()]) for name in names])
        self.settle()

    async def together(self, *names: str) -> None:
        """Several logs in one commit, each for itself."""
        for name in names:
            self.witness.append(self.log(name), [self.payload()])
        self.settle()

    async def delete(self, name: str) -> None:
        if name in self.namespace.logs:
            self.witness.delete(self.namespace, name)
            self.settle()

    async def replace(self, name: str) -> None:
        """Delete and make again under the name, in one commit."""
        if name in self.namespace.logs:
            self.witness.delete(self.namespace, name)
        self.witness.append(self.log(name), [self.payload()])
        self.settle()

    async def drop(self, name: str) -> None:
        """Retention: all records but the last."""
        log = self.namespace.logs.get(name)
        if log is not None and log.visible > log.first:
            last = self.witness.last_offset(log)
            self.witness.drop_below(log, last)
            self.settle()

    async def change_mode(self, name: str) -> None:
        """Between its own mode and `none`."""
        log, own = self.log(name), MODES[name[0]]
        self.witness.change_mode(self.namespace, log, "none" if str(log.mode) == own else own)
        self.settle()

    async def put(self, name: str, key: bytes) -> None:
        """Change a table, or take the key out of it."""
        if self._table is None:
            self._table = await Table.open(self.witness.store.namespace("tables", ALWAYS), name)
        self.witness.put(self._table, key, None if self.witness.moment % 5 == 4 else self.payload())
        self.settle()

    async def sync_in_time(self) -> None:
        """The end of an interval: what is to be synced by then is."""
        since = self.witness.tick()
        self.witness.clock.advance(INTERVAL.seconds)
        async with running(self.witness.store):
            await wait_all_tasks_blocked()
        self.witness.everything_safe(since, unless="none")

    async def write_tails(self) -> None:
        """What commits left in memory goes to the logs' files, unsynced."""
        await self.witness.store.flush()

    async def checkpoint(self) -> None:
        since = self.witness.tick()
        if await self.witness.store.checkpoint():
            self.witness.everything_safe(since)

    async def checkpoint_amid(self, name: str) -> None:
        """A checkpoint while a deletion, what follows under the name, and more wait for the next commit."""
        if name in self.namespace.logs:
            self.witness.delete(self.namespace, name)
        if self.witness.moment % 2:
            self.witness.append(self.log(name), [self.payload()])
        await self.checkpoint()
        self.settle()

    async def restart(self) -> None:
        """The process dies between two operations, and the store is opened again."""
        self.is_open = False
        self.witness.store.abandon()
        await self.open()

    async def close_and_open(self) -> None:
        """A clean stop and a start."""
        self.is_open = False
        await self.witness.store.close()
        await self.open()

    async def open(self) -> None:
        self._table = None
        since = self.witness.tick()
        self.witness.store = await open_store(self.witness.disk, self.witness.clock, self.witness.settings)
        self.witness.everything_safe(since)
        self.is_open = True


Operation = Callable[[Worker], Awaitable[None]]

SMALL: dict[str, Operation] = {
    "append": lambda worker: worker.append("a"),
    "append interval": lambda worker: worker.append("i"),
    "append none": lambda worker: worker.append("n"),
    "delete or make again": lambda worker: worker.replace("a"),
    "change two": lambda worker: worker.append_all("a", "i"),
    "change weak": lambda worker: worker.append_all("i", "n"),
    "change weakest": lambda worker: worker.append_all("n", "n2"),
    "drop": lambda worker: worker.drop("a"),
    "drop, then append": lambda worker: worker.do("drop", "append"),
    "write tails": lambda worker: worker.write_tails(),
    "checkpoint": lambda worker: worker.checkpoint(),
    "checkpoint amid a deletion": lambda worker: worker.checkpoint_amid("a"),
    "restart": lambda worker: worker.restart(),
}
"""The alphabet of the short workloads, which are all run."""

LARGE: dict[str, Operation] = {
    "append large": lambda worker: worker.append("a", 1100),
    "append large elsewhere": lambda worker: worker.append("i", 1100),
    "change large": lambda worker: worker.append_all("a", "i", size=1100),
}

SEVERAL: dict[str, Operation] = {
    "append, make again, append": lambda worker: worker.do("append", "delete or make again", "append"),
    "drop, change two, append large": lambda worker: worker.do("drop", "change two", "append large"),
    "append, change mode, append, change mode, append": lambda worker: worker.do(
        "append", "change mode", "append", "change mode", "append"
    ),
    "append none, change weak, append none": lambda worker: worker.do(
        "append none", "change weak", "append none"
    ),
}
"""One commit of several batches."""

OPERATIONS: dict[str, Operation] = {
    **SMALL,
    **LARGE,
    **SEVERAL,
    "change mode": lambda worker: worker.change_mode("a"),
    "join": lambda worker: worker.join("a", "i"),
    "join weak": lambda worker: worker.join("n", "i"),
    "join weakest": lambda worker: worker.join("n", "n2"),
    "sync in time": lambda worker: worker.sync_in_time(),
    "append much": lambda worker: worker.append("a", 900, 900, 900),  # most of a journal segment
}

REFERRING = attrs.evolve(SETTINGS, reference_bytes=1000, tail_log_bytes=1200)
"""What is large goes to its log's file alone, behind the first of it."""


def sequence(operations: Sequence[str]) -> Workload:
    """A workload of operations by name."""

    async def run(witness: Witness) -> None:
        worker = Worker(witness)
        for name in operations:
            await OPERATIONS[name](worker)

    return run


def something(then: Sequence[str]) -> Workload:
    """What a short workload finds: a log of each mode with a record, one more in the journal; and `then`."""

    async def run(witness: Witness) -> None:
        worker = Worker(witness)
        for name in ("a", "i", "n"):
            await worker.append(name)
        await worker.checkpoint()
        await worker.append("a")
        await sequence(then)(witness)

    return run


def drawn(seed: int, operations: int) -> Workload:
    """A longer workload: more logs, larger records, everything mixed."""

    async def run(witness: Witness) -> None:
        source = random.Random(seed)
        worker = Worker(witness)
        names = ["a1", "a2", "i1", "n1"][: source.choice((2, 4))]
        for _ in range(operations):
            await _draw(worker, source, names)

    return run


async def _draw(worker: Worker, source: random.Random, names: list[str]) -> None:
    if source.random() < 0.2:
        with worker.several():
            for _ in range(source.choice((2, 3, 5))):
                await _draw_one(worker, source, names, 0.87 * source.random())
    else:
        await _draw_one(worker, source, names, source.random())


async def _draw_one(worker: Worker, source: random.Random, names: list[str], roll: float) -> None:
    """`roll`: which; below 0.87 it is one that can be part of a commit."""
    name = source.choice(names)
    if roll < 0.45:
        sizes = [source.choice((0, 10, 100, 400, 900)) for _ in range(source.choice((1, 1, 2, 5)))]
        await worker.append(name, *sizes)
    elif roll < 0.6:
        await worker.together(*source.sample(names, 2))
    elif roll < 0.7:
        await worker.append_all(*source.sample(names, 2))
    elif roll < 0.75:
        await worker.delete(name)
    elif roll < 0.83:
        await worker.replace(name)
    elif roll < 0.86:
        await worker.drop(name)
    elif roll < 0.87:
        await worker.change_mode(name)
    elif roll < 0.92:
        await worker.put("t", source.choice((b"one", b"two")))
    elif roll < 0.94:
        await worker.checkpoint()
    elif roll < 0.95:
        await worker.write_tails()
    elif roll < 0.96:
        await worker.checkpoint_amid(name)
    elif roll < 0.98:
        await worker.close_and_open()
    else:
        await worker.restart()


def check_short(
    operations: Sequence[str], runs_max: int = 5000, settings: StorageSettings = SETTINGS
) -> Tally:
    """The cuts in the last operation: those before it are another workload's. Raises BrokenPromiseError.

    `runs_max`: of one cut that leaves states for more recoveries than this, so many are drawn.
    """
    return trio.run(_check_short, operations, runs_max, settings)


async def _check_short(operations: Sequence[str], runs_max: int, settings: StorageSettings) -> Tally:
    history = await record(sequence(operations[-1:]), something(operations[:-1]), settings=settings)
    tally = await check_cuts(history.cuts, history.witness, runs_max, seed=0)
    tally.add(await check_kills(history))
    return tally
