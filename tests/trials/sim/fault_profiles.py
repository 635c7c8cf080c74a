"""What a run is mostly about: seeds differ in profile, so that what is rare in one kind of run is common in
another. A run that does a bit of everything finds less than runs that each do much of one thing.
"""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

EPISODES = MappingProxyType(
    {
        "produce": 8,
        "batches": 4,
        "walk": 3,
        "fetch": 3,
        "tail": 3,
        "group": 4,
        "delete": 2,
        "inquire": 1,
    }
)
DMS_EPISODES = MappingProxyType({"produce": 8, "consume": 8, "delete": 1, "inquire": 1})


@attrs.frozen
class FaultProfile:
    """Every field that is a tuple is a choice, drawn from by the seed.

    `topics`: names; those of modes `interval` and `none` begin with i and n (see model.py). `episodes`: what
    clients do, by weight. `endings`: of a life, weights of a power cut, a kill and a clean stop. `ends`: what
    ends it, and `end_kinds` before which operation of the disk (see disk.py). `faults`: of the disk.
    `protocols`: what is served, on one store; each has so many clients of its own.
    """

    protocols: tuple[str, ...] = ("logmq",)
    topics: tuple[str, ...] = ("abcin", "ab", "in")
    episodes: Mapping[str, int] = EPISODES
    queues: tuple[str, ...] = ("a", "ab", "abc")
    dms_episodes: Mapping[str, int] = DMS_EPISODES
    jobs: bool = False
    """DMS or AMQP serves jobs, and nothing else (`sim/jobs.py`, `sim/amqp_jobs.py`)."""
    dms_modes: tuple[str, ...] = ("always",)
    """Others promise less at a power cut, and the same at a kill."""
    hot_bytes: tuple[int, ...] = (0, 2000, 1 << 20)
    snapshot_bytes: tuple[int, ...] = (20_000, 1 << 20)
    clients: tuple[int, ...] = (2, 3, 4)
    lives: tuple[int, ...] = (1, 2, 3)
    wall_jumps_ms: tuple[int, ...] = (0, 0, 0, 5_000, -5_000, 7_200_000, -7_200_000)
    life_seconds: float = 0.2
    """Virtual, at most; a life of a hundred requests."""
    endings: tuple[int, int, int] = (6, 2, 1)
    ends: tuple[str, ...] = ("time", "operation", "kind", "answer", "sight")
    end_kinds: tuple[str, ...] = (
        "sync journal",
        "sync journal",
        "write journal",
        "sync",
        "sync_folder",
        "rename",
        "unlink",
        "create",
    )
    faults: tuple[str, ...] = ("", "", "", "", "", "sync", "sync", "errors", "full", "limit", "read")
    sync_seconds: tuple[float, ...] = (0.0, 0.0, 0.0002, 0.002, 0.02)
    stall_seconds: tuple[float, ...] = (0.0, 0.0, 0.5, 2.0)
    journal_stalls: float = 0.1
    inline_sync_seconds: tuple[float, ...] = (0.0, 300e-6, 1.0)
    interleaved: tuple[float, ...] = (0.0, 0.5, 1.0)
    segment_bytes: tuple[int, ...] = (4096, 16384, 65536)
    step_bytes: tuple[int, ...] = (300, 4 << 20)
    """Of a log's tail that are written to its file at once."""
    storage: Mapping[str, Any] = MappingProxyType({})
    """More settings of the store."""
    batch_bytes: tuple[int | None, ...] = (None, None, 0, 300)
    """Commits are of several batches, each full with so many bytes. None: they are of one, and the journal is
    often full."""
    bridged: bool = False
    """Each topic of mode `always` is carried by bridges; see bridged.py."""
    copy_retention_bytes: int = 0
    """Of the logs that they write to; 0: all."""


def _only(**weights: int) -> Mapping[str, int]:
    return MappingProxyType({name: weights.get(name, 0) for name in EPISODES})


