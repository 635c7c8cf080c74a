"""Clients for blocking code: `with brokers.sync.connect("dms://localhost:9090") as client`."""

from contextlib import AbstractContextManager
from typing import Any


def connect(url: str, **options: Any) -> AbstractContextManager[Any]:
    """A client for the server at `url`, connected, whose methods return when they are done.

        with brokers.sync.connect("logmq://localhost:8080") as client:
            client.produce("visits", b"/")

    As `brokers.connect`; the types are those of `brokers.logmq.blocking` and so on.
    """
    from brokers.clients import connected

    return connected(url, "blocking", options)  # type: ignore[no-any-return]
