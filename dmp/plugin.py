"""DMP as the host sees it."""

from dmp.settings import DmpSettings
from shared.plugin import Context, Plugin, Service


async def open_service(context: Context, settings: DmpSettings) -> Service:
    from dmp import listener  # the commands load this module too, and have no use for a store

    return await listener.open_service(context, settings)


plugin = Plugin(
    name="dmp",
    summary="AMQP 0-9-1 exchanges and queues, and bulk messages over leased connections.",
    settings=DmpSettings,
    open=open_service,
    cli="dmp.cli:app",
    bridges="dmp.bridge:ENDS",
    tables="dmp.tables:TABLES",
    replays="dmp.replay:REPLAYS",
    unrecorded=None,
    command_variables=("user", "password"),
)