FAULT_PROFILES = MappingProxyType(
    {
        "mixed": FaultProfile(protocols=("logmq", "logmq", "dms", "logmq dms")),
        "answers": FaultProfile(
            topics=("a", "ab"),
            endings=(1, 0, 0),
            ends=("answer",),
            faults=("",),
            episodes=_only(produce=6, batches=2, group=2, delete=1),
        ),
        "groups": FaultProfile(
            topics=("a",),
            endings=(1, 0, 0),
            ends=("answer",),
            faults=("",),
            sync_seconds=(0.002, 0.02),
            inline_sync_seconds=(0.0,),
            episodes=_only(produce=1, group=6),
        ),
        "batches": FaultProfile(
            topics=("a", "ab"),
            endings=(3, 1, 0),
            ends=("kind", "time"),
            end_kinds=("sync journal", "write journal"),
            faults=("",),
            sync_seconds=(0.002, 0.02),
            episodes=_only(produce=1, batches=8),
        ),
        "readers": FaultProfile(
            topics=("a", "ab"),
            endings=(1, 0, 0),
            ends=("sight", "sight", "time"),
            faults=("",),
            sync_seconds=(0.002, 0.02),
            inline_sync_seconds=(0.0,),
            interleaved=(1.0,),
            episodes=_only(produce=4, walk=2, fetch=6, tail=2),
        ),
        "failing syncs": FaultProfile(
            topics=("a", "ab"),
            endings=(1, 0, 0),
            faults=("sync",),
            segment_bytes=(65536,),
            episodes=_only(produce=6, batches=1, walk=1, group=1),
        ),
        "full disks": FaultProfile(endings=(1, 1, 0), faults=("full", "full", "errors")),
        # Logs' files take nothing more, while commits and checkpoints go on: the journal is the only copy.
        "limited files": FaultProfile(
            protocols=("logmq", "logmq", "dms"),
            topics=("a", "ab", "abcdefgh"),
            endings=(2, 2, 1),
            lives=(2, 3),
            faults=("limit",),
            sync_seconds=(0.0, 0.0002),
            segment_bytes=(4096, 16384),
            step_bytes=(150,),
            storage=MappingProxyType({"tail_log_bytes": 2000}),
            episodes=_only(produce=8, batches=2, walk=2, fetch=4, tail=1),
        ),
        "checkpoints": FaultProfile(
            topics=("ab", "abcdefgh"),
            endings=(1, 1, 0),
            ends=("kind", "kind", "operation"),
            end_kinds=("rename", "sync_folder", "sync_folder journal", "unlink", "create"),
            faults=("",),
            sync_seconds=(0.0002, 0.002),
            inline_sync_seconds=(0.0,),
            interleaved=(1.0,),
            segment_bytes=(4096,),
            episodes=_only(produce=8, batches=2, group=1, delete=1),
        ),
        "deletes": FaultProfile(
            topics=("a", "ab", "in"),
            endings=(2, 2, 0),
            ends=("answer", "operation"),
            faults=("",),
            episodes=_only(produce=5, batches=1, group=1, delete=5, fetch=1),
        ),
        # Commits that hang in their sync, with a deletion in them, and checkpoints that overtake them.
        "deletes amid checkpoints": FaultProfile(
            topics=("ab",),
            clients=(6,),
            endings=(1, 0, 0),
            ends=("kind",),
            # Right behind a checkpoint's new catalog, while a commit may still hang.
            end_kinds=("rename journal", "sync_folder journal", "unlink journal"),
            faults=("",),
            sync_seconds=(0.0, 0.0002),
            stall_seconds=(0.005,),
            journal_stalls=1.0,
            inline_sync_seconds=(0.0,),
            interleaved=(1.0,),
            segment_bytes=(4096,),
            episodes=_only(produce=8, delete=5),
        ),
        "torn writes": FaultProfile(
            topics=("a", "ab"),
            endings=(1, 0, 0),
            ends=("kind",),
            end_kinds=("sync journal",),
            faults=("",),
            episodes=_only(produce=4, batches=2),
        ),
        "restarts": FaultProfile(
            topics=("ab",),
            clients=(2,),
            lives=(4,),
            endings=(3, 1, 0),
            ends=("answer", "time", "operation"),
            faults=("",),
            episodes=_only(produce=6, batches=1, group=1, delete=1),
        ),
        "intervals": FaultProfile(
            topics=("i",),
            endings=(1, 0, 0),
            ends=("time",),
            faults=("",),
            sync_seconds=(0.0, 0.002),
            stall_seconds=(0.0,),
            segment_bytes=(65536,),
            episodes=_only(produce=6, tail=1),
        ),
        # Nothing asks for a sync but the intervals: BATCH, COMMIT and DELETE do.
        "weak modes": FaultProfile(
            topics=("i", "in", "n"),
            endings=(2, 1, 0),
            ends=("time",),
            faults=("", "", "full"),
            episodes=_only(produce=8, fetch=2, tail=1),
        ),
        # Most records go to their logs' files alone, and the journal refers to them.
        "references": FaultProfile(
            topics=("a", "ab", "ai"),
            endings=(3, 1, 0),
            ends=("kind", "answer", "operation"),
            end_kinds=("sync journal", "sync logmq", "write journal", "write logmq", "sync_folder"),
            sync_seconds=(0.0, 0.0002, 0.002),
            segment_bytes=(16384, 65536),
            storage=MappingProxyType({"reference_bytes": 100, "tail_log_bytes": 1000}),
            episodes=_only(produce=8, batches=2, group=1, delete=1, fetch=1),
        ),
        # Nobody deletes: what a bridge has carried of a topic that is gone cannot be told.
        "bridges": FaultProfile(
            protocols=("logmq dms",),
            topics=("a", "ab"),
            queues=("q",),
            clients=(1, 2),
            lives=(2, 3),
            faults=("", "", "", "sync", "errors", "full", "full", "read"),
            sync_seconds=(0.0, 0.0002, 0.002),
            episodes=_only(produce=8, batches=3, fetch=1),
            dms_episodes=MappingProxyType({"produce": 1, "consume": 1, "delete": 0, "inquire": 0}),
            bridged=True,
        ),
        "bridges by AMQP": FaultProfile(
            protocols=("logmq dmp",),
            topics=("a", "ab"),
            clients=(1, 2),
            lives=(2, 3),
            faults=("", "", "", "sync", "errors", "full", "full", "read"),
            sync_seconds=(0.0, 0.0002, 0.002),
            episodes=_only(produce=8, batches=3, fetch=1),
            bridged=True,
        ),
        # A bridge writes to a log that drops its front, beside others of mode none.
        "bridges to logs that drop": FaultProfile(
            protocols=("logmq dms",),
            topics=("an", "abn"),
            queues=("q",),
            clients=(4,),
            lives=(2, 3),
            life_seconds=1.5,
            ends=("time",),
            faults=("", "", "", "full"),
            stall_seconds=(0.01, 0.03),
            journal_stalls=0.7,
            inline_sync_seconds=(0.0,),
            interleaved=(1.0,),
            segment_bytes=(65536,),
            batch_bytes=(0, 300),
            storage=MappingProxyType({"retention_seconds": 0.003}),
            episodes=_only(produce=8, batches=2),
            dms_episodes=MappingProxyType({"produce": 1, "consume": 1, "delete": 0, "inquire": 0}),
            bridged=True,
            copy_retention_bytes=300,
        ),
        "queues": FaultProfile(protocols=("dms",)),
        "queues that answer": FaultProfile(
            protocols=("dms",),
            endings=(1, 0, 0),
            ends=("answer",),
            faults=("",),
            sync_seconds=(0.0002, 0.002, 0.02),
            inline_sync_seconds=(0.0, 1.0),
        ),
        "queues that are read": FaultProfile(
            protocols=("dms",),
            queues=("a",),
            endings=(1, 0, 0),
            ends=("sight", "sight", "time"),
            faults=("",),
            sync_seconds=(0.002, 0.02),
            inline_sync_seconds=(0.0,),
            interleaved=(1.0,),
        ),
        "queues that need no sync": FaultProfile(
            protocols=("dms",),
            dms_modes=("interval:50ms", "none"),
            queues=("a", "ab", "abc", "temdrx"),
            endings=(0, 3, 1),
            ends=("answer", "sight", "operation", "time"),
            faults=("", "", "full"),
        ),
        # Nobody but one client: what is ready is known exactly.
        "one worker": FaultProfile(
            protocols=("dms",), queues=("a",), clients=(1,), lives=(2,), faults=("",), endings=(1, 1, 1)
        ),
        "queues with snapshots": FaultProfile(
            protocols=("dms", "logmq dms"),
            clients=(4,),
            lives=(2, 3),
            endings=(1, 1, 1),
            faults=("", "", "full"),
            segment_bytes=(4096,),
            snapshot_bytes=(8_000, 20_000),
        ),
        # Lifetimes, delays, tries: what they are is in tests/support/dms_model.py.
        "queues of mortals": FaultProfile(
            protocols=("dms",),
            queues=("tx", "mx", "d", "rx", "temdrx"),
            lives=(2, 3, 4),
            endings=(3, 2, 1),
            faults=("", "", "", "sync", "full"),
            stall_seconds=(0.0,),
            sync_seconds=(0.0, 0.0002, 0.002),
            dms_episodes=MappingProxyType({"produce": 8, "consume": 8, "delete": 2, "inquire": 0}),
        ),
        "queues of jobs": FaultProfile(
            protocols=("dms",),
            jobs=True,
            lives=(2, 3, 4),
            endings=(3, 3, 1),
            faults=("",),
            stall_seconds=(0.0,),
            snapshot_bytes=(1500, 8_000),
        ),
        # Its delays are times of the wall clock; a life is longer than the least time of a consumer.
        "queues of jobs by AMQP": FaultProfile(
            protocols=("dmp",),
            jobs=True,
            life_seconds=0.5,
            lives=(2, 3, 4),
            endings=(3, 3, 1),
            wall_jumps_ms=(0,),
            faults=("",),
            stall_seconds=(0.0,),
        ),
        "queues that come and go": FaultProfile(
            protocols=("dms",),
            queues=("a", "ab"),
            endings=(2, 2, 1),
            ends=("answer", "operation"),
            faults=("", "", "sync", "full"),
            dms_episodes=MappingProxyType({"produce": 6, "consume": 4, "delete": 5, "inquire": 0}),
        ),
    }
)


def drawn(chance: random.Random) -> str:
    """A profile's name; every other run is a mixed one."""
    return "mixed" if chance.random() < 0.5 else chance.choice([*FAULT_PROFILES])
