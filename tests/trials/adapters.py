"""The protocols under trial, and a server of one of them."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from brokers import plugins
from tests.trials.dmp_folder import DmpAdapter
from tests.trials.dms_folder import DmsAdapter
from tests.trials.folder import Adapter, storage_settings
from tests.trials.jobs_folder import JobsAdapter
from tests.trials.logmq_folder import LogmqAdapter
from tests.trials.pubsub_folder import PubsubAdapter
from tests.trials.recorded_folder import RecordedAdapter
from tests.trials.serving import TrialServer

ADAPTERS: Mapping[str, type[Adapter]] = {
    "logmq": LogmqAdapter,
    "dms": DmsAdapter,
    "jobs": JobsAdapter,
    "dmp": DmpAdapter,
    "pubsub": PubsubAdapter,
    "kqmsgq": RecordedAdapter,
}


def chosen(protocol: str) -> Sequence[str]:
    """The works to try, a protocol's or its jobs: that one, or with `all` every one that is installed."""
    if protocol != "all":
        return [protocol]
    return [name for name, kind in ADAPTERS.items() if kind.protocol in plugins.names()]


def adapter_on(
    protocol: str,
    modes: Sequence[str],
    source: random.Random,
    place: Path,
    data: Path,
    *,
    bug: str = "",
    load_factor: float = 1.0,
) -> Adapter:
    """On a server that is not started yet; its settings are drawn, and written to `place`."""
    kind = ADAPTERS[protocol]
    settings = place / "brokers.toml"
    settings.write_text("\n".join([*storage_settings(source), *kind.settings(modes, source), ""]))
    server = TrialServer(place, data, "--enable", kind.protocol, "--config", str(settings), bug=bug)
    return kind(server, modes, source, load_factor=load_factor)
