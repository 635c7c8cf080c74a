"""Commits: the one piece of blocking work that makes durable what appenders filled.

A `Commit` takes some rounds (`shared.storage.rounds`) through the disk, in a thread or inline, and holds the
outcome; the `Committer` then shows it to the world. So everything here that blocks touches no shared state,
and everything that is shared is changed in the trio thread.
"""

from collections.abc import Sequence

import attrs

from shared.storage import index
from shared.storage.clock import Clock
from shared.storage.disk import Disk
from shared.storage.files import FileGone, OpenFiles
from shared.storage.format import BATCH_HEADER_BYTES, ENTRY_HEADER_BYTES, Kind, pack_entry
from shared.storage.journal import Journal, PoisonError, write_all, write_pieces
from shared.storage.log import UNKNOWN, Log
from shared.storage.rounds import Round, Run
from shared.storage.work import Work

_MANY_RUNS = 4
"""Of a commit in a thread: so many are written in one call."""
_APPEND = int(Kind.APPEND)  # looking a member up in its enum takes as long as packing the entry


@attrs.define(eq=False)
class Commit:
    """Some rounds on their way to the disk. `run()` blocks, in whatever thread; then the outcome is:

    the first `good` rounds are durable; `poison` or `error` says what became of the others. `direct_error`:
    runs around the journal were not written, in all rounds. What could not be written to a log's own file is
    in `unapplied` of its work.
    """

    rounds: list[Round]
    works: dict[Log, Work]
    journal: Journal
    disk: Disk
    files: OpenFiles
    clock: Clock
    now_ms: int
    room: int
    """So many handles that are opened may stay open."""
    sync_direct_first: bool
    """Some log has bytes around the journal that were never synced."""
    aside: bool = False
    """It runs in a thread, beside the loop."""
    good: int = 0
    error: OSError | None = None
    poison: PoisonError | None = None
    direct_error: OSError | None = None
    sync_seconds: float = 0.0
    synced: bool = False
    batches: int = 0
    direct_synced: set[Log] = attrs.Factory(set)

    def run(self) -> None:
        """Write, sync, then fill the logs' files. What came of it stands in the fields: only bugs raise."""
        try:
            if self.sync_direct_first:
                self._sync_direct()
            for round_ in self.rounds:
                self._write(round_)
                self.good += 1
        except OSError as error:
            self.error = error
        except PoisonError as error:
            self.poison = error
            self.good = 0
            return
        good = self.rounds if self.good == len(self.rounds) else self.rounds[: self.good]
        try:
            for round_ in good:
                if round_.sync:
                    self._sync()
                    break
        except PoisonError as error:
            self.poison = error
            self.good = 0
            return
        self._apply(good)

    def _sync_direct(self) -> None:
        """What went around the journal must be safe before anything about it is in the journal."""
        for round_ in self.rounds:
            logs = {run.log for run in round_.runs.values() if run.journaled}
            logs.update(change.log for change in round_.changes if change.kind is Kind.FIRST)
            for log in logs:
                if log.direct_dirty and not log.file.gone and log not in self.direct_synced:
                    work = self.works[log]
                    self._open(work)
                    try:
                        self._sync_by_name(work)
                    except FileGone:
                        continue
                    except OSError as error:
                        raise PoisonError(f"{log.file.path} could not be synced") from error
                    self.direct_synced.add(log)

    def _sync_by_name(self, work: Work) -> None:
        """Recovery finds these bytes by the files' names, and trusts them by their entries."""
        self.disk.sync_data(work.fd)
        index_fd = self.files.open(work.log.index_file)
        try:
            self.disk.sync_data(index_fd)
        finally:
            self.disk.close(index_fd)
        self.disk.sync_folder(work.log.namespace)
        self.disk.sync_folder("")

    def _write(self, round_: Round) -> None:
        """One round as one batch of the journal. Raises OSError where nothing of it stands; PoisonError."""
        if round_.broken is not None:
            raise PoisonError("what was promised to a batch is not in it") from round_.broken
        parts: list[bytes | memoryview] = []
        size = 0
        entries = 0
        for change in round_.changes:
            parts.append(pack_entry(change.kind, change.log.id, change.offset, len(change.body)))
            parts.append(change.body)
            size += ENTRY_HEADER_BYTES + len(change.body)
            entries += 1
        places: list[tuple[Run, int, int]] = []
        for run in round_.runs.values():
            if run.journaled:
                length = run.end - run.offset
                parts.append(pack_entry(_APPEND, run.log.id, run.offset, length, sum(run.counts)))
                parts += run.chunks
                size += ENTRY_HEADER_BYTES
                places.append((run, size, length))
                size += length
                entries += 1
        if not entries:
            return
        batch = memoryview(self.journal.write(parts, entries, size, self.now_ms))
        for run, start, length in places:
            start += BATCH_HEADER_BYTES
            run.written = batch[start : start + length]
        self.batches += 1

    def _sync(self) -> None:
        began = self.clock.monotonic()
        self.journal.sync()
        self.sync_seconds = self.clock.monotonic() - began
        self.synced = True

    # -- behind the sync: the logs' own files

    def _apply(self, good: list[Round]) -> None:
        """What a log's file does not take stays in memory, and is tried again: it is in the journal.

        What goes around the journal is in the file or nowhere: a failure is `direct_error`.
        """
        for round_ in good:
            for change in round_.changes:
                if change.kind is Kind.DELETE:
                    self._remove(change.log)
        runs = [run for round_ in good for run in round_.runs.values()]
        journaled = [run for run in runs if run.journaled]
        if self.aside and len(journaled) >= _MANY_RUNS:
            self._apply_many(journaled)
        else:
            for run in journaled:
                self._apply_journaled(run)
        direct = [run for run in runs if not run.journaled]
        if direct:
            try:
                for run in direct:
                    self._apply_direct(run)
            except OSError as error:
                self.direct_error = error
            else:
                self._write_direct_entries()

    def _remove(self, log: Log) -> None:
        for file in (log.index_file, log.file):
            try:
                self.files.remove(file)
            except OSError:
                pass  # the next start removes it: the journal says that the log is gone

    def _apply_journaled(self, run: Run) -> None:
        work = self.works[run.log]
        data = run.written
        assert data is not None
        run.written = None
        if run.log.unapplied or work.unapplied is not None:
            self._keep_in_memory(work, run, data)
        else:
            try:
                if work.fd < 0:
                    self._open(work)
                write_all(self.disk, work.fd, data, run.offset, passing=run.log.background)
            except FileGone:
                return
            except OSError:
                self._keep_in_memory(work, run, data)
            if not work.kept:
                self._let_go(work)
        self._index(work, run)

    def _apply_many(self, runs: Sequence[Run]) -> None:
        """In one call, which spares this thread a wait for the interpreter at each file."""
        ready: list[Run] = []
        writes: list[tuple[int, memoryview, int]] = []
        for run in runs:
            work = self.works[run.log]
            if not self._is_plain(run.log, work):
                self._apply_journaled(run)
            else:
                assert run.written is not None
                ready.append(run)
                writes.append((work.fd, run.written, run.offset))
        for run, (_, data, _), taken in zip(ready, writes, self.disk.write_many(writes), strict=True):
            work = self.works[run.log]
            if taken != len(data) or work.unapplied is not None:
                self._apply_journaled(run)  # writes it again, whole, or knows what to do about the error
            else:
                run.written = None
                self._index(work, run)

    def _is_plain(self, log: Log, work: Work) -> bool:
        """Whether its file is open, and stays so, has all that came before, and stays in memory."""
        if log.background or log.unapplied or work.unapplied is not None:
            return False
        try:
            if work.fd < 0:
                self._open(work)
        except (FileGone, OSError):
            return False  # opened again by itself, where the error is dealt with
        return work.kept

    def _keep_in_memory(self, work: Work, run: Run, data: memoryview) -> None:
        if work.unapplied is None:
            work.unapplied = []
        work.unapplied.append((run.offset, bytes(data)))

    def _apply_direct(self, run: Run) -> None:
        work = self.works[run.log]
        try:
            self._open(work)
            write_pieces(self.disk, work.fd, run.chunks, run.offset, passing=run.log.background)
        except FileGone:
            return
        finally:
            if not work.kept:
                self._let_go(work)
        work.direct = True
        self._index(work, run)

    def _index(self, work: Work, run: Run) -> None:
        if work.entries_written == UNKNOWN:
            try:
                found = index.load_end(self.disk, self.files, work.log, work.entries_start)
                work.entries_written, work.last_ms = found[0], max(work.last_ms, found[1])
            except FileGone:
                return
            except OSError:
                if not run.journaled:
                    raise
                # The entries wait in memory; reading the index again is tried when they are written.
        closed, work.open_entry = index.extend(
            work.open_entry, work.last_ms, run.offset, run.chunks, run.counts, self.now_ms
        )
        if closed:
            work.closed = [*work.closed, *closed]
        if self.now_ms > work.last_ms:
            work.last_ms = self.now_ms

    def _write_direct_entries(self) -> None:
        """Bytes around the journal are found again by their entries, so those go with them, open or not."""
        for work in self.works.values():
            if work.direct:
                all_entries = [*work.waiting_entries, *work.closed]
                if work.open_entry is not None:
                    all_entries.append(work.open_entry)
                try:
                    if work.index_fd < 0:
                        work.index_fd = index.open_for_writing(self.disk, self.files, work.log)
                    index.write_entries(
                        self.disk, work.index_fd, work.log.id, work.entries_written, all_entries
                    )
                except FileGone:
                    pass
                except OSError as error:
                    self.direct_error = error
                    break
                finally:
                    if not work.kept:
                        self._let_go(work)
        if self.direct_error is not None:
            self._take_back_direct_entries()

    def _take_back_direct_entries(self) -> None:
        """Else entries of refused bytes stay, and do not match what is written there next."""
        for work in self.works.values():
            if work.direct:
                log = work.log
                before = work.waiting_entries
                if log.open_entry is not None:
                    before = [*before, log.open_entry]
                try:
                    if work.index_fd < 0:
                        work.index_fd = index.open_for_writing(self.disk, self.files, log)
                    index.write_entries(self.disk, work.index_fd, log.id, work.entries_written, before)
                    self.disk.truncate(
                        work.index_fd, index.entry_position(work.entries_written + len(before))
                    )
                except OSError as error:
                    self.poison = PoisonError(f"{log.index_file.path} could not be written")
                    self.poison.__cause__ = error

    def _open(self, work: Work) -> None:
        if work.fd < 0:
            work.fd = open_log(self.files, work.log, work.made)
            work.made = True
            work.kept = self.room > 0
            self.room -= 1

    def _let_go(self, work: Work) -> None:
        """There are more logs in this commit than handles that may stay open."""
        if work.fd >= 0:
            self.disk.close(work.fd)
            work.fd = UNKNOWN
        if work.index_fd != work.pinned_index_fd:
            self.disk.close(work.index_fd)
            work.index_fd = work.pinned_index_fd


def open_log(files: OpenFiles, log: Log, made: bool = False) -> int:
    """A descriptor of the log's own file, made if it is not there. Raises FileGone and OSError."""
    if log.fresh and not made:
        return files.make(log.file, f"{log.file.path}.stray-{log.id}")
    return files.open(log.file, create=True)
