"""The logs of a store: namespaces, their logs, and which of them are durable (the catalog)."""

import sys
from collections.abc import Callable, Iterable, Sequence

import attrs
import structlog

from shared.errors import StoreError, StoreFull
from shared.storage import catalog
from shared.storage.catalog import Catalog, LogLine
from shared.storage.committer import Committer
from shared.storage.disk import Clock, Disk
from shared.storage.files import OpenFiles
from shared.storage.format import EntryKind, IndexEntry
from shared.storage.log import Change, Log, Ticket, call, opaque
from shared.storage.reading import Reader
from shared.storage.settings import Durability, Mode, Retention

logger = structlog.stdlib.get_logger("brokers.storage")

KEEP_ALL = Retention()
Beside = Callable[[Log], Sequence[tuple[Log, bytes, int]]]
"""From a log that is being created to appends for other logs, as `Store.append_all` takes it."""


@attrs.frozen
class CatalogSnapshot:
    """The catalog as of one moment. `lines`: packed, by log id. `changed`: lines that are still to be packed.
    `folders`: whose names may have changed since the last snapshot.
    """

    head: Catalog
    lines: dict[int, bytes]
    changed: dict[Log, LogLine]
    folders: dict[str, None]

    def pack(self) -> bytes:
        """The catalog's bytes. In a thread."""
        self.lines.update((line.id, catalog.pack_line(line)) for line in self.changed.values())
        return catalog.pack(self.head, self.lines.values())


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Namespace:
    """A folder of logs. `mode` and `retention` are defaults for its logs."""

    _inventory: "Inventory"
    name: str
    mode: Durability
    plain_names: bool
    retention: Retention
    logs: dict[str, Log] = attrs.Factory(dict)
    adopted: Callable[[Log], None] | None = None
    """Called with each log that came from a store which this one follows."""

    def create(
        self,
        name: str,
        mode: Durability | None = None,
        reserved: bool = False,
        beside: Beside | None = None,
    ) -> tuple[Log, Ticket]:
        """Make a log; appends may follow at once, and all become durable in order.

        `beside`: appends to other logs about this one, made in the same batch: neither is ever there
        without the other. Raises StoreError if the name is taken (on a file system that folds case, also by
        one that differs only in case), and as `Log.append`.
        """
        return self._inventory.create(self, name, mode or self.mode, reserved, beside)

    def delete(self, name: str, beside: Sequence[tuple[Log, bytes, int]] = ()) -> Ticket:
        """Delete a log: its readers get LogDeleted at once, its files are removed when that is durable.

        The name is free at once; a log created with it again is another log. `beside`: appends to other logs
        about this, as for `Store.append_all`: all of it becomes durable, or nothing. So a start that finds
        one without the other knows that something is lost. Raises KeyError, StoreReadOnly, StoreClosed.
        """
        return self._inventory.delete(self, self.logs[name], beside)

    def change_mode(self, name: str, mode: Durability) -> Ticket | None:
        """Change a log's mode from here on; None if it has it already. Raises as `delete`."""
        return self._inventory.change_mode(self.logs[name], mode)


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Inventory:
    """All logs by id and name, and the catalog's lines of the durable ones."""

    _disk: Disk
    _files: OpenFiles
    _clock: Clock
    _journal_id: int
    _next_log_id: int
    namespaces: dict[str, Namespace] = attrs.Factory(dict)
    logs: dict[int, Log] = attrs.Factory(dict)
    """By id: logs whose CREATE is durable and whose DELETE is not."""
    folds_case: bool = False
    acks_shipped: Callable[[str, str], object] = lambda namespace, name: False
    """Whether appends to a log, by namespace and name, wait until they are shipped."""
    _lines: dict[int, bytes] = attrs.Factory(dict)  # the catalog's, packed
    _folders: dict[str, None] = attrs.Factory(dict)  # whose names changed since the last checkpoint
    _unclaimed: dict[str, list[Log]] = attrs.Factory(dict)  # by namespace that is not open yet
    _folded: set[tuple[str, str]] = attrs.Factory(set)
    _committer: Committer = attrs.field(init=False)
    _reader: Reader = attrs.field(init=False)

    def attach(self, committer: Committer, reader: Reader, lines: Iterable[LogLine]) -> None:
        """Set the parts that refer to each other, and add the logs that recovery found."""
        self._committer, self._reader = committer, reader
        for line in lines:
            path = f"{line.namespace}/{line.file}"
            mode = self._acknowledging(line.namespace, line.name, Durability.parse(line.mode))
            log = Log(
                committer,
                reader,
                line.id,
                line.namespace,
                line.name,
                path,
                mode,
                line.created_ms,
                line.first,
                line.end,
                local=line.local,
            )
            self.logs[log.id] = log
            self._lines[log.id] = catalog.pack_line(line)
            self._unclaimed.setdefault(line.namespace, []).append(log)
            self._folded.add(_fold(log))

    def namespace(
        self, name: str, mode: Durability, plain_names: bool, retention: Retention | None
    ) -> Namespace:
        found = self.namespaces.get(name)
        if found is None:
            if not name or name[0] == "." or not name.isascii() or catalog.file_name(name) != name:
                raise ValueError(f"not a namespace's name: {name!r}")
            self._disk.make_folder(name)
            self._folders[""] = None
            found = self.namespaces[name] = Namespace(self, name, mode, plain_names, retention or KEEP_ALL)
            found.logs.update((log.name, log) for log in self._unclaimed.pop(name, ()))
        return found

    def has_log(self, namespace: str, name: str) -> bool:
        found = self.namespaces.get(namespace)
        if found is not None:
            return name in found.logs
        return any(log.name == name for log in self._unclaimed.get(namespace, ()))

    def all_logs(self) -> list[Log]:
        return list(self.logs.values())

    def retention_of(self, log: Log) -> Retention:
        if log.retention is not None:
            return log.retention
        namespace = self.namespaces.get(log.namespace)
        return KEEP_ALL if namespace is None else namespace.retention

    # -- calls of namespaces

    def create(
        self, namespace: Namespace, name: str, mode: Durability, reserved: bool, beside: Beside | None
    ) -> tuple[Log, Ticket]:
        if name in namespace.logs:
            raise StoreError(f"there is a log {namespace.name}/{name} already")
        if self._committer.full and not reserved:
            raise StoreFull("the file system is short of space")
        file = name if namespace.plain_names else catalog.file_name(name)
        path, made_ms = f"{namespace.name}/{file}", self._clock.wall_ms()
        mode = self._acknowledging(namespace.name, name, mode)
        log = Log(self._committer, self._reader, self._next_log_id, namespace.name, name, path, mode, made_ms)
        if self.folds_case and _fold(log) in self._folded:
            raise StoreError(f"the file system takes {name!r} for another log's name")
        parts = () if beside is None else beside(log)
        waits_for = log.mode.waits_for
        if parts:  # as `Committer.append_all`
            waits_for = min(waits_for, Mode.SYNCED)
        ticket = self._add(namespace, log, waits_for, parts)
        if parts:
            _, ticket = self._committer.append_all(parts, reserved=True)
        return log, ticket

    def _add(
        self, namespace: Namespace, log: Log, waits_for: Mode, beside: Sequence[tuple[Log, bytes, int]]
    ) -> Ticket:
        log.fresh, log.created_lsn = True, sys.maxsize
        body = catalog.pack_create(line_of(log))
        ticket = self._committer.add(Change(EntryKind.CREATE, log, body=body), waits_for, beside)
        self._next_log_id = max(self._next_log_id, log.id + 1)
        namespace.logs[log.name] = log
        self._folded.add(_fold(log))
        return ticket

    def adopt(self, line: LogLine) -> Log:
        """Make a log of another store, with its id. Raises as `create`."""
        mode = Durability.parse(line.mode)
        namespace = self.namespace(line.namespace, mode, False, None)
        if line.name in namespace.logs:
            raise StoreError(f"there is a log {line.namespace}/{line.name} already")
        path = f"{line.namespace}/{line.file}"
        log = Log(
            self._committer, self._reader, line.id, line.namespace, line.name, path, mode, line.created_ms
        )
        self._add(namespace, log, log.mode.waits_for, ())
        if namespace.adopted is not None:
            call(namespace.adopted, log)
        return log

    def claim(self, log: Log) -> None:
        """Open the log's namespace, if nothing that runs has."""
        if log.namespace not in self.namespaces:
            self.namespace(log.namespace, log.mode, False, None)

    def delete(self, namespace: Namespace, log: Log, beside: Sequence[tuple[Log, bytes, int]]) -> Ticket:
        ticket = self._committer.add(Change(EntryKind.DELETE, log), _of_change(log), beside)
        if beside:  # `add` has left room for it in this batch
            _, ticket = self._committer.append_all(beside, reserved=True)
        log.deleted = True
        log.pending = None
        del namespace.logs[log.name]
        self._folded.discard(_fold(log))
        for watcher in tuple(log.watchers):
            call(watcher, log)
        return ticket

    def change_mode(self, log: Log, mode: Durability) -> Ticket | None:
        if mode == log.mode:
            return None
        change = Change(EntryKind.MODE, log, body=str(mode).encode(), before=log.mode)
        ticket = self._committer.add(change, _of_change(log))
        log.mode = self._acknowledging(log.namespace, log.name, mode)
        log.pending = None
        return ticket

    def _acknowledging(self, namespace: str, name: str, mode: Durability) -> Durability:
        """The mode, with what its tickets wait for in this run."""
        return attrs.evolve(mode, shipped=True) if self.acks_shipped(namespace, name) else mode

    # -- calls of the committer

    def changed(self, change: Change) -> None:
        """The change is durable: the next catalog has it."""
        log = change.log
        if change.kind is EntryKind.CREATE:
            self.logs[log.id] = log
            log.created_lsn = self._committer.journal.position
            self._committer.tails.dirty[log] = None
            self._folders[log.namespace] = None
        elif change.kind is EntryKind.DELETE:
            self.logs.pop(log.id, None)
            self._lines.pop(log.id, None)
            self._folders[log.namespace] = None
            self._committer.tails.drop(log)
            self._reader.forget(log)
            self._files.forget(log.file)
            self._files.forget(log.index_file)
        elif change.kind is EntryKind.FIRST:
            log.first_kept = max(log.first_kept, change.offset)
            self._committer.tails.dirty[log] = None
        else:
            log.mode_kept = Durability.parse(change.body.decode())
            self._committer.tails.dirty[log] = None

    def undone(self, change: Change) -> None:
        """The change was rolled back: all is as before."""
        log = change.log
        logs = self.namespaces[log.namespace].logs
        if change.kind is EntryKind.CREATE:
            log.deleted = True
            if logs.get(log.name) is log:
                del logs[log.name]
            self._folded.discard(_fold(log))
        elif change.kind is EntryKind.DELETE:
            log.deleted = False
            logs[log.name] = log
            self._folded.add(_fold(log))
        elif change.kind is EntryKind.FIRST:
            assert isinstance(change.before, int)
            log.first = change.before
        elif change.kind is EntryKind.MODE:
            assert isinstance(change.before, Durability)
            log.mode = change.before
            log.pending = None

    # -- calls of checkpoints

    def snapshot(self, replay_lsn: int, changed: Iterable[Log], clean: bool) -> CatalogSnapshot:
        """The catalog as of now. `changed`: logs that changed since the last snapshot."""
        head = Catalog(self._journal_id, replay_lsn, self._next_log_id, self._clock.wall_ms(), clean, ())
        folders, self._folders = self._folders, {}
        lines = {log: line_of(log) for log in changed}
        folders |= dict.fromkeys(log.namespace for log in lines)  # a file is made with its first bytes
        return CatalogSnapshot(head, self._lines.copy(), lines, folders)

    def written(self, snapshot: CatalogSnapshot) -> None:
        """The snapshot is on the disk."""
        for log, line in snapshot.changed.items():
            if log.id in self.logs:
                self._lines[log.id] = snapshot.lines[log.id]
                log.local_kept = max(log.local_kept, line.local)

    def take_back(self, snapshot: CatalogSnapshot) -> None:
        """The snapshot did not get to the disk: what it had is changed as before."""
        self._folders |= snapshot.folders
        dirty = self._committer.tails.dirty
        dirty |= dict.fromkeys(log for log in snapshot.changed if log.id in self.logs)


def line_of(log: Log) -> LogLine:
    """The log's line for the next catalog."""
    file, mode = log.path.removeprefix(log.namespace + "/"), str(log.mode_kept)
    first, end = log.first_kept, log.visible
    local = log.local if log.local > first else 0
    return LogLine(log.id, log.namespace, log.name, file, mode, log.created_ms, first, end, local)


def _of_change(log: Log) -> Mode:
    """What the ticket of a change of the catalog waits for."""
    return min(log.mode.waits_for, Mode.SYNCED)


def _fold(log: Log) -> tuple[str, str]:
    return log.namespace, log.file.path.casefold()


@attrs.frozen
class LogSnapshot:
    """A log as of what was visible. Its bytes up to `line.end` never change, except by retention and
    deletion.

    `entries`: those that the index file lacks. `tail`: the last bytes, which the log file lacks. `log`: tells
    later whether it was deleted, and its first offset.
    """

    log: Log
    line: LogLine
    entries: tuple[IndexEntry, ...]
    tail: bytes


def log_snapshot(log: Log) -> LogSnapshot:
    """Call between two commits, in the trio thread: then everything visible is indexed."""
    entries = [*log.closed_entries, log.open_entry] if log.open_entry is not None else log.closed_entries
    return LogSnapshot(log, line_of(log), tuple(entries), bytes(log.tail))
