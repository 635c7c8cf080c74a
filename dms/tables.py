"""What the records of queues' logs are as rows: events, lives, volumes."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dms import events
from dms.lives import lives, lives_of
from dms.logs import NAMESPACE
from shared.tables import LIVES, VOLUMES, Table, volumes_schema
from shared.volumes import added_up, by_minute, per_minute

EVENTS = "events"


def volumes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What was produced, and what could not be read."""
    happened = events.events(batch)
    came = pc.equal(happened.column("event"), events.PRODUCED).fill_null(False)
    return added_up(happened.filter(pc.or_(came, happened.column("fault").is_valid())))


TABLES: Sequence[Table] = (
    Table(
        EVENTS,
        "what happened to messages: a row for each that came, and for each run of them later",
        namespace=NAMESPACE,
        logs=".*",
        schema=events.SCHEMA,
        decode=events.events,
    ),
    Table(
        LIVES,
        "a row for each message: when it came, was delivered, returned and left, how, and how long that took",
        namespace=NAMESPACE,
        logs=".*",
        schema=events.SCHEMA,
        decode=events.events,
        gather=lives,
        fold=lives_of,
    ),
    Table(
        VOLUMES,
        "what was produced: messages and bytes by queue and minute",
        namespace=NAMESPACE,
        logs=".*",
        schema=volumes_schema(),
        decode=volumes,
        gather=per_minute,
        fold=by_minute,
    ),
)
