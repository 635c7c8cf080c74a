"""What was asked of the broker and what it answered, kept in the trial's memory: no cut reaches it.

A topic either has one writer, who may delete it and make it again, or several, who only write. So what may
stand in it after a cut is known exactly: of each writer's operations a beginning, whole ones, in order.
"""

import attrs

from tests.trials.peers import Asked

HEADER_BYTES = 4


@attrs.define(eq=False)
class Write(Asked):
    """PRODUCE, APPEND or BATCH: `records` as they are to stand in the file."""

    writer: str = ""
    records: bytes = b""
    count: int = 1
    offset: int | None = None
    batch: tuple[str, int] | None = None
    """A BATCH's writer and seq."""
    stands: int | None = None
    """Where the verification found it."""


@attrs.define(eq=False)
class Repeat(Asked):
    """A BATCH sent again: it writes nothing and gets the answer that `of` got, unless `of` was refused. Then
    it may write what that did not."""

    of: Write = attrs.field(kw_only=True)


@attrs.define(eq=False)
class Delete(Asked):
    """DELETE: the topic, its groups' offsets and its BATCH writers end."""


@attrs.define(eq=False)
class Commit(Asked):
    """COMMIT. Each group has one writer."""

    group: str = ""
    value: int = 0


@attrs.define(eq=False)
class Ledger:
    """One topic. `settled` is what the last verification found, so what must be there for ever."""

    name: str
    mode: str
    """`always`, `interval` or `none`."""
    kept_bytes: int | None = None
    """Records may be dropped at the front so long as so many bytes stay; None: never."""
    exists: bool = False
    first: int = 0
    """Where `settled` begins."""
    settled: bytes = b""
    commits: dict[str, int] = attrs.field(factory=dict)
    operations: list[Asked] = attrs.field(factory=list)
    """Since the last verification, in the order of queuing."""
    read: bytearray = attrs.field(factory=bytearray)
    """What a reader was given past `settled` since the last verification."""
    groups: set[str] = attrs.field(factory=set)
    """All that ever committed here, in this life of the topic or an earlier one."""
    seqs: dict[str, int] = attrs.field(factory=dict)
    """The last seq of each BATCH writer."""

    @property
    def end(self) -> int:
        """Where `settled` ends."""
        return self.first + len(self.settled)

    def effective(self) -> list[Asked]:
        """`operations` in the order in which they may have had an effect: a BATCH that was refused may stand
        where it was sent again, too."""
        again: dict[Asked, Repeat] = {}
        for operation in self.operations:
            if isinstance(operation, Repeat) and operation.of.refused and not operation.refused:
                again.setdefault(operation.of, operation)
        effective: list[Asked] = []
        for operation in self.operations:
            if isinstance(operation, Repeat):
                if again.get(operation.of) is operation:
                    effective.append(operation.of)
            else:
                effective.append(operation)
        return effective

    def written_again(self, repeat: Repeat, offset: int) -> None:
        """A BATCH that was refused is acknowledged where it was sent again."""
        write = repeat.of
        write.refused, write.answered, write.offset = "", repeat.answered, offset
        self.operations.remove(write)
        self.operations[self.operations.index(repeat)] = write

    @property
    def standing(self) -> bool:
        """Whether the topic will be there once all that is queued has been done."""
        for operation in reversed(self.effective()):
            if isinstance(operation, Delete):
                return False
            if isinstance(operation, Write):
                return True
        return self.exists

    def next_seq(self, writer: str) -> int:
        self.seqs[writer] = self.seqs.get(writer, 0) + 1
        return self.seqs[writer]


@attrs.define(eq=False)
class Book:
    """All topics of one data folder."""

    ledgers: dict[str, Ledger] = attrs.field(factory=dict)

    def open(self, name: str, mode: str, kept_bytes: int | None = None) -> Ledger:
        ledger = self.ledgers.get(name)
        if ledger is None:
            ledger = self.ledgers[name] = Ledger(name, mode, kept_bytes)
        return ledger


def record(payload: bytes) -> bytes:
    """As STORAGE.md has it: length, then payload."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload
