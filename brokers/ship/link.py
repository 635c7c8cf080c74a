"""What binds a server to its bucket: it ships to it, or follows it, or has none.

What ships and follows is imported only where there is a bucket.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import structlog
import trio

from brokers.errors import ExitCode, Failure
from brokers.ship import names
from brokers.ship.settings import ShipSettings
from shared.budget import Account, unbounded
from shared.errors import BrokerError
from shared.metrics import Sample
from shared.storage.store import Store
from shared.storage.threads import Threads

if TYPE_CHECKING:
    from brokers.ship.bucket import Bucket
    from brokers.ship.drill import Drilled
    from brokers.ship.follow import Follow
    from brokers.ship.remote import RemoteReader
    from brokers.ship.shipper import Shipper
    from shared.storage.following import Position
    from shared.storage.shipping import Ships

SHOWN_SECONDS = 0.5
"""How often a follower's lists are made anew, if something came."""
DRILL_AGAIN_SECONDS = 3600.0
"""A drill that could not be made is tried again so much later, or sooner where drills are more frequent."""


@attrs.define(eq=False)
class BucketLink:
    """`arrive` before the store is opened, `start` before it is served, then `run`; `finish` while it still
    runs, `close` behind it. `promoted` is called once a follower is to start again as the one that ships.
    """

    settings: ShipSettings
    folder: Path
    log: structlog.stdlib.BoundLogger
    promoted: Callable[[], None] = lambda: None
    account: Account = attrs.Factory(unbounded)
    """Of what is kept in memory for readers of what only the bucket has."""
    shipper: "Shipper | None" = None
    follow: "Follow | None" = None
    remote: "RemoteReader | None" = None
    drilled: "Drilled | None" = None
    _position: "Position | None" = None
    _drilling: trio.Lock = attrs.Factory(trio.Lock)
    _in_thread: Threads = attrs.Factory(Threads)
    _bucket: "Bucket" = attrs.field(init=False)

    async def arrive(self) -> "Ships | None":
        """Make the folder ready. Returns how its store is opened. Raises as `arrival.arrive`."""
        settings = self.settings
        asked = settings.url or settings.follow or settings.restore_if_empty
        if not (asked or await self._in_thread(any, names.found_in(self.folder))):
            return None
        from brokers.ship.arrival import arrive
        from brokers.ship.shipper import opened_with
        from brokers.ship.stores import open_bucket

        self._position = await arrive(self.settings, self.folder, self.log)
        self._bucket = open_bucket(self.settings)
        return opened_with(self.settings) if self._position is None else None

    async def start(self, store: Store) -> None:
        """Raises ForeignBucket, BadObject and StoreError."""
        if self._position is not None:
            from brokers.ship.follow import Follow

            self.follow = Follow(
                store, self._bucket, self.settings.url, self._position, self.log, self.settings.interval
            )
            await self.follow.start()
        elif self.settings.url:
            from brokers.ship.shipper import Shipper

            self.shipper = Shipper(store, self.settings, self._bucket, self.log)
            await self.shipper.start()
        if self.follow is not None or self.shipper is not None:
            from brokers.ship.remote import RemoteReader

            source: Any = self.follow or self.shipper
            self.remote = RemoteReader.of(
                self._bucket, source.sections_of, source.refresh, self.log, store.commit_pending, self.account
            )
            store.read_remotely(self.remote.read)
        elif names := store.in_bucket_only():
            self.log.error(
                "topics have records in a bucket only, and this server has none: reading those is an error; "
                "set ship.url to it",
                topics=len(names),
                first=names[0],
            )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            if self.remote is not None:
                nursery.start_soon(self.remote.run)
            if self.follow is not None:
                nursery.start_soon(self._follow)
            if self.shipper is not None:
                nursery.start_soon(self.shipper.run)
                nursery.start_soon(self._drill_regularly)

    async def _follow(self) -> None:
        assert self.follow is not None
        await self.follow.run()
        if self.follow.state == "promoted":
            self.promoted()

    async def finish(self) -> None:
        """Ship what there is, for some seconds at most."""
        if self.shipper is not None:
            await self.shipper.finish()

    async def close(self, store: Store) -> bool:
        """The store is closed: whether its folder is another one now, which is to be served anew."""
        if self.follow is None or self.follow.state != "promoted":
            return False
        from brokers.ship.follow import finish_promotion

        await store.in_thread(finish_promotion, self.folder, self.follow)
        return True

    # -- drills

    async def _drill_regularly(self) -> None:
        every = self.settings.drill_every
        if not every:
            return
        wait = every
        while True:
            await trio.sleep(wait)
            try:
                wait = every if (await self.drill()).ok else min(every, DRILL_AGAIN_SECONDS)
            except (BrokerError, OSError) as error:
                wait = min(every, DRILL_AGAIN_SECONDS)
                self.log.error("the restore drill could not be made: it is tried again", reason=str(error))

    async def drill(self) -> "Drilled":
        """Try a restore out, one at a time. Raises Failure where nothing is shipped, and as `drill`."""
        from brokers.ship.bucket import BucketError
        from brokers.ship.drill import Drilled, drill
        from brokers.ship.formats import BadObject

        shipper = self.shipper
        if shipper is None:
            raise Failure(
                "this server ships to no bucket: there is nothing to restore", ExitCode.CONFIGURATION
            )

        def shipped_lsn() -> int:
            if self.stands is not None:
                raise Failure(self.stands, ExitCode.CONFIGURATION)
            return shipper.shipping.shipped_lsn

        async with self._drilling:
            try:
                found = await drill(shipper.store, self._bucket, shipped_lsn)
            except (BucketError, BadObject) as error:
                self.drilled = attrs.evolve(self.drilled or Drilled(), missing=[str(error)])
                raise
            self.drilled = found
        tell = self.log.info if found.ok else self.log.error
        tell(
            "restore drill: all is the same" if found.ok else "restore drill: the bucket has something else",
            lsn=found.lsn,
            logs=found.logs,
            bytes=found.bytes,
            seconds=round(found.seconds, 3),
            differences=[*found.differences, *found.missing],
        )
        return found

    # -- what is shown

    @property
    def follows(self) -> bool:
        return self._position is not None

    async def show_what_comes(self, look: Callable[[], Awaitable[None]]) -> None:
        """Call `look` when something was applied; nothing is applied meanwhile. It has a tenth of the time at
        most, so that a follower with much in its queues goes on."""
        assert self.follow is not None
        seen = self.follow.position.lsn
        while True:
            await trio.sleep(SHOWN_SECONDS)
            if self.follow.position.lsn == seen:
                continue
            began = trio.current_time()
            async with self.follow.applying:
                seen = self.follow.position.lsn
                await look()
            await trio.sleep(9 * (trio.current_time() - began))

    @property
    def stands(self) -> str | None:
        """That nothing is shipped any more; None where all is, or nothing is to be."""
        if self.shipper is None or not self.shipper.stands:
            return None
        return f"{self.shipper.state}: nothing is shipped, brokers ship status says why"

    def status(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {} if self.follow is None else {"follow": self.follow.status()}
        if self.shipper is not None:
            drilled = None if self.drilled is None else self.drilled.ok
            found["ship"] = {**self.shipper.status(), "drill_ok": drilled}
        return found

    def samples(self) -> Iterator[Sample]:
        if self.follow is not None:
            yield from self.follow.samples()
        if self.shipper is not None:
            yield from self.shipper.samples()
        if self.remote is not None:
            yield from self.remote.samples()
        if self.drilled is not None:
            yield Sample("ship_drill_seconds", self.drilled.seconds, "Of the last drill's restore.", "gauge")
            yield Sample("ship_drill_ok", self.drilled.ok, "1: it was the same as what is served.", "gauge")
