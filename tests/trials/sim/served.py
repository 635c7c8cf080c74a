"""What the machine serves: protocols and their settings, small enough for what is rare to happen often."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import dms.keeper
from dms.plug import plug as dms_plug
from dms.settings import DmsSettings
from logmq.plug import plug as logmq_plug
from logmq.settings import LogmqSettings, TopicSettings
from shared.plug import Plug
from shared.storage.settings import Durability
from tests.trials.sim.tempers import Temper

INTERVAL = Durability.parse("interval:50ms")
LOGMQ = LogmqSettings(
    topics={
        "i*": TopicSettings(durability=INTERVAL),
        "n*": TopicSettings(durability=Durability.parse("none")),
    }
)

Served = Sequence[tuple[Plug, Any]]


def served(chance: random.Random, temper: Temper, protocols: Sequence[str]) -> Served:
    every: dict[str, tuple[Plug, Any]] = {
        "logmq": (logmq_plug, LOGMQ),
        "dms": (
            dms_plug,
            DmsSettings(
                depth=chance.choice((20, 10_000)),
                consume_seconds=chance.choice((0.05, 0.5)),
                hot_bytes=chance.choice(temper.hot_bytes),
                durability=Durability.parse(chance.choice(temper.dms_modes)),
            ),
        ),
    }
    return [every[name] for name in protocols]


@contextmanager
def small_queues(snapshot_bytes: int) -> Iterator[None]:
    """Within it queues have snapshots, and are read back, after far less than they are meant for."""
    smaller = {
        "SNAPSHOT_BYTES": snapshot_bytes,
        "HOME_BYTES": 500,
        "FETCH_BYTES": 2000,
        "HOT_LEAST_BYTES": 500,
    }
    with patch.multiple(dms.keeper, **smaller):
        yield
