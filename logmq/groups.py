"""Groups' committed offsets, in a table of the store.

A key begins with the log's id, which is never used again. So what a deleted topic leaves behind is never
taken for a commit to a later topic of that name.

DELETE of a topic puts a *tombstone* into the table, in one step with the deletion of its log. A tombstone is
a key that is only the id. Then the topic's commits and writers are removed, and the tombstone last. The next
start removes what a crash leaves. Commits to a missing topic without a tombstone are a sign of damage: they
stay.
"""

from collections.abc import Callable, Iterable, Iterator

import attrs

from logmq.wire import Code, Refusal, check_memory
from shared.budget import Account, unbounded
from shared.errors import StoreError
from shared.storage.store import Log, Ticket
from shared.storage.table import Table

_ID_BYTES = 8
_OFFSET_BYTES = 8
COMMIT_BYTES = 500
"""Memory of a commit, with its row in the table."""


@attrs.frozen
class Committed:
    """One group's committed offset in one topic. `end`: the topic's visible end. `behind_bytes`: what is kept
    of the topic from the committed offset on."""

    group: str
    topic: str
    offset: int
    end: int
    behind_bytes: int


class Groups:
    """Committed offsets by group and log."""

    def __init__(self, table: Table, commits_max: int, memory: Account | None = None) -> None:
        """`memory`: the account that commits are charged to."""
        self._table = table
        self._memory = memory or unbounded()
        self._of_users = self._memory.new_shares()
        self.commits_max = commits_max
        self._by_log: dict[int, set[bytes]] = {}
        self._count = 0
        self._unsynced: dict[bytes, Ticket] = {}
        self.tombstones: set[int] = set()
        """Ids of deleted logs that may have left something."""
        for key, _ in table.items():
            if len(key) > _ID_BYTES:
                self._remember(key)
            else:
                self.tombstones.add(_log_id(key))

    def __len__(self) -> int:
        return self._count

    def committed(self, group: str, log: Log) -> tuple[int, Ticket | None] | None:
        """The offset, and the ticket that the answer waits for; None in its place: it is durable. Raises
        StoreError where damage may have taken it."""
        key = _key(group, log)
        value = self._table.get(key)
        if value is not None:
            return int.from_bytes(value, "big"), self._unsynced.get(key)
        if self._table.hides_keys:
            raise StoreError(
                f"the commits are damaged: whether group {group} has committed anything of {log.name} is not "
                "known; COMMIT where it goes on"
            )
        return None

    def commit(self, group: str, log: Log, offset: int, user: str = "") -> Ticket:
        """Commit for a user. Raises Refusal (LIMIT) and StoreError."""
        key = _key(group, log)
        if self._table.get(key) is None:
            if self._count >= self.commits_max:
                raise Refusal(Code.LIMIT, f"there are commits_max = {self.commits_max} commits already")
            if not self._of_users.fits(user, self.commits_max):
                raise Refusal(Code.LIMIT, f"{user} has his share of commits_max")
            check_memory(self._memory, COMMIT_BYTES)
            self._of_users.take(key, user)
        ticket = self._table.put(key, offset.to_bytes(_OFFSET_BYTES, "big"))
        self._remember(key)
        self._unsynced[key] = ticket
        ticket.when_done(lambda done: self._written(key, done))
        return ticket

    def delete(self, group: str, log: Log) -> Ticket:
        """Delete a commit, which exists. Raises StoreError."""
        key = _key(group, log)
        ticket = self._table.delete(key)
        self._unsynced.pop(key, None)
        keys = self._by_log[log.id]
        keys.discard(key)
        if not keys:
            del self._by_log[log.id]
        self._count -= 1
        self._of_users.drop(key)
        self._memory.give(COMMIT_BYTES)
        return ticket

    def tombstone(self, log_id: int) -> tuple[Log, bytes, int]:
        """The record of the tombstone, for `Namespace.delete`."""
        return self._table.put_record(_tombstone(log_id), b"")

    def forget(self, log_id: int, done: Callable[[], None] = lambda: None) -> None:
        """Remove a deleted log's commits; then `done` is called. Raises StoreError."""
        keys = self._by_log.pop(log_id, set())
        self._count -= len(keys)
        self._memory.give(COMMIT_BYTES * len(keys))
        for key in keys:
            self._of_users.drop(key)
        self._table.discard([*keys], done)

    def remove_tombstone(self, log_id: int) -> None:
        """Remove the tombstone: nothing is left of the log. Raises StoreError."""
        self.tombstones.discard(log_id)
        self._table.delete(_tombstone(log_id))

    def find(self, group: str, log: Log) -> bytes | None:
        """A key for `read`; None if the group has committed nothing."""
        key = _key(group, log)
        return key if key in self._table else None

    def keys(self, logs: Iterable[Log]) -> list[tuple[Log, bytes]]:
        """Every commit to one of these logs, in any order: the log, and a key for `read`."""
        by_log = self._by_log
        return [(log, key) for log in logs if (keys := by_log.get(log.id)) for key in keys]

    def read(self, log: Log, key: bytes) -> Committed | None:
        """A commit; None: it was deleted."""
        value = self._table.get(key)
        return None if value is None else _committed(key, value, log)

    def each(self, logs: Callable[[int], Log | None]) -> Iterator[Committed]:
        """Every commit, unsorted; commits may come and go meanwhile."""
        for log_id in list(self._by_log):
            log = logs(log_id)
            for key in list(self._by_log.get(log_id, ())):
                value = self._table.get(key)
                if log is not None and value is not None:
                    yield _committed(key, value, log)

    def idle(self, logs: Callable[[int], Log | None], since_ms: int) -> Iterator[tuple[str, Log]]:
        """Groups that have committed nothing in a topic since `since_ms`, though all that time they had
        records to read. They may be deleted meanwhile.

        Times are those of the logs' indexes, so a group is found late rather than early. Raises StoreError.
        """
        committed_since = self._table.log.seek(since_ms)
        for log_id in list(self._by_log):
            log, keys = logs(log_id), self._by_log.get(log_id, ())
            old = [key for key in keys if key in self._table and self._table.offset(key) < committed_since]
            if log is None or not old:
                continue
            came_since = log.seek(since_ms)
            for key in old:
                if key in self._table and int.from_bytes(self._table[key], "big") < came_since:
                    yield group_of(key), log

    def repair(self, logs: Callable[[int], Log | None]) -> tuple[int, list[Committed]]:
        """Set commits past the end of a log to its end; done at the start.

        A log in mode `interval` or `none` may lose its newest records in a power cut. Returns how many
        commits are of missing logs, and those that were past the end, as they were. Raises StoreError.
        """
        orphaned, past = 0, []
        for log_id in list(self._by_log):
            log = logs(log_id)
            if log is None:
                orphaned += len(self._by_log[log_id])
                continue
            for key in self._by_log[log_id]:
                row = _committed(key, self._table[key], log)
                if row.offset > log.visible:
                    past.append(row)
                    self._table.put(key, log.visible.to_bytes(_OFFSET_BYTES, "big"))
        return orphaned, past

    def _written(self, key: bytes, ticket: Ticket) -> None:
        if self._unsynced.get(key) is ticket:
            del self._unsynced[key]

    def _remember(self, key: bytes) -> None:
        keys = self._by_log.setdefault(_log_id(key), set())
        if key not in keys:
            keys.add(key)
            self._count += 1
            self._memory.charge(COMMIT_BYTES)


def group_of(key: bytes) -> str:
    """The group that this commit is of."""
    return key[_ID_BYTES:].decode()


def _committed(key: bytes, value: bytes, log: Log) -> Committed:
    offset, end = int.from_bytes(value, "big"), log.visible
    return Committed(group_of(key), log.name, offset, end, max(0, end - max(offset, log.first)))


def _key(group: str, log: Log) -> bytes:
    return log.id.to_bytes(_ID_BYTES, "big") + group.encode()


def _tombstone(log_id: int) -> bytes:
    return log_id.to_bytes(_ID_BYTES, "big")


def _log_id(key: bytes) -> int:
    return int.from_bytes(key[:_ID_BYTES], "big")
