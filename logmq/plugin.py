"""LogMQ as the host sees it."""

from logmq.settings import LogmqSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="logmq",
    summary="A log of records on disk for each topic, read by offset, over lines of text.",
    settings=LogmqSettings,
    open=opened_by(f"{__package__}.listener:open_service"),
    cli=f"{__package__}.cli:app",
    bridges=f"{__package__}.bridge:ENDS",
    tables=f"{__package__}.tables:TABLES",
    replays=f"{__package__}.replay:REPLAYS",
    unrecorded="its topics are logs already",
)
