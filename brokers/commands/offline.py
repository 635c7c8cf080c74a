"""Answers commands of a protocol, or about users, on a data folder that nobody serves, by the same API."""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import attrs
import trio
from starlette.types import ASGIApp, Message

from brokers.access import users
from brokers.access.objects import UserObjects
from brokers.admin import api, application
from brokers.commands.control import Api
from brokers.errors import ExitCode, Failure, folder_errors
from brokers.host import logs
from brokers.plugins import load
from brokers.settings.config import as_served
from shared.access import Access
from shared.errors import ConfigError
from shared.plugin import AdminApi, Context
from shared.storage.store import Store
from shared.storage.threads import Threads


def ask(folder: Path, protocol: str, question: Callable[[AdminApi], Any], config: Path | None = None) -> Any:
    """Return what `question` makes of the API's answers, under the settings of a file. Nothing is bound or
    served. Raises StoreInUse if a server starts or stops there just now, and Failure.
    """
    return trio.run(_ask, folder, protocol, question, config)


async def _ask(folder: Path, protocol: str, question: Callable[[AdminApi], Any], file: Path | None) -> Any:
    plugin = load(protocol)
    config = as_served(file)
    log = logs.configure("warning", config.serve.log_format).bind(protocol=protocol)
    with folder_errors(folder):
        store = await Store.open(folder, config.storage)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            service = await plugin.open(Context(store, log), config.protocols[protocol])
            objects = [(protocol, each) for each in getattr(service, "objects", ())]
            app = application.of_objects(lambda: objects)
            answer = await store.in_thread(question, FolderApi(f"the data folder {folder}", folder, app))
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await store.close()
    return answer


def ask_users(folder: Path, path: Path, question: Callable[[AdminApi], Any]) -> Any:
    """The same about the users file alone. Raises Failure."""
    return trio.run(_ask_users, folder, path, question)


async def _ask_users(folder: Path, path: Path, question: Callable[[AdminApi], Any]) -> Any:
    try:
        access = Access(users.read(path))
    except ConfigError as error:
        raise Failure(error.text, ExitCode.CONFIGURATION) from None
    app = application.of_objects(lambda: [("users", UserObjects(access, lambda: path).objects)])
    api = FolderApi(f"the data folder {folder}", folder, app)
    return await Threads()(question, api)


@attrs.frozen
class FolderApi(Api):
    """Asks an application in this process, from a thread of its loop's."""

    _app: ASGIApp

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        status, kind, answer = trio.from_thread.run(self._answer, method, path, data)
        return self.result(path, status, HTTPStatus(status).phrase, kind, answer)

    async def _answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        name, _, query = path.partition("?")
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": name,
            "raw_path": name.encode(),
            "query_string": query.encode(),
            "headers": [],
            api.OFFLINE: True,
        }
        await self._app(scope, receive, send)
        kind = dict(sent[0]["headers"])[b"content-type"].decode().partition(";")[0]
        return sent[0]["status"], kind, b"".join(message.get("body", b"") for message in sent[1:])
