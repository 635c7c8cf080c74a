"""What a queue's log tells, read by plain Python a record at a time: what the vectors are held against."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import trio

from dms import records
from dms.job_head import JOB_FIRST
from dms.records import RecordKind
from shared.storage.log import Log
from shared.tables.table import records_schema
from tests.dms.world import World
from tests.support.stores import read_all

NAMES = {
    RecordKind.ENQUEUED: "produced",
    RecordKind.LETTERS: "produced",
    RecordKind.DELIVERED: "delivered",
    RecordKind.ACKED: "acknowledged",
    RecordKind.RETURNED: "returned",
    RecordKind.GONE: "gone",
    RecordKind.MOVED: "moved",
    RecordKind.KEPT: "kept",
    RecordKind.SNAPSHOT: "snapshot",
    RecordKind.IMPORTED: "imported",
    RecordKind.JOBS: "produced",
    RecordKind.TEXTS: "texts",
    RecordKind.RESCHEDULED: "rescheduled",
    RecordKind.SEEN: "seen",
    RecordKind.SCHEDULED: "scheduled",
    RecordKind.PLACES: "places",
}
REASONS = {
    1: "nack",
    2: "connection lost",
    3: "ttl",
    4: "max_deliveries",
    5: "purged",
    6: "redriven",
    7: "cancelled",
}
OUTCOMES = {
    "ttl": "expired",
    "max_deliveries": "exhausted",
    "purged": "purged",
    "redriven": "redriven",
    "cancelled": "cancelled",
}

Placed = tuple[str, int, bytes]
"""Queue, offset, payload."""


def log_of(world: World, queue: str) -> list[Placed]:
    """The records of a queue's log, as they are now."""
    log = world.engine.queues[queue.encode()].log
    assert log is not None
    return placed(queue, log.log)


def placed(name: str, log: Log) -> list[Placed]:
    found, offset = [], log.first
    for payload in trio.run(read_all, log):
        found.append((name, offset, payload))
        offset += 4 + len(payload)
    return found


def batch_of(those: Sequence[Placed], time: int = 0) -> pa.RecordBatch:
    """As the source gives them; the source's own time is another than the records'."""
    topic, offset, value = zip(*those, strict=True) if those else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(
                (topic, offset, [time] * len(topic), value), records_schema(), strict=True
            )
        ],
        schema=records_schema(),
    )


def events(those: Sequence[Placed]) -> Iterator[dict[str, Any]]:
    """A row for each message that came, and for each run; `time` in milliseconds."""
    for queue, offset, payload in those:
        data = len(payload).to_bytes(4, "big") + payload
        (record,) = records.unpack(data)
        row = {
            "log": queue,
            "offset": offset,
            "time": record.time_ms,
            "name": queue,
            "event": NAMES[RecordKind(record.kind)],
            "reason": REASONS.get(record.reason),
            "bytes": None,
            "deliveries": None,
            "origin": None,
            "target": None,
        }
        match record.kind:
            case RecordKind.ENQUEUED | RecordKind.LETTERS:
                for number, body in enumerate(records.messages_in(data, record)):
                    row |= {"seq": record.seq + number, "messages": 1, "bytes": len(body)}
                    yield row | {"origin": getattr(body, "origin", None)}
            case RecordKind.DELIVERED | RecordKind.ACKED | RecordKind.GONE | RecordKind.MOVED:
                runs = records.runs_in(data, record)
                if record.kind == RecordKind.MOVED:
                    row["target"] = data[record.body + 12 * len(runs) :].decode()
                for run in runs:
                    yield row | {"seq": run.first, "messages": run.length}
            case RecordKind.RETURNED:
                for seq, deliveries, _ in records.returned_in(data, record):
                    yield row | {"seq": seq, "messages": 1, "deliveries": deliveries}
            case RecordKind.KEPT:
                for kept in records.kept_in(data, record):
                    row |= {"seq": kept.seq, "messages": 1, "deliveries": kept.deliveries}
                    yield row | {"bytes": len(kept.body), "origin": getattr(kept.body, "origin", None)}
            case RecordKind.JOBS:
                for kept in records.kept_in(data, record):
                    yield row | {"seq": kept.seq, "messages": 1, "bytes": len(kept.body)}
            case _:
                yield row | {"seq": record.seq, "messages": 0}


def lives(those: Sequence[Placed]) -> dict[tuple[str, int], dict[str, Any]]:
    """By queue and sequence; told one event after the other, in order."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    heads: dict[str, int] = {}
    for event in events(those):
        queue, what = event["log"], event["event"]
        last = event["seq"] + event["messages"]
        if (
            what in ("delivered", "acknowledged", "returned", "gone", "moved", "snapshot")
            and last < JOB_FIRST
        ):
            heads[queue] = max(heads.get(queue, 0), last)
        for seq in range(event["seq"], last):
            life = found.setdefault(
                (queue, seq),
                dict.fromkeys(
                    ("bytes", "origin", "produced", "delivered", "redelivered", "returned", "ended")
                )
                | dict.fromkeys(("reason", "target", "outcome"))
                | {"deliveries": 0, "returns": 0, "held": False, "counted": False},
            )
            _tell(life, event)
    for (queue, seq), life in found.items():
        if life["outcome"] is None:
            out = seq < heads.get(queue, 0) if seq < JOB_FIRST else life["deliveries"] > 0
            life["outcome"] = ("held" if life["held"] else "returned") if out else "waiting"
            life["deliveries"] = max(life["deliveries"], int(out and not life["counted"]))
        elif life["outcome"] == "acknowledged":
            life["deliveries"] = max(life["deliveries"], 1)
        del life["held"], life["counted"]
        for name, end in (("until_delivered_ms", "delivered"), ("in_queue_ms", "ended")):
            both = life["produced"] is not None and life[end] is not None
            life[name] = max(life[end] - life["produced"], 0) if both else None
    return found


def _tell(life: dict[str, Any], event: dict[str, Any]) -> None:
    time, what = event["time"], event["event"]
    for name in ("bytes", "origin"):
        life[name] = life[name] if event[name] is None else event[name]
    if what == "produced":
        life["produced"] = time
    elif what == "delivered":
        if life["delivered"] is None:
            life["delivered"] = time
        else:
            life["redelivered"] = time
        life["deliveries"] += 1
        life["held"] = True
    elif what in ("returned", "kept"):
        life["deliveries"] = max(event["deliveries"], life["deliveries"])
        life |= {"held": False, "counted": True}
        if what == "returned":
            life["returned"] = time
            life["returns"] += 1
    elif what in ("acknowledged", "gone", "moved"):
        life |= {"ended": time, "target": event["target"], "held": False}
        life["outcome"] = "acknowledged"
        if what != "acknowledged":
            dead = what == "moved" and event["reason"] != "redriven"
            life["reason"] = event["reason"]
            life["outcome"] = "dead-lettered" if dead else OUTCOMES[event["reason"]]
