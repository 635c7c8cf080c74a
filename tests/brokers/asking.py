"""Asks a server's admin port with its token: for one answer, or for one that goes on."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import Any

import attrs
import pytest

from tests.support.server import Server, run_here


def login(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {(server.data / 'admin.token').read_text().strip()}"}


@attrs.frozen
class Api:
    """A server's API. A path that begins with a slash is one of the whole port."""

    server: Server
    document: dict[str, Any] = attrs.Factory(dict)

    def answer(
        self, path: str, body: Any = None, method: str | None = None, **headers: str
    ) -> tuple[int, Message, bytes]:
        """Status, headers and body. `body`: as JSON."""
        page = self.server.ready["page"]
        url = f"{page}{path[1:]}" if path.startswith("/") else f"{page}api/v1/{path}"
        data = None if body is None else json.dumps(body).encode()
        said = {**login(self.server), "Content-Type": "application/json", **headers}
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(url, data, said, method=method), timeout=30
            )
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.headers, answer.read()

    def ask(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        """Status and JSON; 0 and the kind of an error that is no problem document."""
        status, headers, answer = self.answer(path, body, method)
        kind = headers.get_content_type()
        return (
            (0, kind)
            if status >= 400 and kind != "application/problem+json"
            else (status, json.loads(answer))
        )

    def allowed(self, path: str, method: str) -> str:
        """The methods that a path has, as the answer 405 to another one says; sorted."""
        status, headers, answer = self.answer(path, {}, method)
        assert (status, json.loads(answer)["status"]) == (405, 405)
        return ", ".join(sorted(headers["Allow"].split(", ")))

    def get(self, path: str) -> Any:
        status, found = self.ask(path)
        assert status == 200, found
        self.check("get", path, found)
        return found

    def post(self, path: str, body: Any = None) -> Any:
        status, found = self.ask(path, body or {}, "POST")
        assert status == 200, found
        self.check("post", path, found)
        return found

    def delete(self, path: str) -> Any:
        status, found = self.ask(path, method="DELETE")
        assert status == 200, found
        self.check("delete", path, found)
        return found

    def check(self, method: str, path: str, answer: Any) -> None:
        """The answer is what the API's own document says."""
        if path == "openapi.json" or path.startswith("/"):
            return
        if not self.document:
            self.document.update(self.ask("openapi.json")[1])
        parts = path.partition("?")[0].split("/")
        operations = [
            methods[method]
            for pattern, methods in self.document["paths"].items()
            if method in methods and _fits(pattern.removeprefix("/api/v1/").split("/"), parts)
        ]
        assert operations, f"{method} {path} is not in the document"
        (content,) = operations[0]["responses"]["200"]["content"].values()
        faults = list(_faults(answer, content["schema"], self.document["components"]["schemas"]))
        assert not faults, (method, path, faults)

    def command(self, first: str, *words: str) -> str:
        """Run a command, and return what it has shown."""
        with pytest.MonkeyPatch.context() as patch:
            for bound in self.server.ready["addresses"]:
                patch.setenv(f"BROKERS_{bound['protocol'].upper()}_PORT", str(bound["port"]))
            patch.setenv("BROKERS_SERVE_DATA_DIR", str(self.server.data))
            done = run_here(first, *words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


def _fits(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(
        each.startswith("{") or each == part for each, part in zip(pattern, parts, strict=True)
    )


JSON_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _faults(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What of a value is not as a schema says; an object has nothing that the schema does not name."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(
        isinstance(value, JSON_TYPES[each]) and (each == "boolean" or not isinstance(value, bool))
        for each in types  # type: ignore[arg-type]
    ):
        yield f"{at}: {value!r} is not {types}"
    if isinstance(value, dict) and (named := schema.get("properties")):
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name in named:
                yield from _faults(each, named[name], schemas, f"{at}.{name}")
            else:
                yield f"{at}.{name} is not in the document"
    if isinstance(value, list) and "items" in schema:
        for each in value:
            yield from _faults(each, schema["items"], schemas, f"{at}[]")


class Asking:
    """A request, and its answer as it comes."""

    def __init__(self, server: Server, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(server.ready["page"].split("/")[2], timeout=20)
        self._connection.request("GET", path, headers={**login(server), **headers})
        self.answer = self._connection.getresponse()

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def events(self) -> Iterator[dict[str, Any]]:
        for line in self.answer:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def scrape(server: Server, path: str = "/metrics") -> str:
    with Asking(server, path) as asking:
        assert asking.answer.status == 200
        return asking.answer.read().decode()
