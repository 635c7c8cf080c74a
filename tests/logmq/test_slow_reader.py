"""`brokers logmq consume --commit` with a reader that takes its time, without a server."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, TypeVar

import attrs
import pytest
import trio
from trio.testing import MockClock

from logmq import cli
from logmq.client import Record, Topic
from shared.cli.options import Server
from shared.cli.output_reader import OutputReader

T = TypeVar("T")


class SlowReader(OutputReader):
    """It takes 3 s to read a message."""

    def portions(self, messages: Sequence[T]) -> Iterable[Sequence[T]]:
        return [[message] for message in messages]

    async def wait_taken(self) -> None:
        await trio.sleep(3)


@attrs.define(eq=False)
class OneChunk:
    """A client of a topic of ten messages, and their records."""

    commits: list[tuple[float, int]] = attrs.Factory(list)
    rest: list[Record] = attrs.Factory(lambda: [Record(7 * number, b"any") for number in range(10)])

    async def check_answers(self) -> None:
        pass

    async def offsets(self, topic: str) -> Any:
        return Topic(topic, 0, 70)

    async def committed(self, group: str, topic: str) -> int | None:
        return None

    async def commit(self, group: str, topic: str, offset: int) -> None:
        self.commits.append((trio.current_time(), offset))

    def records(self, topic: str, start: int, *, follow: bool) -> Any:
        return self

    async def chunk(self) -> list[Record]:
        records, self.rest = self.rest, []
        return records


async def test_a_slow_reader_has_its_place_committed_every_five_seconds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = OneChunk()
    monkeypatch.setattr(cli, "OutputReader", SlowReader)
    monkeypatch.setattr(cli, "connect", lambda **given: nullcontext(client))
    begun_at = trio.current_time()
    shown = await cli.consume("t", group="g", commit=True, server=Server(host="host", port=1))
    async for _ in shown:
        pass
    assert client.commits[-1][1] == 70
    times = [begun_at, *(at for at, _ in client.commits)]
    assert max(later - before for before, later in pairwise(times)) <= cli.COMMIT_SECONDS + 3
