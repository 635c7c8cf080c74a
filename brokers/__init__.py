"""The host: one process and one trio nursery for all installed protocols."""

from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import Any

if find_spec(f"{__name__}.shared") is None:
    from brokers import checkout

    checkout.join()


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """A client for the server at `url`, connected; on trio or asyncio, whichever runs.

        async with brokers.connect("logmq://localhost:8080") as client:
            await client.produce("visits", b"/")

    The scheme names the protocol, with `+tls` for TLS. `options` are the keywords of the protocol's own
    `connect`, in `brokers.logmq.client`, `brokers.dms.client` and so on; there its type is known. Raises what
    that does, and ValueError for a URL that is none of a server's.
    """
    from brokers.clients import connected

    return connected(url, "client", options)  # type: ignore[no-any-return]
