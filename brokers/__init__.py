"""The host: one process and one trio nursery for all installed protocols."""

from importlib.util import find_spec

if find_spec(f"{__name__}.shared") is None:
    from brokers import checkout

    checkout.join()
