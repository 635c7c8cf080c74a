"""DMP as the host sees it."""

from dmp.settings import DmpSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="dmp",
    summary="AMQP 0-9-1 exchanges and queues, and bulk messages over leased connections.",
    settings=DmpSettings,
    open=opened_by("dmp.listener:open_service"),
    cli="dmp.cli:app",
    bridges="dmp.bridge:ENDS",
    tables="dmp.tables:TABLES",
    replays="dmp.replay:REPLAYS",
    unrecorded=None,
    command_variables=("user", "password"),
)
