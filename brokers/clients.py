"""A client from a URL: `brokers.connect`, `brokers.aio.connect` and `brokers.sync.connect`.

The URL's scheme is a protocol's name, as `logmq` or `logmq+tls`. The protocol's package has the client:
`connect` in its module `client`, and in `blocking` for blocking code.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from brokers.plugins import installed


def connected(url: str, module: str, options: dict[str, Any]) -> Any:
    """What `connect` of that module of the URL's protocol returns. Raises ValueError for another URL."""
    scheme, colon, _ = url.partition("://")
    name = scheme.partition("+")[0]
    if not colon or name not in installed():
        known = ", ".join(f"{name}://" for name in sorted(installed()))
        raise ValueError(f"the URL of a server begins with one of {known}")
    package = installed()[name][0].module.rpartition(".")[0]
    place = f"{package}.{module}"
    connect = None if find_spec(place) is None else getattr(import_module(place), "connect", None)
    if connect is None:
        raise ValueError(f"{name} has no client that is connected so")
    return connect(url, **options)
