"""What only the bucket has of a log, read from its parts: by range, ahead, and kept for a while.

A part is read in blocks. Who reads on where the block before ends has several fetched by one request, and
the next ones while he reads. Blocks are kept up to `CACHE_BYTES`, the least used go first, and memory that
is short takes all of them. Requests have a limit and a timeout of their own, so that shipping does not wait
for readers; nobody who reads what is on this disk comes here.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import attrs
import structlog
import trio

from brokers.ship.bucket import Away, Bucket, BucketError, Missing
from brokers.ship.formats import BadObject, Section
from shared.budget import Account, unbounded
from shared.errors import BucketAway, StoreError
from shared.metrics import Sample
from shared.storage.log import Log, call
from shared.units import MIB

BLOCK_BYTES = 1 * MIB
AHEAD_BLOCKS = 4
"""So many are fetched by one request for who reads on."""
CACHE_BYTES = 64 * MIB
ANSWER_SECONDS = 10.0
"""A read that the bucket does not answer by then is an error."""
AGAIN_SECONDS = 0.5
"""A store that is away is asked again so much later."""

Placed = tuple[str, Section]
"""The key of an object of parts, and a section in it."""
Done = Callable[[bytes | StoreError], None]


class PartBlock(NamedTuple):
    """A block of a section: its object, where the section begins and ends there, and the block's number."""

    key: str
    at: int
    end: int
    number: int

    @property
    def start(self) -> int:
        return self.at + self.number * BLOCK_BYTES

    @property
    def size(self) -> int:
        return min(self.end - self.start, BLOCK_BYTES)

    def further(self, blocks: int) -> "PartBlock":
        return self._replace(number=self.number + blocks)


@attrs.define(eq=False)
class BlockFetch:
    """Blocks on their way, for all who wait for one of them. `error`: why they did not come."""

    done: trio.Event = attrs.Factory(trio.Event)
    blocks: dict[PartBlock, bytes] = attrs.Factory(dict)
    error: Exception | None = None


