"""What happens to the machine in each of its lives, drawn from the seed within the run's profile."""

import random
from typing import Literal

import attrs

from shared.storage.settings import StorageSettings
from tests.trials.sim.disk import FaultPlan
from tests.trials.sim.fault_profiles import FaultProfile

Ending = Literal["power", "kill", "stop"]

OPERATIONS = 150
"""About as many operations of the disk as a life has."""
ANSWERS = 40
"""About as many answers as a life gives."""


@attrs.frozen
class Life:
    """One life of the machine. It ends after `seconds` of service, unless something ends it earlier."""

    ending: Ending
    seconds: float
    faults: FaultPlan
    answers: int | None = None
    """It ends when clients have had so many good answers to requests that change something."""
    sights: int | None = None
    """It ends when so many records were read that their writers have no answer for yet."""
    wall_jump_ms: int = 0
    """The wall clock jumps by this much half-way."""


def lives(chance: random.Random, profile: FaultProfile) -> list[Life]:
    """The lives of one run; the last one is calm and ends with a clean stop."""
    timing = FaultPlan(
        sync_seconds=chance.choice(profile.sync_seconds),
        pauses=chance.choice((0.0, 0.1, 0.5)),
        pause_seconds=chance.choice((0.000_02, 0.002)),
        cold=chance.choice((0.0, 0.2, 1.0)),
    )
    return [
        *(_life(chance, profile, timing) for _ in range(chance.choice(profile.lives))),
        Life("stop", 0.05, timing),
    ]


def storage_settings(chance: random.Random, profile: FaultProfile, *, several: bool) -> StorageSettings:
    """Small, so that segments roll, checkpoints happen, files close and the journal is full in many runs.

    `several`: the journal has room for many batches at once, without which a commit is one.
    """
    return StorageSettings(
        journal_fraction=2**-18 if several else 2**-26,
        segment_bytes=chance.choice(profile.segment_bytes),
        zero_fill=chance.random() < 0.5,
        inline_sync_seconds=chance.choice(profile.inline_sync_seconds),
        checkpoint_direct_bytes=chance.choice((2000, 1 << 20)),
        sync_all_logs=chance.choice((0, 64)),
        open_files_max=chance.choice((1, 3, 64)),
        cache_bytes=chance.choice((0, 1000, 1 << 20)),
        pending_bytes_max=chance.choice((2000, 1 << 20)),
        reserve_bytes_min=0,
        reserve_bytes_max=0,
        scrub_bytes_per_second=chance.choice((0, 1 << 20)),
        **profile.storage,
    )


def _life(chance: random.Random, profile: FaultProfile, timing: FaultPlan) -> Life:
    kinds: tuple[Ending, ...] = ("power", "kill", "stop")
    (ending,) = chance.choices(kinds, profile.endings)
    faults = _faults(chance, profile, timing)
    seconds = profile.life_seconds * chance.random()
    jump = chance.choice(profile.wall_jumps_ms)
    answers = sights = None
    match chance.choice(profile.ends) if ending != "stop" else "time":
        case "operation":  # while it starts, in the middle of its work, or not before its time
            most = chance.choice((40, OPERATIONS, OPERATIONS))
            faults = attrs.evolve(faults, end_at=chance.randint(1, most))
        case "kind":  # where a sync, or what it protects, is about to happen
            kind = chance.choice(profile.end_kinds)
            most = OPERATIONS // 8 if kind.endswith("journal") else 6
            faults = attrs.evolve(faults, end_kind=kind, end_at=chance.randint(1, most))
        case "answer":  # when somebody has just been promised something
            answers = chance.randint(1, ANSWERS)
        case "sight":  # when somebody has just read what its writer does not know yet to be written
            sights = chance.choice((1, 1, 2, 3))
    return Life(ending, seconds, faults, answers, sights, jump)


def _faults(chance: random.Random, profile: FaultProfile, timing: FaultPlan) -> FaultPlan:
    faults = attrs.evolve(
        timing, stall_seconds=chance.choice(profile.stall_seconds), journal_stalls=profile.journal_stalls
    )
    at = chance.randint(1, OPERATIONS // 2)
    match chance.choice(profile.faults):
        case "sync":
            faults = attrs.evolve(faults, sync_fails_at=at)
        case "errors":
            faults = attrs.evolve(faults, errors=chance.choice((0.01, 0.1)))
        case "full":
            faults = attrs.evolve(faults, full_from=at, full_until=at + chance.randint(1, 100))
        case "limit":
            faults = attrs.evolve(
                faults,
                limited_from=at,
                limited_until=at + chance.randint(20, 2 * OPERATIONS),
                file_bytes_max=chance.choice((0, 500, 5000)),
            )
        case "read":
            faults = attrs.evolve(faults, read_errors=0.05)
    if chance.random() < 0.3:
        faults = attrs.evolve(faults, short_writes=chance.choice((0.05, 0.5)))
    return faults
