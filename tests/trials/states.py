"""Every workload of so many operations of the storage core, in every state that a crash may leave.

The suite runs all pairs and a choice of triples (tests/shared/storage/test_crash_states.py); this runs all.
Then all pairs of requests to a queue with jobs, of DMS and of AMQP, and all that may be in one commit
(tests/shared/queues/test_crash_states.py).
"""

import argparse
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial

import structlog

from shared.storage import table
from tests.support.crashes import SETTINGS, Tally
from tests.support.promises import BrokenPromiseError
from tests.support.queue_crashes import LIGHT, OPERATIONS, Amqp, Dms, check
from tests.support.workloads import LARGE, REFERRING, SEVERAL, SMALL, check_short
from tests.trials import outcomes

RUNS_MAX = 50_000
"""Of one cut: half a minute of work. Cuts that leave states for more are drawn from, and counted."""
QUEUE_RUNS_MAX = 100
"""A server's recovery takes ten times as long as a store's."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="trials.states", description=__doc__)
    parser.add_argument("--operations", type=int, default=3, help="operations of a workload (%(default)s)")
    parser.add_argument("--queues", action="store_true", help="those of queues alone")
    arguments = parser.parse_args()
    workloads = [(each, SETTINGS) for each in itertools.product(SMALL, repeat=arguments.operations)]
    # What the journal refers to: behind the first that is large.
    workloads += [
        (("append large", *each), REFERRING)
        for each in itertools.product([*SMALL, *LARGE], repeat=arguments.operations - 1)
    ]
    workloads += [
        ((*each, last), settings)
        for each in itertools.product(SMALL, repeat=arguments.operations - 1)
        for last in SEVERAL
        for settings in (SETTINGS, REFERRING)
    ]
    begun = time.monotonic()
    total = Tally()
    broken = 0
    say = partial(print, flush=True)
    with worker_processes() as workers:
        running: dict[Future[Tally], Sequence[str]] = {
            workers.submit(check_short, workload, RUNS_MAX, settings): workload
            for workload, settings in workloads
            if not arguments.queues
        }
        running |= {
            workers.submit(check, kind, workload, together, QUEUE_RUNS_MAX, 2): (kind.__name__, *workload)
            for kind in (Dms, Amqp)
            for pool, together in ((OPERATIONS, 1), (LIGHT, 2))
            for workload in itertools.product(pool, repeat=2)
        }
        for done, future in enumerate(as_completed(running), start=1):
            try:
                total.add(future.result())
            except BrokenPromiseError as error:
                broken += 1
                say(f"{' / '.join(running[future])}: {error}")
            if done % 100 == 0:
                say(f"  {done:,} of {len(running):,} workloads, {total}")
    say(f"{len(running):,} workloads; {time.monotonic() - begun:.0f} s")
    say(total)
    if total.sampled:
        say(f"of {total.sampled} cuts, which leave more states than that, some were drawn")
    return outcomes.told([f"{broken} workloads"] if broken else [])


@contextmanager
def worker_processes() -> Iterator[ProcessPoolExecutor]:
    """A process for each core."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, _prepare) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # thousands of tasks may wait behind it
            raise


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it in the middle of a task
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    table.SLACK_BYTES = 200  # tables tidy themselves up early


if __name__ == "__main__":
    sys.exit(main())
