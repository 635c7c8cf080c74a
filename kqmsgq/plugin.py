"""KqueueMsgQ as the host sees it."""

from kqmsgq.settings import KqmsgqSettings
from shared.plugin import Context, Plugin, Service


async def open_service(context: Context, settings: KqmsgqSettings) -> Service:
    from kqmsgq import listener  # the commands load this module too, and have no use for a server

    return listener.KqmsgqService(context, settings)


plugin = Plugin(
    name="kqmsgq",
    summary="Queues by name, fanned out from memory to every consumer that subscribes.",
    settings=KqmsgqSettings,
    open=open_service,
    cli="kqmsgq.cli:app",
    bridges="kqmsgq.bridge:ENDS",
    tables="kqmsgq.tables:TABLES",
    replays="kqmsgq.replay:REPLAYS",
    unrecorded=None,
    keeps=lambda settings: False,
)
