"""How far groups are behind on a server, as anybody who may connect can find out: COMMITTED, and the marks.

The wire has no list of groups, so they have to be named.

Source: logmq/PROTOCOL.md.
"""

from collections.abc import Sequence
from contextlib import closing
from itertools import product
from typing import Any, cast

import attrs

from brokers.pipeline.source.address import Reach, Server
from brokers.pipeline.source.link import Link
from brokers.pipeline.source.options import TopicChoice
from brokers.pipeline.source.servers import Served
from brokers.pipeline.source.spans import LogSpot
from brokers.pipeline.source.stretch import Stretch
from logmq import connector
from logmq.connector import LogmqError, Refusal, name_untrusted


@attrs.frozen
class Behind:
    """A group's place in a topic, and the messages from there to the end; None: damage hides how many.

    `oldest_ms`, `newest_ms`: when the first and the last of these were written, at the grain of the marks.
    """

    group: str
    spot: LogSpot
    position: int
    messages: int | None
    oldest_ms: int
    newest_ms: int


def parse_groups(text: str) -> tuple[str, ...]:
    """`billing,audit`. Raises ValueError."""
    try:
        return tuple(
            dict.fromkeys(name_untrusted(name.strip().encode(), "group") for name in text.split(","))
        )
    except Refusal as error:
        raise ValueError(error.text) from None


def behind(server: Server, reach: Reach, groups: Sequence[str]) -> list[Behind]:
    """Each topic that one of the groups has a place in. Raises OSError that names a server which is away."""
    with closing(Served(server, reach)) as served, closing(Link(server, reach)) as link:
        spots = served.spots(TopicChoice(pattern=".*"))
        pairs = list(product(sorted(spots), groups))
        asks = [connector.committed(group, topic) for topic, group in pairs]
        places = [
            (group, spots[topic], cast(tuple[int], answer)[0])
            for (topic, group), answer in zip(pairs, link.ask_all(asks), strict=True)
            if not isinstance(answer, LogmqError)  # it has no place there
        ]
        ahead = [Stretch(spot, min(max(position, spot.first), spot.end)) for _, spot, position in places]
        served.advance(ahead)
        oldest = link.ask_all([_mark_at(each.spot.name, each.start) for each in ahead])
        newest = link.ask_all([_mark_at(each.spot.name, each.spot.end - 1) for each in ahead])
    found = zip(places, ahead, oldest, newest, strict=True)
    return [_behind(*place, stretch, times) for place, stretch, *times in found]


def _behind(group: str, spot: LogSpot, position: int, ahead: Stretch, marks: Sequence[Any]) -> Behind:
    times = [rows[-1].unix_ms for rows in marks if isinstance(rows, list) and rows]
    if ahead.start == spot.end:
        times = []
    messages = ahead.records if ahead.is_exact else None
    return Behind(group, spot, position, messages, min(times, default=0), max(times, default=0))


def _mark_at(topic: str, offset: int) -> connector.Ask:
    offset = max(offset, 0)
    return connector.marks(topic, offset, offset + 1)
