"""Answers commands about users on a data folder that nobody serves, by the same API."""

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
from brokers.errors import ExitCode, Failure
from shared.access import Access
from shared.errors import ConfigError
from shared.plugin import AdminApi
from shared.storage.threads import Threads


def ask_users(folder: Path, path: Path, question: Callable[[AdminApi], Any]) -> Any:
    """Return what `question` makes of the API's answers about a users file. Raises Failure."""
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
