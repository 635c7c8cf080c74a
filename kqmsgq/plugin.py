"""KqueueMsgQ as the host sees it."""

from kqmsgq.settings import KqmsgqSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="kqmsgq",
    summary="Queues by name, fanned out from memory to every consumer that subscribes.",
    settings=KqmsgqSettings,
    open=opened_by("kqmsgq.listener:open_service"),
    cli="kqmsgq.cli:app",
    bridges="kqmsgq.bridge:ENDS",
    tables="kqmsgq.tables:TABLES",
    replays="kqmsgq.replay:REPLAYS",
    unrecorded=None,
    keeps=lambda settings: False,
)
