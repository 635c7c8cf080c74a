"""The static files that every view loads. They hold no server data, so the login form may load them, too."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ROOT = "/static"
YEAR_SECONDS = 365 * 24 * 3600
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@attrs.frozen
class StaticFile:
    """`url` changes with its bytes, so that a browser may keep them."""

    data: bytes = attrs.field(repr=False)
    kind: str
    url: str


def _read(path: Path) -> StaticFile:
    data = path.read_bytes()
    return StaticFile(data, KINDS[path.suffix], f"{ROOT}/{path.name}?{hashlib.sha256(data).hexdigest()[:12]}")


_FOLDER = Path(__file__).with_name("static")
FILES: Mapping[str, StaticFile] = {
    f"{ROOT}/{path.name}": _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in KINDS
}
"""Static files by path."""


def url(name: str) -> str:
    """The URL of a static file, for templates."""
    return FILES[f"{ROOT}/{name}"].url


def routes() -> list[Route]:
    async def file(request: Request) -> Response:
        file = FILES[request.url.path]
        headers = {"Cache-Control": f"public, max-age={YEAR_SECONDS}, immutable"}
        return Response(file.data, media_type=file.kind, headers=headers)

    return [Route(path, file) for path in FILES]
