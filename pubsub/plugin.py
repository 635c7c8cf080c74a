"""Pub/sub as the host sees it."""

from pubsub.settings import PubsubSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="pubsub",
    summary="Topics with levels and wildcards: UDP publishers, TCP subscribers.",
    settings=PubsubSettings,
    open=opened_by(f"{__package__}.listener:open_pubsub"),
    cli=f"{__package__}.cli:app",
    bridges=f"{__package__}.bridge:ENDS",
    tables=f"{__package__}.tables:TABLES",
    replays=f"{__package__}.replay:REPLAYS",
    unrecorded=None,
    topics=True,
)
