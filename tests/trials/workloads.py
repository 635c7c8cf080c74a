"""The protocols under trial: for each its server's settings, and a folder that knows its load and judge."""

import random
from collections.abc import Callable, Mapping, Sequence

import attrs

from brokers import plugins
from tests.trials.dmp_folder import DmpFolder, DmpWork, dmp_settings
from tests.trials.dmp_ledger import DmpBook
from tests.trials.dms_folder import DmsFolder, DmsWork, dms_settings
from tests.trials.dms_ledger import DmsBook
from tests.trials.folder import Folder, settings
from tests.trials.power_folder import PowerFolder
from tests.trials.pubsub_folder import PubsubFolder, PubsubWork, pubsub_settings
from tests.trials.pubsub_judge import PubsubBook
from tests.trials.recorded_folder import RecordedFolder, RecordedWork, recorded_settings
from tests.trials.recorded_judge import RecordedBook


@attrs.define(eq=False)
class DmsPowerFolder(DmsWork, PowerFolder):
    """DMS on a volume."""

    book: DmsBook = attrs.field(factory=DmsBook)


@attrs.define(eq=False)
class PubsubPowerFolder(PubsubWork, PowerFolder):
    """Pub/sub on a volume."""

    book: PubsubBook = attrs.field(factory=PubsubBook)


@attrs.define(eq=False)
class RecordedPowerFolder(RecordedWork, PowerFolder):
    """A recorded log on a volume."""

    book: RecordedBook = attrs.field(factory=RecordedBook)


@attrs.define(eq=False)
class DmpPowerFolder(DmpWork, PowerFolder):
    """DMP on a volume."""

    book: DmpBook = attrs.field(factory=DmpBook)


@attrs.frozen
class Work:
    """One protocol. `settings`: TOML for the modes of a folder's logs, the rest drawn."""

    settings: Callable[[Sequence[str], random.Random], str]
    folder: type[Folder]
    power_folder: type[PowerFolder]


WORKS: Mapping[str, Work] = {
    "logmq": Work(settings, Folder, PowerFolder),
    "dms": Work(dms_settings, DmsFolder, DmsPowerFolder),
    "dmp": Work(dmp_settings, DmpFolder, DmpPowerFolder),
    "pubsub": Work(pubsub_settings, PubsubFolder, PubsubPowerFolder),
    "kqmsgq": Work(recorded_settings, RecordedFolder, RecordedPowerFolder),
}


def chosen(protocol: str) -> Sequence[str]:
    """The protocols to try: that one, or with `all` every one that is installed."""
    if protocol != "all":
        return [protocol]
    return [name for name in WORKS if name in plugins.names()]
