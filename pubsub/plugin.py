"""Pub/sub as the host sees it."""

from pubsub.settings import PubsubSettings
from shared.plugin import Context, Plugin, Service


async def open_service(context: Context, settings: PubsubSettings) -> Service:
    from pubsub import listener  # the commands load this module too, and have no use for a server

    return await listener.open_pubsub(context, settings)


plugin = Plugin(
    name="pubsub",
    summary="Topics with levels and wildcards: UDP publishers, TCP subscribers.",
    settings=PubsubSettings,
    open=open_service,
    cli="pubsub.cli:app",
    bridges="pubsub.bridge:ENDS",
    tables="pubsub.tables:TABLES",
    replays="pubsub.replay:REPLAYS",
    unrecorded=None,
    topics=True,
)
