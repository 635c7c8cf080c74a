"""LogMQ as the host sees it."""

from logmq.settings import LogmqSettings
from shared.plugin import Context, Plugin, Service


async def open_service(context: Context, settings: LogmqSettings) -> Service:
    from logmq import listener  # the commands load this module too, and have no use for a store

    return await listener.open_service(context, settings)


plugin = Plugin(
    name="logmq",
    summary="A log of records on disk for each topic, read by offset, over lines of text.",
    settings=LogmqSettings,
    open=open_service,
    cli="logmq.cli:app",
    bridges="logmq.bridge:ENDS",
    tables="logmq.tables:TABLES",
    replays="logmq.replay:REPLAYS",
    unrecorded="its topics are logs already",
)
