"""What the records of topics are as rows: how much went to which when. What is in them, their users know."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from logmq.logs import GROUPS, NAMESPACE, TABLES_NAMESPACE
from logmq.places import places
from shared.tables import PLACES, VOLUMES, Table, places_schema, volumes_schema
from shared.volumes import added_up, per_minute


def volumes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records and their bytes, lengths left out, by topic and second."""
    topic = batch.column("topic")
    return added_up(
        pa.RecordBatch.from_pydict(
            {
                "log": topic,
                "time": batch.column("timestamp"),
                "protocol": pa.array([NAMESPACE] * batch.num_rows, pa.string()),
                "name": topic,
                "bytes": pc.binary_length(batch.column("value")).cast(pa.int64()),
            }
        )
    )


TABLES: Sequence[Table] = (
    Table(
        VOLUMES,
        "what was produced: records and bytes by topic and minute",
        namespace=NAMESPACE,
        logs=".*",
        schema=volumes_schema(),
        decode=volumes,
        gather=per_minute,
    ),
    Table(
        PLACES,
        "what groups committed: a row a commit",
        namespace=TABLES_NAMESPACE,
        logs=GROUPS,
        schema=places_schema(),
        decode=places,
    ),
)
