"""Worker threads that take turns with the trio thread, so that a seed settles how they interleave.

The store's blocking work runs in real threads here too, but only one thread of all ever runs: the trio
thread hands the turn to a worker and waits; the worker hands it back at its next disk operation, with the
time that this takes, or at its end. In between the trio thread sleeps in virtual time, and whatever else is
due happens: requests arrive, another worker's checkpoint syncs a file, the power goes off. So a commit and a
checkpoint overlap at every disk operation, as they do on a real machine, and yet a seed repeats it.

Handing on turns is what costs most here, so some of the work, as the seed has it, is done in one go by the
trio thread instead, and takes its time afterwards.
"""

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import trio

from shared.storage.files import OpenFiles
from shared.storage.journal import Journal
from tests.trials.sim.world import World

Result = TypeVar("Result")

TURN_SECONDS_MAX = 120.0
"""Of real time."""


class Pausing:
    """Who runs blocking work, and is told how long each step of it takes."""

    wakes_at = 0.0

    def pause(self, seconds: float) -> None: ...


class AtOnce(Pausing):
    """The trio thread itself: the time is added up, and spent when the work is done."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


class Worker(Pausing):
    """A thread that runs only between `step()` and the `pause()` or return that follows."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._go = _thread.allocate_lock()
        self._back = _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._job: Callable[[], Any] | None = None
        self.seconds = 0.0
        self.finished = True
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.ident = self._thread.ident

    def begin(self, job: Callable[[], Any]) -> None:
        self._job = job
        self.finished = False
        self.value = self.error = None

    def step(self) -> None:
        """Let it run up to its next pause (`seconds` says how long), or its end (`finished`)."""
        if not self.finished:
            self._go.release()
            if not self._back.acquire(timeout=TURN_SECONDS_MAX):
                raise RuntimeError("a worker keeps its turn: it waits for a lock that LOCKS does not name")

    def pause(self, seconds: float) -> None:
        """Called in this thread: the turn goes back to trio's, for so much virtual time."""
        self.seconds = seconds
        self.wakes_at = self._now() + seconds
        self._back.release()
        self._go.acquire()

    def end(self) -> None:
        """The thread goes; no job is under way."""
        self._job = None
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            job, self._job = self._job, None
            if job is None:
                return
            try:
                self.value = job()
            except BaseException as error:
                self.error = error
            self.finished = True
            self._back.release()


class Threads:
    """The workers of one run. `in_thread` is what the store gets for `trio.to_thread.run_sync`.

    `interleaved`: the share of the work that runs in workers; the rest is done at once.
    """

    def __init__(self, world: World, interleaved: float) -> None:
        self.interleaved = interleaved
        self._world = world
        self._chance = world.source("threads")
        self._at_once: AtOnce | None = None
        self._idle: list[Worker] = []
        self._busy: dict[int | None, Worker] = {}
        self.after_turn: Callable[[], None] = lambda: None
        """Called in the trio thread whenever a worker has handed back the turn."""

    async def in_thread(
        self,
        function: Callable[..., Result],
        *args: Any,
        limiter: trio.CapacityLimiter | None = None,
        abandon_on_cancel: bool = False,
    ) -> Result:
        """Run `function` in a worker. It is never left behind, whatever the caller would allow."""
        if limiter is None:
            await trio.lowlevel.checkpoint()
            return await self._run(function, args)
        async with limiter:
            return await self._run(function, args)

    async def _run(self, function: Callable[..., Result], args: Any) -> Result:
        if self._chance.random() >= self.interleaved:
            return await self._run_at_once(function, args)
        worker = self._idle.pop() if self._idle else Worker(self._world.now)
        worker.begin(lambda: function(*args))
        self._busy[worker.ident] = worker
        try:
            while True:
                worker.step()
                self.after_turn()
                if worker.finished:
                    break
                with trio.CancelScope(shield=True):
                    await trio.sleep(worker.seconds)
        finally:
            del self._busy[worker.ident]
            self._idle.append(worker)
        if worker.error is not None:
            try:
                raise worker.error
            finally:
                worker.error = None
        value: Result = worker.value
        return value

    async def _run_at_once(self, function: Callable[..., Result], args: Any) -> Result:
        spent = self._at_once = AtOnce()
        try:
            return function(*args)
        finally:
            self._at_once = None
            self.after_turn()
            if spent.seconds:
                with trio.CancelScope(shield=True):
                    await trio.sleep(spent.seconds)

    def current(self) -> Pausing | None:
        """Who runs the work from which this is called; None outside any, in the trio thread."""
        worker = self._busy.get(_thread.get_ident()) if self._busy else None
        return worker or self._at_once

    def now(self) -> float:
        return self._world.now()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class TurnLock:
    """A `threading.Lock` for threads that take turns: who waits for it hands on the turn.

    In the trio thread waiting means to let the holder run, up to where it lets go: the loop stands still
    meanwhile, as it would.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._held = False
        self._holder: Pausing | None = None

    def acquire(self) -> bool:
        worker = self._threads.current()
        while self._held:
            holder = self._holder
            assert isinstance(holder, Worker), "the trio thread waits for a lock that it holds"
            if isinstance(worker, Worker):
                worker.pause(max(0.0, holder.wakes_at - self._threads.now()) + 0.000_01)
            else:
                holder.step()
        self._held = True
        self._holder = worker
        return True

    def release(self) -> None:
        self._held = False
        self._holder = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


# -- the product's locks, exchanged for ones that hand on the turn

LOCKS = ((Journal, "_ready"), (OpenFiles, "_names"), (OpenFiles, "repairs"))
"""Every lock that the store's threads share. One that is missing here shows as a run that hangs."""


@contextmanager
def turn_locks(threads: Threads) -> Iterator[None]:
    """Objects of these classes that are made within get `TurnLock`s."""
    with ExitStack() as stack:
        for owner, attribute in LOCKS:
            stack.enter_context(patch.object(owner, "__init__", _with_lock(owner, attribute, threads)))
        yield


def _with_lock(owner: Any, attribute: str, threads: Threads) -> Any:
    init = owner.__init__

    def init_with_lock(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        setattr(self, attribute, TurnLock(threads))

    return init_with_lock
