"""Watching and failing a store's disk operations, and hearing how its commits came out."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from shared.errors import StoreError
from shared.storage.commit import Commit
from shared.storage.log import Log, Ticket
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS


def watch(disk: FakeDisk, *kinds: str) -> list[list[str]]:
    """The paths of operations from here on, by kind."""
    seen: dict[str, list[str]] = {kind: [] for kind in kinds}

    def before(operation: Operation) -> None:
        if operation.kind in seen:
            seen[operation.kind].append(operation.path)

    disk.before = before
    return list(seen.values())


def fail(disk: FakeDisk, error: int, match: Callable[[Operation], bool], times: int = 1 << 30) -> None:
    left = times

    def before(operation: Operation) -> None:
        nonlocal left
        if left and match(operation):
            left -= 1
            raise OSError(error, "injected")

    disk.before = before


def journal_write(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.startswith("journal/")


def log_write(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.endswith(".log")


def commits_behind(gate: trio.Event) -> Callable[..., Awaitable[Any]]:
    """A store's `in_thread` that runs its work inline, commits not before `gate` is set."""

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if isinstance(getattr(work, "__self__", None), Commit):
            await gate.wait()
        return work(*args)

    return in_thread


def outcome(ticket: Ticket) -> list[StoreError | None]:
    found: list[StoreError | None] = []
    ticket.when_done(lambda done: found.append(done.error))
    return found


async def logs_of(store: Store, *modes: Any) -> list[Log]:
    namespace = store.namespace("logmq", ALWAYS)
    made = [namespace.create(f"t{n}", mode) for n, mode in enumerate(modes)]
    for _, ticket in made:
        await store.wait(ticket)
    return [log for log, _ in made]
