"""Pub/sub on real sockets, in this process, without a store."""

from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, cast

from pubsub.listener import PubsubService
from pubsub.metrics import Counts
from pubsub.sessions import Changed, Sessions
from pubsub.settings import PubsubSettings
from shared.net.settings import TlsSettings
from shared.plugin import Context
from tests.pubsub.world import LOG
from tests.support.serving import Serving, serving


def served(
    settings: PubsubSettings | None = None, *, tls: TlsSettings | None = None
) -> AbstractAsyncContextManager[Serving]:
    settings = settings or PubsubSettings()
    changes: list[Changed] = []
    sessions = Sessions(settings, Counts(), LOG, save=changes.append, say=lambda line: None)
    store = cast(Any, SimpleNamespace(read_only=None))
    service = PubsubService(Context(store, LOG), settings, sessions)
    return serving(Serving, "pubsub", service, tls=tls)
