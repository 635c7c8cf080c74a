"""Its commands."""

from collections.abc import AsyncIterator

import trio
from brokers.shared.cli.options import Place
from brokers.shared.plugin import ApiRequest, ServeRequest
from cyclopts import App

app = App(name="echo", help="Say something and hear it.", help_format="plaintext")


@app.command
def serve(*, port: int | None = None, shout: bool = False) -> ServeRequest:
    """Serve echo alone."""
    return ServeRequest("echo", {"echo": {"port": port, "shout": shout or None}})


@app.command
def count(*, json: bool = False) -> ApiRequest:
    """How many bytes the server has echoed."""
    return ApiRequest(lambda api: {"bytes": api.get("topics", "echo")["bytes"]})


@app.command
async def say(*words: str, server: Place, json: bool = False) -> AsyncIterator[dict[str, str]]:
    """Say words, one a line, and show what comes back."""

    async def heard() -> AsyncIterator[dict[str, str]]:
        async with await trio.open_tcp_stream(server.host, server.port) as stream:
            for word in words:
                await stream.send_all(word.encode())
                yield {"heard": bytes(await stream.receive_some()).decode()}

    return heard()
