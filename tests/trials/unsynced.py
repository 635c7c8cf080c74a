"""`brokers` with every sync left out: `python -m tests.trials.unsynced serve ...`.

The control of the power trial. A trial that this server passes would prove nothing.
"""

from brokers.__main__ import main
from shared.storage.os_disk import OsDisk


def _nothing(self: OsDisk, *_: object) -> bool:
    """Say it is done."""
    return True


if __name__ == "__main__":
    for name in ("sync_data", "sync_folder", "sync_all"):
        setattr(OsDisk, name, _nothing)
    main()
