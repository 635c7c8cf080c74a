"""DMP and its AMQP 0-9-1 principal: exchanges, queues, and bulk messages over leased connections."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmp.client import open_feed, open_sink

__all__ = ["open_feed", "open_sink"]


def __getattr__(name: str) -> Any:
    """The client's two ways in; imported when they are asked for, since the commands have no use for them."""
    if name in __all__:
        from dmp import client

        return getattr(client, name)
    raise AttributeError(name)
