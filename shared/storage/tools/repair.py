"""`brokers fsck --repair`: put right what can be, and throw no data away.

It does what a start does, and makes indexes whole at once, which a server does as they are read. Bytes that
do not match their CRC stay as they are, and go on being an error to read.
"""

from pathlib import Path

import attrs

from shared.storage import catalog, format, index, recovery
from shared.storage.disk import Disk, opened, replace_file
from shared.storage.files import DamagedPlaces
from shared.storage.lock import FolderLock
from shared.storage.os_disk import OsDisk, SystemClock
from shared.storage.settings import StorageSettings
from shared.storage.tools.fsck import FsckReport, check
from shared.storage.tools.view import FolderView, LogView, check_format, look


def repair(folder: Path) -> FsckReport:
    """Repair a folder that no broker uses, and check it. What is done is logged.

    Raises StoreInUse, StoreFormat for a folder that is not ours or newer, and OSError.
    """
    with OsDisk(folder, create=False) as disk:
        check_format(disk, folder, may_be_damaged=True)  # before a lock file is left in a stranger's folder
        with FolderLock.take(folder):
            if not recovery.format_number(disk):  # a start does not dare to, where CATALOG is lost, too
                replace_file(disk, format.FORMAT_PATH, format.FORMAT_TEXT % format.FORMAT_NUMBER)
            recovered = recovery.recover(disk, SystemClock(), StorageSettings().sync_all_logs)
            found = catalog.read(disk)
            assert found is not None
            # The next start must not look for a journal.
            replace_file(disk, catalog.PATH, attrs.evolve(found, clean=True).pack())
            view = look(disk)
            for log in view.sorted_logs():
                _make_index_whole(disk, view, log, recovered.in_files)
    return check(folder)


def _make_index_whole(disk: Disk, view: FolderView, log: LogView, damage: DamagedPlaces) -> None:
    """What no good entry covers is indexed as found, unverified."""
    found = view.read_index(log)
    kept = [entry for entry in found.entries if entry is not None] if found is not None else []
    try:
        with opened(disk, log.log_path) as fd:
            whole, filled = index.whole(disk, fd, kept, log.first, log.end, log.created_ms)
    except FileNotFoundError:
        return
    if found is None and not whole:
        return  # an empty log needs none
    if found is None or filled or None in found.entries or not view.header_is_good(log):
        replace_file(disk, log.index_path, index.pack_index(log.id, log.created_ms, whole))
        damage.in_index(log.id, log.index_path, 0, filled)
