"""What the machine serves: protocols and their settings, small enough for what is rare to happen often."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import dms.keeper
import dms.mortality
import dms.opening
import dms.reading
from dms.plugin import plugin as dms_plugin
from dms.settings import DmsSettings, QueueSettings
from logmq.plugin import plugin as logmq_plugin
from logmq.settings import LogmqSettings, TopicSettings
from shared.plugin import Plugin
from shared.storage.settings import Durability
from tests.trials.sim.dms_fates import SET
from tests.trials.sim.fault_profiles import FaultProfile

INTERVAL = Durability.parse("interval:50ms")
LOGMQ = LogmqSettings(
    topics={
        "i*": TopicSettings(durability=INTERVAL),
        "n*": TopicSettings(durability=Durability.parse("none")),
    }
)

Served = Sequence[tuple[Plugin, Any]]


def served(chance: random.Random, profile: FaultProfile, protocols: Sequence[str]) -> Served:
    every: dict[str, tuple[Plugin, Any]] = {
        "logmq": (logmq_plugin, LOGMQ),
        "dms": (
            dms_plugin,
            DmsSettings(
                depth=chance.choice((20, 10_000)),
                consume_seconds=chance.choice((0.05, 0.5)),
                hot_bytes=chance.choice(profile.hot_bytes),
                durability=Durability.parse(chance.choice(profile.dms_modes)),
                queues={f"{name}*": QueueSettings(**fate.options) for name, fate in SET.items()},
            ),
        ),
    }
    return [every[name] for name in protocols]


@contextmanager
def small_queues(snapshot_bytes: int) -> Iterator[None]:
    """Within it queues have snapshots, and are read back, after far less than they are meant for.

    What is dead and has no place is tried again after a moment of these short lives.
    """
    smaller = {
        "SNAPSHOT_BYTES": snapshot_bytes,
        "HOME_BYTES": 500,
        "HOT_LEAST_BYTES": 500,
    }
    sooner = {"TRY_AGAIN_MS": 20, "BACK_MAX": 12, "DEAD_AT_ONCE": 5}
    with (
        patch.multiple(dms.keeper, **smaller),
        patch.multiple(dms.reading, FETCH_BYTES=2000),
        patch.multiple(dms.opening, HOME_BYTES=smaller["HOME_BYTES"]),
        patch.multiple(dms.mortality, **sooner),
    ):
        yield
