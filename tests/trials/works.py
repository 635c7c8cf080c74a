"""The protocols under trial: for each its server's settings, and a folder that knows its load and judge."""

import random
from collections.abc import Callable, Mapping, Sequence

import attrs

from brokers import plugs
from tests.trials.dms_folder import DmsFolder, DmsWork, dms_settings
from tests.trials.dms_ledger import DmsBook
from tests.trials.folder import Folder, settings
from tests.trials.power_folder import PowerFolder
from tests.trials.pubsub_folder import PubsubFolder, pubsub_settings


@attrs.define(eq=False)
class DmsPowerFolder(DmsWork, PowerFolder):
    """DMS on a volume."""

    book: DmsBook = attrs.field(factory=DmsBook)


@attrs.frozen
class Work:
    """One protocol. `settings`: TOML for the modes of a folder's logs, the rest drawn. `power_folder`: None
    where it is only killed."""

    settings: Callable[[Sequence[str], random.Random], str]
    folder: type[Folder]
    power_folder: type[PowerFolder] | None = None


WORKS: Mapping[str, Work] = {
    "logmq": Work(settings, Folder, PowerFolder),
    "dms": Work(dms_settings, DmsFolder, DmsPowerFolder),
    "pubsub": Work(pubsub_settings, PubsubFolder),
}


def chosen(protocol: str, *, power: bool = False) -> Sequence[str]:
    """The protocols to try: that one, or with `all` every one that is installed (`power`: and can be cut)."""
    if protocol != "all":
        return [protocol]
    known = power_works() if power else WORKS
    return [name for name in known if name in plugs.names()]


def power_works() -> Mapping[str, type[PowerFolder]]:
    """Those whose power can be cut."""
    return {name: work.power_folder for name, work in WORKS.items() if work.power_folder is not None}
