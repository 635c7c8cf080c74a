"""What the machine serves: protocols and their settings, small enough for what is rare to happen often."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import dmp.queue_log
import dmp.row
import dms.engine
import dms.expiry
import dms.jobs
import dms.queue_log
import dms.settings
from dmp.plugin import plugin as dmp_plugin
from dmp.settings import DmpSettings, Users
from dms.plugin import plugin as dms_plugin
from dms.settings import DmsSettings, QueueSettings
from logmq.plugin import plugin as logmq_plugin
from logmq.settings import LogmqSettings, TopicSettings
from shared import schedules, turns
from shared.plugin import Plugin
from shared.queues import core
from shared.storage import log_writer
from shared.storage.settings import Durability
from tests.support.dms_model import SET, Fate
from tests.support.turns import SLICES, look_clock
from tests.trials.sim.fault_profiles import FaultProfile
from tests.trials.sim.schedules import LOOK_MS

INTERVAL = Durability.parse("interval:50ms")
TOPICS = {
    "i*": TopicSettings(durability=INTERVAL),
    "n*": TopicSettings(durability=Durability.parse("none")),
}

Served = Sequence[tuple[Plugin, Any]]


def served(chance: random.Random, profile: FaultProfile, protocols: Sequence[str]) -> Served:
    every: dict[str, tuple[Plugin, Any]] = {
        "logmq": (
            logmq_plugin,
            LogmqSettings(
                topics={**TOPICS, "copy-*": TopicSettings(retention_bytes=profile.copy_retention_bytes)}
            ),
        ),
        "dms": (
            dms_plugin,
            DmsSettings(
                depth=chance.choice((20, 10_000)),
                consume_seconds=chance.choice((0.05, 0.5)),
                hot_bytes=chance.choice(profile.hot_bytes),
                durability=Durability.parse(chance.choice(profile.dms_modes)),
                queues={
                    **{f"{name}*": QueueSettings(**fate.options) for name, fate in SET.items()},
                    "*": QueueSettings(**Fate().options),
                },
            ),
        ),
    }
    if "dmp" in protocols:
        every["dmp"] = (
            dmp_plugin,
            DmpSettings(users=Users.parse("sim:sim"), hot_bytes=chance.choice(profile.hot_bytes)),
        )
    return [every[name] for name in protocols]


@contextmanager
def small_steps(step_bytes: int) -> Iterator[None]:
    """Within it tails are written to logs' files in pieces of that size; really they are of 4 MiB."""
    with patch.multiple(log_writer, STEP_BYTES=step_bytes):
        yield


@contextmanager
def small_queues(snapshot_bytes: int) -> Iterator[None]:
    """Within it queues have snapshots, and are read back, after far less than they are meant for.

    What is dead and has no place is tried again after a moment of these short lives.
    """
    with (
        patch.multiple(turns.CLOCK, now=look_clock(SLICES)),
        patch.multiple(dms.queue_log, SNAPSHOT_BYTES=snapshot_bytes),
        patch.multiple(core, HOT_LEAST_BYTES=500),
        patch.multiple(dms.engine, POSITION_BYTES=500, FETCH_BYTES=2000),
        patch.multiple(dms.expiry, TRY_AGAIN_MS=20, RETURNED_MAX=12, RUN_MOST=5),
        patch.multiple(dms.settings, ACK_MS_MIN=1),
        patch.multiple(dms.jobs, TRY_AGAIN_MS=20, CLOCK_LOOK_MS=LOOK_MS),
        patch.multiple(dmp.queue_log, SLACK_BYTES=1000, READ_BYTES=1500),
        patch.multiple(dmp.row, HOT_LEAST_BYTES=500),
        patch.multiple(schedules, EVERY_MS_MIN=1),
    ):
        yield
