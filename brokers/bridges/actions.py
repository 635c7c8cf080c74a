"""Actions on bridges that a command has, too: it needs no bridge."""

from collections.abc import Mapping
from typing import get_args

from brokers.bridges.settings import Form
from shared.actions import changing
from shared.objects import Argument

TABLE: Mapping[str, Argument] = {
    "from": Argument("the address of its source, as pubsub:home/+/temperature"),
    "to": Argument("the address of its target, as logmq:readings"),
    "as": Argument("the form of what it writes", choices=get_args(Form), usual="raw"),
    "start": Argument("where it begins: first, end, an offset, or a time (RFC 3339)"),
    "rate": Argument("the most messages a second, as 1000/s"),
    "on_refused": Argument("wait, drop or dead:<address>: what becomes of a message that the target refuses"),
    "may_circle": Argument("whether it may be one of a circle that something else ends", "flag"),
    "filter": Argument("which messages it carries: key, min_bytes, max_bytes", "table"),
}
"""A bridge's keys, as in the settings."""

CREATE = changing(
    "create",
    "Make a bridge; it stands in the data folder, beside those of the settings.",
    takes={"name": Argument("1 to 64 of A-Z, a-z, 0-9 and ._-", required=True), **TABLE},
    answers=("created",),
    named_by=("name",),
)
CHANGE = changing(
    "change", "Carry otherwise from now on, from where it is.", takes=TABLE, answers=("changed",)
)
DELETE = changing("delete", "Delete it; its position is kept for a day.", answers=("deleted",))
PAUSE = changing(
    "pause", "Carry nothing until it is resumed. A restart keeps the pause.", answers=("paused",)
)
RESUME = changing("resume", "Carry again, from where it was.", answers=("resumed",))
