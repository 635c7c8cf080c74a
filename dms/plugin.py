"""DMS as the host sees it."""

from dms.settings import DmsSettings
from shared.plugin import Context, Plugin, Service


async def open_service(context: Context, settings: DmsSettings) -> Service:
    from dms import listener  # the commands load this module too, and have no use for a store

    return await listener.open_service(context, settings)


plugin = Plugin(
    name="dms",
    summary="Work queues: each message goes to one consumer, and stays until it is acknowledged.",
    settings=DmsSettings,
    open=open_service,
    cli="dms.cli:app",
    bridges="dms.bridge:ENDS",
    tables="dms.tables:TABLES",
    replays="dms.replay:REPLAYS",
    unrecorded="its queues' logs tell each message's life already",
    keeps=lambda settings: settings.persist,
)
