"""DMP as the host sees it."""

from dmp.settings import DmpSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="dmp",
    summary="AMQP 0-9-1 exchanges and queues, and bulk messages over leased connections.",
    settings=DmpSettings,
    open=opened_by(f"{__package__}.listener:open_service"),
    cli=f"{__package__}.cli:app",
    bridges=f"{__package__}.bridge:ENDS",
    tables=f"{__package__}.tables:TABLES",
    replays=f"{__package__}.replay:REPLAYS",
    unrecorded=None,
    command_variables=("user", "password"),
)
