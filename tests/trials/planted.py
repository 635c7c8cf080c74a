"""The real server with a bug in it: trials must find it out, else they prove nothing."""

from shared.storage.os_disk import OsDisk
from tests.trials.sim.bugs import BUGS

UNSYNCED = "unsynced"
"""Every sync is left out: the control of the power trial. (A kill takes nothing that was only not synced.)"""


def plant(bug: str) -> None:
    """For as long as this process lives: UNSYNCED, or one of the simulation's bugs by its name."""
    if bug == UNSYNCED:
        changes = [(OsDisk, name, _nothing) for name in ("sync_data", "sync_folder", "sync_all")]
    else:
        changes = BUGS[bug].changes()
    for owner, name, instead in changes:
        setattr(owner, name, instead)


def _nothing(self: OsDisk, *_: object) -> bool:
    """Say it is done."""
    return True
