"""`make trial-fairness`: no client, with as much as is promised for, keeps all others waiting.

Each operation runs against a server of its own, in its own process. What is measured is the processor's time
of the longest step of a task, so a busy machine changes little. Above 100 ms the trial fails: the promise is
50 ms with 5,000 objects of a kind and 50,000 messages of a client, and a processor that others share takes up
to twice as long. What the operation needs before (messages that wait, bindings) does not count.

An operation is a function whose name begins with its file's. It gets a fresh server, says `begin` when all is
ready, and returns when it is over.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from shared.process_limits import raise_file_limit
from tests.trials import outcomes
from tests.trials.fairness import amqp, api, dms, kqmsgq, logmq, pubsub
from tests.trials.fairness.served import Served, serve

SECONDS_MAX = 0.1

OPERATIONS: Mapping[str, Callable[[Served], None]] = {
    name: operation
    for module in (pubsub, kqmsgq, dms, logmq, amqp, api)
    for name, operation in vars(module).items()
    if name.startswith(module.__name__.rpartition(".")[2] + "_")
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make trial-fairness", description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return 0
    raise_file_limit()
    failed = 0
    for name, operation in OPERATIONS.items():
        if given.only in name:
            with outcomes.passing_place("fairness") as folder, Served(folder) as served:
                operation(served)
                seconds, task = served.longest()
            failed += seconds > SECONDS_MAX
            words = name.replace("_", " ")
            mark = "FAILED" if seconds > SECONDS_MAX else "ok"
            print(f"{mark:6} {seconds * 1000:7.1f} ms  {words} ({task})", flush=True)
    if failed:
        print(f"{failed} operations kept the others waiting for over {SECONDS_MAX * 1000:g} ms")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
