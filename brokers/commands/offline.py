"""Calls a protocol's administrative verb on a folder that nobody serves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from brokers.commands.render import json_value
from brokers.errors import Failure, folder_errors
from brokers.host import logs
from brokers.plugins import load
from brokers.settings.config import as_served
from shared.plugin import Context
from shared.storage.store import Store


def call(
    folder: Path, protocol: str, verb: str, arguments: Mapping[str, Any], config: Path | None = None
) -> Any:
    """Return the verb's answer as JSON, under the settings of a file. Nothing is bound or served.

    Raises StoreInUse if a server starts or stops there just now, Failure, and what the verb raises.
    """
    return json.loads(
        json.dumps(trio.run(_call, folder, protocol, verb, arguments, config), default=json_value)
    )


async def _call(
    folder: Path, protocol: str, verb: str, arguments: Mapping[str, Any], file: Path | None
) -> Any:
    plugin = load(protocol)
    config = as_served(file)
    log = logs.configure("warning", config.serve.log_format).bind(protocol=protocol)
    with folder_errors(folder):
        store = await Store.open(folder, config.storage)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            service = await plugin.open(Context(store, log), config.protocols[protocol])
            verbs = {each.name: each for each in service.admin_verbs}
            if verb not in verbs:
                raise Failure(f"{protocol} has no verb {verb!r}")
            result = await verbs[verb].call(arguments)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await store.close()
    return result
