"""KqueueMsgQ as the host sees it."""

from kqmsgq.settings import KqmsgqSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="kqmsgq",
    summary="Queues by name, fanned out from memory to every consumer that subscribes.",
    settings=KqmsgqSettings,
    open=opened_by(f"{__package__}.listener:open_service"),
    cli=f"{__package__}.cli:app",
    bridges=f"{__package__}.bridge:ENDS",
    tables=f"{__package__}.tables:TABLES",
    replays=f"{__package__}.replay:REPLAYS",
    unrecorded=None,
    keeps=lambda settings: False,
)
