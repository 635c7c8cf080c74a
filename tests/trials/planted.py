"""The real server with a bug in it: trials must find it out, else they prove nothing."""

import time

from shared.storage.os_disk import OsDisk
from tests.trials.sim.bugs import BUGS, Change

UNSYNCED = "unsynced"
"""Every sync is left out: the control of the power trial. (A kill takes nothing that was only not synced.)"""
WALL = "wall clock "
"""With a Unix time in seconds behind it: no bug, but the moment at which the process believes to begin."""


def plant(bug: str) -> None:
    """For as long as this process lives: UNSYNCED, WALL, or one of the simulation's bugs by its name."""
    if bug.startswith(WALL):
        ahead_ns, clock = int(bug.removeprefix(WALL)) * 10**9 - time.time_ns(), time.time_ns
        changes: list[Change] = [
            (time, "time_ns", lambda: clock() + ahead_ns),
            (time, "time", lambda: (clock() + ahead_ns) / 1e9),
        ]
    elif bug == UNSYNCED:
        changes = [(OsDisk, name, _nothing) for name in ("sync_data", "sync_folder", "sync_all")]
    else:
        changes = BUGS[bug].changes()
    for owner, name, instead in changes:
        setattr(owner, name, instead)


def _nothing(self: OsDisk, *_: object) -> bool:
    """Say it is done."""
    return True