@attrs.define(eq=False)
class RemoteReader:
    """Serves `Store.read_remotely` while `run` runs. `sections`: those of a log as far as they are known, by
    its id, in order; `refresh` asks the bucket for them anew, and raises BucketErrors and BadObject.
    """

    bucket: Bucket
    sections: Callable[[int], Sequence[Placed]]
    refresh: Callable[[], Awaitable[None]]
    log: structlog.stdlib.BoundLogger
    answered: Callable[[], None] = lambda: None
    """Called after an answer, whose receiver may have appended something."""
    account: Account = attrs.Factory(unbounded)
    reads: int = 0
    errors: int = 0
    fetched_bytes: int = 0
    """Of blocks that were fetched."""
    cached_bytes: int = 0
    _away: bool = False
    _blocks: OrderedDict[PartBlock, bytes] = attrs.Factory(OrderedDict)
    _fetches: dict[PartBlock, BlockFetch] = attrs.Factory(dict)
    _nursery: trio.Nursery | None = None

    @classmethod
    def of(cls, bucket: Bucket, *arguments: object, **options: object) -> "RemoteReader":
        """A reader with requests of its own to the same store."""
        own = Bucket(bucket.store, bucket.cipher, timeout=ANSWER_SECONDS, in_thread=bucket.in_thread)
        return cls(own, *arguments, **options)  # type: ignore[arg-type]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def read(self, log: Log, offset: int, length: int, done: Done) -> None:
        """As `ReadRemote`: at once where all of it is kept here."""
        self.reads += 1
        found = self._kept(log.id, offset, length)
        if found is not None:
            done(found)
        elif self._nursery is None:
            done(BucketAway("the bucket is not read at this moment"))
        else:
            self._nursery.start_soon(self._answer, log, offset, length, done)

    async def _answer(self, log: Log, offset: int, length: int, done: Done) -> None:
        found: bytes | StoreError = BucketAway("the server is shutting down")
        try:
            with trio.move_on_after(ANSWER_SECONDS) as waited:
                found = await self._read(log, offset, length)
            if waited.cancelled_caught:
                found = BucketAway(f"the bucket gave no answer in {ANSWER_SECONDS:g} s")
        except (BucketError, BadObject) as error:
            found = BucketAway(f"the bucket does not give it: {error}")
        finally:
            call(done, found)
        self._tell(log, found)  # not at a shutdown, which is no fault of the bucket's
        self.answered()

    def _tell(self, log: Log, found: bytes | StoreError) -> None:
        if isinstance(found, bytes):
            if self._away:
                self._away = False
                self.log.info("what only the bucket has is read again")
            return
        self.errors += 1
        if not self._away:
            self._away = True
            self.log.error(
                "what only the bucket has cannot be read: its readers get an error, all others are served; "
                "look at the bucket and the network",
                log=log.name,
                reason=str(found),
            )

    async def _read(self, log: Log, offset: int, length: int) -> bytes:
        again = False
        while True:
            try:
                if again:
                    await self.refresh()
                return await self._gathered(log.id, offset, length)
            except Missing:
                if again:
                    raise
                again = True  # the part is gone, and a newer snapshot has the bytes in another
            except Away:
                await trio.sleep(AGAIN_SECONDS)

    async def _gathered(self, log_id: int, offset: int, length: int) -> bytes:
        """Raises Missing, Away, Unusable."""
        pieces = []
        for block, start, end in self._cut(log_id, offset, length):
            data = self._blocks.get(block)
            if data is None:
                data = await self._fetched(block)
            pieces.append(data[start:end])
        return b"".join(pieces)

    def _kept(self, log_id: int, offset: int, length: int) -> bytes | None:
        """The bytes, if all are here."""
        pieces = []
        try:
            for block, start, end in self._cut(log_id, offset, length):
                data = self._blocks[block]
                self._blocks.move_to_end(block)
                pieces.append(data[start:end])
        except (KeyError, Missing):
            return None
        if pieces:
            self._look_ahead(block.further(1))
        return b"".join(pieces)

    def _cut(self, log_id: int, offset: int, length: int) -> Iterator[tuple[PartBlock, int, int]]:
        """The blocks that have a range, each with the places in it. Raises Missing."""
        sections = self.sections(log_id)
        position, end = offset, offset + length
        number = bisect_right(sections, position, key=lambda placed: placed[1].first) - 1
        while position < end:
            if not 0 <= number < len(sections):
                raise Missing(f"no part has offset {position} of log {log_id}")
            key, section = sections[number]
            while section.first <= position < min(section.end, end):
                at, start = divmod(position - section.first, BLOCK_BYTES)
                block = PartBlock(key, section.at, section.at + section.length, at)
                stop = min(block.size, start + end - position)
                yield block, start, stop
                position += stop - start
            if position < end and position != section.end:
                raise Missing(f"no part has offset {position} of log {log_id}")
            number += 1

    # -- blocks

    def _look_ahead(self, block: PartBlock) -> None:
        """Fetch what follows for somebody who reads on, before he asks for it."""
        unknown = block not in self._blocks and block not in self._fetches
        if unknown and block.start < block.end and self._nursery is not None:
            self._nursery.start_soon(self._prefetch, block)

    async def _prefetch(self, block: PartBlock) -> None:
        with suppress(BucketError):  # who needs it asks himself, and is told
            await self._fetched(block)

    async def _fetched(self, block: PartBlock) -> bytes:
        """A block from the bucket, with those behind it for who reads on. Raises BucketErrors."""
        fetch = self._fetches.get(block)
        if fetch is None:
            fetch = BlockFetch()
            await self._fetch(block, fetch)
        else:
            await fetch.done.wait()
            if fetch.error is not None:
                raise Away(str(fetch.error)) from fetch.error
        return fetch.blocks[block]

    async def _fetch(self, block: PartBlock, fetch: BlockFetch) -> None:
        goes_on = block.further(-1) in self._blocks
        wanted: list[PartBlock] = []
        for each in map(block.further, range(AHEAD_BLOCKS if goes_on else 1)):
            if each.start >= each.end or each in self._blocks or each in self._fetches:
                break
            self._fetches[each] = fetch
            wanted.append(each)
        size = sum(each.size for each in wanted)
        try:
            data = await self.bucket.get_range(block.key, block.start, size)
            if len(data) != size:
                raise Missing(f"{block.key} is cut short")
        except BaseException as error:
            fetch.error = error if isinstance(error, BucketError) else Away("who asked for it is gone")
            raise
        else:
            self.fetched_bytes += size
            for each in wanted:
                fetch.blocks[each] = data[each.start - block.start :][: each.size]
                self._keep(each, fetch.blocks[each])
        finally:
            for each in wanted:
                del self._fetches[each]
            fetch.done.set()

    def _keep(self, block: PartBlock, data: bytes) -> None:
        self._blocks[block] = data
        self._charge(len(data))
        while self._blocks and (self.cached_bytes > CACHE_BYTES or self.account.over):
            _, oldest = self._blocks.popitem(last=False)
            self._charge(-len(oldest))

    def _charge(self, size: int) -> None:
        self.cached_bytes += size
        self.account.charge(size)

    # -- what is shown

    def samples(self) -> Iterator[Sample]:
        yield Sample("ship_remote_reads_total", self.reads, "Reads of what only the bucket has.")
        yield Sample("ship_remote_errors_total", self.errors, "Those that the bucket did not answer.")
        yield Sample("ship_remote_bytes_total", self.fetched_bytes, "Bytes that were fetched for them.")
        kept = "Of these, kept in memory for the next reader."
        yield Sample("ship_remote_cached_bytes", self.cached_bytes, kept, "gauge")
