"""Workloads of a few operations, each cut everywhere and recovered from every state that may leave."""

from collections.abc import Sequence

import trio

from tests.support.crashes import Tally, check_cuts, check_kills, record
from tests.support.workloads import sequence, something

_RUNS_MAX = 5000


def check_short(operations: Sequence[str]) -> Tally:
    """The cuts in the last operation: those before it are another workload's. Raises BrokenPromiseError."""
    return trio.run(_check_short, operations)


async def _check_short(operations: Sequence[str]) -> Tally:
    history = await record(sequence(operations[-1:]), something(operations[:-1]))
    tally = await check_cuts(history.cuts, history.witness, _RUNS_MAX, seed=0)
    tally.add(await check_kills(history))
    return tally
