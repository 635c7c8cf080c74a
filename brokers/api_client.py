"""The API of a running server, for commands: its lists, its objects, and what can be done with them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:  # every command imports this module, and few ask by HTTP
    from brokers.control import AdminClient

ROOT = "/api/v1"
PAGE = 1000
"""The most that one answer has."""


class ApiClient:
    """Asks by `client`; parts of names may hold anything (`shared.plugin.AdminApi`). Raises Refusal."""

    def __init__(self, client: "AdminClient") -> None:
        self._client = client

    def get(self, *parts: str, **query: Any) -> Any:
        return self._client.request("GET", _path(parts, query))

    def post(self, *parts: str, dry_run: bool = False, **arguments: Any) -> Any:
        return self._client.request("POST", _path(parts, {"dry_run": 1} if dry_run else {}), arguments)

    def delete(self, *parts: str, dry_run: bool = False) -> Any:
        return self._client.request("DELETE", _path(parts, {"dry_run": 1} if dry_run else {}))

    def rows(self, kind: str, **query: Any) -> Sequence[Mapping[str, Any]]:
        return self.pages(kind, query)[0]

    def pages(
        self, kind: str, query: Mapping[str, Any], limit: int | None = None, after: str | None = None
    ) -> tuple[list[Mapping[str, Any]], str | None]:
        """All rows behind `after`, `limit` at most; and the name behind which there are more, if any."""
        rows: list[Mapping[str, Any]] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            behind = {} if after is None else {"after": after}
            found = self.get(kind, **{**query, "limit": size, **behind})
            rows += found["items"]
            after = found["next"]
            if after is None or (limit is not None and len(rows) >= limit):
                return rows, after


def _path(parts: Sequence[str], query: Mapping[str, Any]) -> str:
    path = "/".join((ROOT, *(quote(part, safe="") for part in parts)))
    return f"{path}?{urlencode(query)}" if query else path
