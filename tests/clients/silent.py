"""Somebody who takes connections, and says nothing."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent() -> Iterator[int]:
    """The port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
