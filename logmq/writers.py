"""BATCH writers: which batches were written, so that a repeated batch is not written again.

The newest `WINDOW` batches of each writer to a topic are remembered, each in the slot `seq % WINDOW`. A slot
is a record of a table, appended in one step with the batch's data: after a crash both are there or neither. A
batch whose slot has its own seq was written already, and gets the same answer. A batch whose slot has a
higher seq is too old to tell: it is refused rather than written twice. Seqs may skip numbers.

A writer is its user's own: the same name of another user is another writer. Logs of before users' writers
were kept apart have writers without a user; they are anonymous' own.

At most `writers_max` writers of each user are remembered. A new one replaces that user's longest silent one,
whose repetitions would then be written as new. After a restart the order is that of the table.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from logmq.wire import Code, Refusal, check_memory
from shared.access import ANONYMOUS
from shared.budget import Account, unbounded
from shared.storage.store import Log, Store, Ticket
from shared.storage.table import Table

WINDOW = 128
"""Unanswered batches that a writer may repeat. Not a setting: the slots on disk depend on it."""
SLOT_BYTES = 500
"""Memory of a slot, with its row in the table."""
_SLOT_BYTES = 2
_PREFIX_BYTES = 8  # the log's id


class Writers:
    """The newest batches of every writer."""

    def __init__(
        self, store: Store, table: Table, *, writers_max: int, memory: Account | None = None
    ) -> None:
        """`memory`: the account that slots are charged to."""
        self._memory = memory or unbounded()
        self._store = store
        self._table = table
        self.writers_max = writers_max
        self._slots: dict[bytes, dict[bytes, set[bytes]]] = {}
        """By user, and by writer (log id, user and name): the keys of its slots. The user's writer that was
        silent longest is first."""
        self._unsynced: dict[bytes, Ticket] = {}
        for key, _ in table.items():
            self._remember(key[:-_SLOT_BYTES], key)

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def write(
        self, log: Log, user: str, writer: str, seq: int, pieces: Sequence[tuple[bytes, int]]
    ) -> tuple[int, Ticket | None, bool]:
        """Append a batch, unless it was written before. `pieces`: its records, each with how many they are.

        Returns the offset of its first record, the ticket to wait for (None: it is durable), and whether it
        was written now. Raises Refusal (LIMIT) for a seq that is too old to tell, and StoreError.
        """
        name = writer if user == ANONYMOUS else f"{user}/{writer}"
        owner = log.id.to_bytes(_PREFIX_BYTES, "big") + name.encode()
        key = owner + (seq % WINDOW).to_bytes(_SLOT_BYTES, "big")
        remembered = self._table.get(key)
        if remembered is not None:
            last, offset = int.from_bytes(remembered[:8], "big"), int.from_bytes(remembered[8:], "big")
            if last == seq:
                self._touch(owner)
                return offset, self._unsynced.get(key), False
            if last > seq:
                raise Refusal(
                    Code.LIMIT,
                    f"seq {seq} of writer {writer} is too old to tell whether it was written: {last} was, "
                    f"and the newest {WINDOW} are remembered",
                )
        else:
            check_memory(self._memory, SLOT_BYTES)
        offset = log.end
        entry = self._table.put_record(key, seq.to_bytes(8, "big") + offset.to_bytes(8, "big"))
        offsets, ticket = self._store.append_all([*((log, *piece) for piece in pieces), entry])
        assert offsets[0] == offset, "a batch was not appended at the end of its log"
        self._touch(owner)
        self._remember(owner, key)
        self._unsynced[key] = ticket
        ticket.when_done(lambda done: self._written(key, done))
        own = self._slots[_user(owner)]
        while len(own) > self.writers_max:
            self._table.delete_all(self._pop(next(iter(own))))
        return offset, ticket, True

    def forget(self, log_id: int, done: Callable[[], None] = lambda: None) -> None:
        """Remove a deleted log's writers; then call `done`. Raises StoreError."""
        prefix = log_id.to_bytes(_PREFIX_BYTES, "big")
        owners = [owner for owner in self._owners() if owner.startswith(prefix)]
        self._table.discard([key for owner in owners for key in self._pop(owner)], done)

    def orphaned(self, logs: Callable[[int], Log | None]) -> int:
        """How many writers are of missing logs."""
        return sum(logs(int.from_bytes(owner[:_PREFIX_BYTES], "big")) is None for owner in self._owners())

    def _owners(self) -> Iterator[bytes]:
        return chain.from_iterable(self._slots.values())

    def _touch(self, owner: bytes) -> None:
        """Make this writer the last to be forgotten."""
        own = self._slots.setdefault(_user(owner), {})
        own[owner] = own.pop(owner, set())

    def _remember(self, owner: bytes, key: bytes) -> None:
        slots = self._slots.setdefault(_user(owner), {}).setdefault(owner, set())
        if key not in slots:
            slots.add(key)
            self._memory.charge(SLOT_BYTES)

    def _pop(self, owner: bytes) -> list[bytes]:
        """Forget a writer; returns its slots."""
        slots = self._slots[_user(owner)].pop(owner)
        self._memory.give(SLOT_BYTES * len(slots))
        return [*slots]

    def _written(self, key: bytes, ticket: Ticket) -> None:
        if self._unsynced.get(key) is ticket:
            del self._unsynced[key]


def _user(owner: bytes) -> bytes:
    """The user of a writer; of anonymous nothing stands before its name, which holds no slash."""
    return owner[_PREFIX_BYTES:].rpartition(b"/")[0]
