"""What a stop would cost: is it safe to restart?"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from brokers.admin.listing import reader
from shared.objects import CONNECTIONS, QUEUES, ObjectsByProtocol
from shared.storage.store import StoreStatistics
from shared.task_turns import TaskTurn


async def cost_of_stop(everything: ObjectsByProtocol, store: StoreStatistics) -> Mapping[str, Any]:
    """What a clean stop ends and loses, read in turns with other tasks.

    `safe`: nothing is lost. `connections`: closed. `lost`: messages of queues in memory, which are `queues`.
    `redelivered`: messages of durable queues that consumers hold, which are delivered again. `reasons`: what
    it means, and why it may not be safe, a sentence each.
    """
    counts: Counter[str] = Counter()
    turn = TaskTurn()
    for protocol, objects in everything:
        if objects.kind is CONNECTIONS:
            counts["connections"] += len(objects.items())
        if objects.kind is not QUEUES:
            continue
        columns = ("held", "ready", "delayed", "dead", "durable")
        readers = [reader(protocol, objects, column) for column in columns]
        for item in objects.items():
            held, *others, durable = [read(item) or 0 for read in readers]  # null: such a queue keeps nothing
            if durable:
                counts["redelivered"] += held
            elif messages := held + sum(others):
                counts["lost"] += messages
                counts["queues"] += 1
            await turn.item()
    reasons = [*_dangers(store), *_losses(counts)]
    numbers = {name: counts[name] for name in ("connections", "lost", "queues", "redelivered")}
    return {"safe": not reasons, **numbers, "reasons": reasons}


def _dangers(store: StoreStatistics) -> Iterator[str]:
    if store.read_only:
        yield "Nothing more is written: what came since then is served from memory alone, and would be lost."
    if store.unapplied_logs:
        yield f"{store.unapplied_logs:,} log files take no bytes: the next start may meet the same trouble."
    if store.damaged_ranges:
        yield f"{store.damaged_ranges:,} places are damaged: make a backup first, and run brokers fsck after."


def _losses(counts: Mapping[str, int]) -> Iterator[str]:
    if lost := counts["lost"]:
        yield f"{lost:,} messages of {counts['queues']:,} queues are in memory alone, and would be lost."
