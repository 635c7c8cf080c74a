"""Watching and failing a store's disk operations, and hearing how its commits came out."""

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import trio

from shared.errors import StoreError
from shared.storage import committer
from shared.storage.committer import Commit
from shared.storage.log import Log, Ticket
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS, records, running


@contextmanager
def batches_of(batch_bytes: int) -> Iterator[None]:
    """Within it a batch is full with so many bytes, really with 8 MiB: a commit has several. 0: each append
    and each change of the catalog is one.
    """
    with patch.object(committer, "BATCH_PAYLOAD_MAX", batch_bytes):
        yield


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


async def leave_free(store: Store, disk: FakeDisk, free_bytes: int) -> None:
    """So many bytes are free on the disk, and the store has looked; it does once a second (`autojump_clock`).

    NO_SPACE has it refuse what may not use the reserve.
    """
    disk.free = free_bytes
    async with running(store):
        await trio.sleep(1.1)


NO_SPACE = -1
"""Less than the reserve of `stores.SMALL`, which is nothing."""
ENOUGH_SPACE = 1 << 40


def fill_memory(store: Store, disk: FakeDisk, pending_bytes_max: int) -> None:
    """A log's file takes nothing. At its next look the store refuses more, though the disk has enough space.

    `pending_bytes_max`: the store's setting.
    """
    log, _ = store.namespace("stuck", ALWAYS).create("log")
    fail(
        disk, errno.ENOSPC, lambda operation: operation.kind == "write" and operation.path == "stuck/log.log"
    )
    log.append(records(bytes(pending_bytes_max + 1)), 1)
    store.commit_pending()


async def make_read_only(store: Store, disk: FakeDisk) -> None:
    """A sync fails, and the store accepts nothing more."""
    fail(disk, errno.EIO, lambda operation: operation.kind == "sync")
    store.namespace("synced", ALWAYS).create("log")
    store.commit_pending()
    assert store.read_only is not None


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
