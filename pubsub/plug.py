"""Pub/sub as the host sees it."""

from pubsub.settings import PubsubSettings
from shared.plug import Context, Plug, Service


async def open_service(context: Context, settings: PubsubSettings) -> Service:
    from pubsub import listener  # the commands load this module too, and have no use for a server

    return await listener.open_pubsub(context, settings)


plug = Plug(
    name="pubsub",
    summary="Topics with levels and wildcards: UDP publishers, TCP subscribers.",
    settings=PubsubSettings,
    open=open_service,
    verbs="pubsub.verbs:app",
    tables="pubsub.tables:TABLES",
    unrecorded=None,
)
