"""Pub/sub as the host sees it."""

from pubsub.settings import PubsubSettings
from shared.plugin import Plugin, opened_by

plugin = Plugin(
    name="pubsub",
    summary="Topics with levels and wildcards: UDP publishers, TCP subscribers.",
    settings=PubsubSettings,
    open=opened_by("pubsub.listener:open_pubsub"),
    cli="pubsub.cli:app",
    bridges="pubsub.bridge:ENDS",
    tables="pubsub.tables:TABLES",
    replays="pubsub.replay:REPLAYS",
    unrecorded=None,
    topics=True,
)
