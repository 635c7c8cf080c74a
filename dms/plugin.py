"""DMS as the host sees it."""

from dms.settings import DmsSettings
from shared.plugin import Plugin, opened_by

OWN_FOLDER = "dms_data"
"""The data folder of `brokers dms serve`, which is the specification's."""

plugin = Plugin(
    name="dms",
    summary="Work queues: each message goes to one consumer, and stays until it is acknowledged.",
    settings=DmsSettings,
    open=opened_by(f"{__package__}.listener:open_service"),
    cli=f"{__package__}.cli:app",
    bridges=f"{__package__}.bridge:ENDS",
    tables=f"{__package__}.tables:TABLES",
    replays=f"{__package__}.replay:REPLAYS",
    unrecorded="its queues' logs tell each message's life already",
    keeps=lambda settings: settings.persist,
    own_folder=OWN_FOLDER,
)
