"""Actions on topics that a command has, too: it needs no broker."""

from collections.abc import Mapping

from shared.actions import changing
from shared.objects import Argument

RETENTION: Mapping[str, Argument] = {
    "retention_bytes": Argument("bytes that it keeps at least; 0: all", "number"),
    "retention_seconds": Argument("age at which records are dropped; 0: never", "number"),
    "local_retention_bytes": Argument("bytes that stay on this disk; the bucket has all; 0: all", "number"),
    "local_retention_seconds": Argument("age at which only the bucket has records; 0: never", "number"),
}

CREATE = changing(
    "create",
    "Make a topic. The first write to a name makes one, too.",
    takes={
        "name": Argument("1 to 200 of A-Z, a-z, 0-9 and ._-", required=True),
        "durability": "when a write is answered: always, interval:50ms or none; else as the settings say",
        **RETENTION,
    },
    answers=("created",),
    named_by=("name",),
)
CHANGE = changing(
    "change",
    "Keep more or less of it. What is unset (null) is as the settings say.",
    takes=RETENTION,
    answers=("changed",),
)
