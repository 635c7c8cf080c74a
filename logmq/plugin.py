"""LogMQ as the host sees it."""

from logmq.settings import LogmqSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="logmq",
    summary="A log of records on disk for each topic, read by offset, over lines of text.",
    settings=LogmqSettings,
    open=opened_by("logmq.listener:open_service"),
    cli="logmq.cli:app",
    bridges="logmq.bridge:ENDS",
    tables="logmq.tables:TABLES",
    replays="logmq.replay:REPLAYS",
    unrecorded="its topics are logs already",
)
