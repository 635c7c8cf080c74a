"""Connecting again: attempts after growing pauses, and a link that is replaced when lost."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from shared.client.dial import Address, ClientClosed, Disconnected, Unreachable
from shared.client.loop import Event, Loop
from shared.client.pipelining import PipelinedConnection
from shared.client.retry import Retry

Connected = TypeVar("Connected")
Result = TypeVar("Result")


LinkKind = TypeVar("LinkKind", bound=PipelinedConnection[Any])


async def keep_trying(
    loop: Loop,
    address: Address,
    retry: Retry,
    connect: Callable[[], Awaitable[Connected]],
    lost: Disconnected | None = None,
) -> Connected:
    """Call `connect` until it succeeds, after growing pauses, and return its result.

    `lost`: why the last connection ended. A server that accepts connections and closes them at once counts as
    a failure, too. Raises Unreachable when `retry` gives up. Errors of `connect` other than OSError and
    Disconnected are raised at once, and so is ClientClosed.
    """
    if lost is not None:
        pause = retry.lost(loop.now())
        if pause is None:
            raise Unreachable(f"no connection stays: {lost}")
        if pause:
            await loop.sleep(pause)
    retry.begin(loop.now())
    while True:
        try:
            connection = await connect()
            retry.made(loop.now())
            return connection
        except ClientClosed:
            raise
        except (OSError, Disconnected) as error:
            pause = retry.failed(loop.now())
            if pause is None:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                raise Unreachable(f"{address.host}:{address.port}: {why}") from error
            await loop.sleep(pause)


class Reconnecting(Generic[LinkKind]):
    """A link that is made when first needed, and replaced when lost.

    `open_link` makes one. If it raises OSError or Disconnected it is called again, for up to
    `retry_seconds`. `link`: the newest, None before the first use. `closed`: no further one is made.
    """

    def __init__(
        self,
        loop: Loop,
        address: Address,
        retry_seconds: float,
        open_link: Callable[[], Awaitable[LinkKind]],
        link: LinkKind | None = None,
    ) -> None:
        self.loop = loop
        self._address = address
        self._open_link = open_link
        self._retry = Retry(retry_seconds, loop.now())
        self._connecting: Event | None = None
        self.closed = False
        self.link = link

    async def connected(self) -> LinkKind:
        """The link, replaced if it was lost. Raises Unreachable, and other errors of `open_link`."""
        while self.link is None or self.link.lost is not None:
            if self._connecting is not None:  # the first task connects, the others find the link
                await self._connecting.wait()
                continue
            lost = None if self.link is None else self.link.lost
            if self.link is not None and self.link.heard:
                self._retry.heard()
            elif self.link is not None and self.link.unanswered:
                self._retry.unanswered()
            self._connecting = self.loop.event()
            try:
                self.link = await keep_trying(self.loop, self._address, self._retry, self._dial, lost)
            finally:
                connected, self._connecting = self._connecting, None
                connected.set()
        return self.link

    async def _dial(self) -> LinkKind:
        if self.closed:
            raise ClientClosed
        link = await self._open_link()
        if self.closed:
            link.lose(ClientClosed())
        return link

    async def repeat(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Run `attempt`, again over a new connection while one is lost. It must be harmless to do twice.

        Raises the errors of `attempt`, but Unreachable in place of Disconnected.
        """
        while True:
            try:
                return await attempt()
            except Unreachable:
                raise
            except Disconnected:
                continue

    def close(self) -> None:
        """Close at once. Waiting tasks get an error."""
        self.closed = True
        if self.link is not None:
            self.link.lose(ClientClosed())

    def raise_if_closed(self) -> None:
        """Raises ClientClosed."""
        if self.closed:
            raise ClientClosed
