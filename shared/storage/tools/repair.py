"""`brokers fsck --repair`: put right what can be, and throw nothing away.

Whatever is replaced is first copied, and whatever has no owner is moved, to `quarantine/<time>/` in the data
folder. The log files are not touched, but for what the journal holds of them, as at any start. Bytes that do
not match their CRC stay as they are, and go on being an error to read.
"""

import time
from contextlib import suppress
from pathlib import Path

import attrs

from shared.storage import catalog as catalog_file
from shared.storage import format, index, recovery, replay
from shared.storage.catalog import Catalog
from shared.storage.disk import Disk, copy_file, opened, replace_file
from shared.storage.lock import FolderLock
from shared.storage.os_disk import OsDisk, SystemClock
from shared.storage.rebuild import QUARANTINE, log_files, rebuild_catalog
from shared.storage.settings import StorageSettings
from shared.storage.tools.fsck import FsckReport, Severity, check, naming, orphans
from shared.storage.tools.view import DamagedFile, FolderView, LogView, check_format, look


def repair(folder: Path) -> FsckReport:
    """Repair a folder that no broker uses, and check it.

    The report is of the check afterwards, with what was done in `repairs`. Raises StoreInUse, StoreFormat for
    a folder that is not ours or newer, and OSError.
    """
    with OsDisk(folder, create=False) as disk:
        check_format(disk, folder, may_be_damaged=True)  # before a lock file is left in a stranger's folder
        with FolderLock.take(folder):
            mender = _Mender(disk, time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
            mender.format_and_catalog()
            mender.journal()
            view = look(disk)
            for log in view.sorted_logs():
                mender.index(view, log)
            mender.orphans(view)
    return attrs.evolve(check(folder), repairs=tuple(mender.done))


class _Mender:
    """`done`: what was done, in words."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.done: list[str] = []
        self._disk = disk
        self._clock = SystemClock()
        self._quarantine = f"{QUARANTINE}/{name}"

    def format_and_catalog(self) -> None:
        try:
            check_format(self._disk)
        except DamagedFile as error:
            self._replace(format.FORMAT_PATH, format.FORMAT_TEXT % format.FORMAT_NUMBER)
            self.done.append(f"{error}: written anew")
        try:
            found = catalog_file.read(self._disk)
        except ValueError:
            found = None
        if found is None:
            made = rebuild_catalog(self._disk, self._clock.wall_ms())
            # Replay makes logs anew whose CREATE it finds; with a hole in the journal it could lose some.
            if replay.scan(self._disk, made.journal_id, made.replay_lsn).damage:
                for namespace, name in log_files(self._disk):
                    self._copy_to_quarantine(f"{namespace}/{name}")
            self._replace(catalog_file.PATH, made.pack())
            self.done.append(f"CATALOG was missing or damaged: {len(made.logs)} logs found by their indexes")

    def journal(self) -> None:
        """Write the journal's records to the logs, as the next start would; then the journal is empty."""
        found = catalog_file.read(self._disk)
        if (
            found is not None
            and found.clean
            and not (recovery.has_gone_on(self._disk, found) or self._has_newer_logs(found))
        ):
            return
        recovered = recovery.recover(self._disk, self._clock, StorageSettings().sync_all_logs)
        if recovered.batches or recovered.damage:
            self.done.append(f"{recovered.batches} batches of the journal were put in place")
        if recovered.damage:
            self.done.append(naming("what a damaged place in the journal held is lost", recovered.lost_of))
        if recovered.torn_bytes:
            self.done.append(naming("an unfinished write at the journal's end was cut", recovered.torn_of))
        if recovered.is_journal_missing:
            self.done.append(recovery.MISSING)
        # The next start must not look for a journal.
        after = catalog_file.read(self._disk)
        assert after is not None
        replace_file(self._disk, catalog_file.PATH, attrs.evolve(after, clean=True).pack())

    def _has_newer_logs(self, found: Catalog) -> bool:
        """Whether there are files of logs that the catalog lacks: a start finds those again."""
        strays = [finding.path for finding in orphans(look(self._disk)) if finding.path.endswith(".idx")]
        owners = [index.owner(self._disk, path) for path in strays]
        return any(owner is not None and owner >= found.next_log_id for owner in owners)

    def index(self, view: FolderView, log: LogView) -> None:
        """Complete an index: what no good entry covers is indexed as found, unverified."""
        found = view.read_index(log)
        kept = [entry for entry in found.entries if entry is not None] if found is not None else []
        try:
            with opened(self._disk, log.log_path) as fd:
                whole, filled = index.whole(
                    self._disk, fd, kept, log.first, log.end, log.created_ms, log.local
                )
        except FileNotFoundError:
            return
        if found is None and not whole:
            return  # an empty log needs none
        if found is None or filled or None in found.entries or not view.header_is_good(log):
            self._replace(log.index_path, index.pack_index(log.id, log.created_ms, whole))
            self.done.append(f"{log.index_path}: made whole, {filled} bytes unverified")

    def orphans(self, view: FolderView) -> None:
        """Move files away that no log owns."""
        namespaces = {log.namespace for log in view.logs.values()}
        for finding in list(orphans(view)):
            if finding.severity is Severity.WARNING and finding.path.partition("/")[0] in namespaces:
                self._disk.rename(finding.path, self._quarantined(finding.path))
                self._disk.sync_folder(finding.path.partition("/")[0])
                self.done.append(f"{finding.path}: moved to {self._quarantine}")

    # -- nothing is thrown away

    def _quarantined(self, path: str) -> str:
        """The quarantine's path for `path`; its folder is made."""
        folder = ""
        for part in (*self._quarantine.split("/"), *path.split("/")[:-1]):
            folder = f"{folder}/{part}" if folder else part
            self._disk.make_folder(folder)
        return f"{self._quarantine}/{path}"

    def _copy_to_quarantine(self, path: str) -> None:
        with suppress(FileNotFoundError):
            copy_file(self._disk, path, self._quarantined(path))

    def _replace(self, path: str, data: bytes) -> None:
        """Keep the old file, then put a whole new one in its place."""
        self._copy_to_quarantine(path)
        replace_file(self._disk, path, data)
