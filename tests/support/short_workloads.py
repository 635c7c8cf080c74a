"""Workloads of a few operations, each cut everywhere and recovered from every state that may leave."""

from collections.abc import Sequence

import trio

from tests.support.crashes import Tally, check_cuts, check_kills, record
from tests.support.workloads import sequence, something


def check_short(operations: Sequence[str], runs_max: int = 5000) -> Tally:
    """The cuts in the last operation: those before it are another workload's. Raises BrokenPromiseError.

    `runs_max`: of one cut that leaves states for more recoveries than this, so many are drawn.
    """
    return trio.run(_check_short, operations, runs_max)


async def _check_short(operations: Sequence[str], runs_max: int) -> Tally:
    history = await record(sequence(operations[-1:]), something(operations[:-1]))
    tally = await check_cuts(history.cuts, history.witness, runs_max, seed=0)
    tally.add(await check_kills(history))
    return tally
