"""How far groups are behind on a server, as anybody who may connect can find out: COMMITTED, and the marks.

The wire has no list of groups, so they have to be named.

Source: logmq/PROTOCOL.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import cast

import attrs

from brokers.pipeline.source.address import Reach, Server
from brokers.pipeline.source.link import Ask, Link
from brokers.pipeline.source.options import Topics
from brokers.pipeline.source.origin import LogSpot
from brokers.pipeline.source.servers import Served
from logmq.answers import LineAnswer, LogmqError, RowsAnswer, mark_row
from logmq.wire import Refusal, name_untrusted


@attrs.frozen
class Behind:
    """A group's place in a topic, and the messages from there to the end.

    `oldest_ms`, `newest_ms`: when the first and the last of these were written, at the grain of the marks.
    """

    group: str
    spot: LogSpot
    position: int
    messages: int
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


def behind(server: Server, reach: Reach, groups: Sequence[str]) -> Iterator[Behind]:
    """Each topic that one of the groups has a place in. Raises OSError that names a server which is away."""
    with closing(Served(server, reach)) as served, closing(Link(server, reach)) as link:
        spots = served.spots(Topics(pattern=".*"))
        pairs = list(product(sorted(spots), groups))
        asks: list[Ask] = [(f"COMMITTED {group} {topic}\n".encode(), _offset) for topic, group in pairs]
        for (topic, group), answer in zip(pairs, link.ask_all(asks), strict=True):
            if not isinstance(answer, LogmqError):  # it has no place there
                yield _behind(served, link, group, spots[topic], cast(tuple[int], answer)[0])


def _behind(served: Served, link: Link, group: str, spot: LogSpot, position: int) -> Behind:
    start = min(max(position, spot.first), spot.end)
    if start == spot.end:
        return Behind(group, spot, position, 0, 0, 0)
    _, messages = served.advance(spot, start, None, None)
    first, last = link.ask_all(
        [(f"MARKS {spot.name} {at} {at + 1}\n".encode(), _marks) for at in (start, spot.end - 1)]
    )
    times = [rows[-1].unix_ms for rows in (first, last) if isinstance(rows, list) and rows]
    return Behind(group, spot, position, messages, min(times, default=0), max(times, default=0))


def _offset() -> LineAnswer:
    return LineAnswer(b"OK", 1)


def _marks() -> RowsAnswer:
    return RowsAnswer(mark_row)
