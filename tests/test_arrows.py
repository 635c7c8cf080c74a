"""The arrows of the architecture, read from every import: a wrong one fails here, not in a review.

    brokers -> a folder per protocol -> shared

The rules are functions over one module's syntax tree, so that each is also tested to find what it is for.
"""

import ast
import functools
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
)
PROTOCOLS = frozenset(PACKAGES) - {"brokers", "shared"}

# What a sans-IO module may not touch: the loop, sockets, files, clocks, chance, threads, processes.
IMPURE = frozenset(
    {"asyncio", "anyio", "trio", "socket", "ssl", "select", "selectors", "os", "io", "pathlib", "shutil"}
    | {"tempfile", "mmap", "fcntl", "time", "datetime", "random", "secrets", "uuid", "threading"}
    | {"concurrent", "multiprocessing", "subprocess", "signal"}
)


@functools.cache
def nodes(source: str, path: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source, path)))


@attrs.frozen
class Module:
    """One source file: `path` from the root (`logmq/wire.py`)."""

    path: str
    source: str

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def imports(self) -> Iterator[str]:
        """Every module that is imported anywhere in the file, in full (`shared.net.connection`)."""
        for node in nodes(self.source, self.path):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = self.path.removesuffix(".py").split("/")[: -node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def names(self) -> Iterator[str]:
        """Every dotted name that is used (`trio.lowlevel.spawn_system_task`)."""
        for node in nodes(self.source, self.path):
            parts: list[str] = []
            inner: ast.AST = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield ".".join([inner.id, *reversed(parts)])


Rule = Callable[[Module], Iterator[str]]


def points_down(module: Module) -> Iterator[str]:
    """brokers -> protocols -> shared, and protocols never import each other."""
    for name in module.imports():
        top = name.partition(".")[0]
        if module.package == "shared" and top in PROTOCOLS | {"brokers"}:
            yield f"shared imports {name}"
        elif module.package in PROTOCOLS and (top == "brokers" or top in PROTOCOLS - {module.package}):
            yield f"{module.package} imports {name}"


def knows_no_protocol_by_name(module: Module) -> Iterator[str]:
    """The host finds protocols by entry point.

    A benchmark may import the protocol that it measures, and Spark's data source the one whose wire it speaks
    and whose name it has.
    """
    if module.package != "brokers":
        return
    known = {module.name.removesuffix(".py")} if module.path.startswith("brokers/bench/") else set()
    if module.path.startswith("brokers/pipeline/source/"):
        known.add("logmq")
    for name in module.imports():
        if name.partition(".")[0] in PROTOCOLS - known:
            yield f"the host imports {name}"


def is_sans_io(module: Module) -> Iterator[str]:
    """wire.py and session.py hold no trio, socket, file, clock or chance; time comes in as an argument."""
    if module.package not in PROTOCOLS or module.name not in ("wire.py", "session.py"):
        return
    for name in module.imports():
        if name.partition(".")[0] in IMPURE:
            yield f"a sans-IO module imports {name}"
    if "open" in set(module.names()):
        yield "a sans-IO module opens a file"


def keeps_the_loop_to_the_drivers(module: Module) -> Iterator[str]:
    """trio.lowlevel is for the drivers in shared/net, and for them alone."""
    if not module.path.startswith("shared/net/") and _uses(module, "trio.lowlevel"):
        yield "trio.lowlevel outside shared/net"


def keeps_threads_to_the_store(module: Module) -> Iterator[str]:
    """Only the store hands work to threads.

    The host's metrics are rendered in one too, but by Starlette (`run_in_threadpool`), as it would a plain
    function; so nothing else in this project starts a thread that the loop waits for, and this rule has no
    exception.
    """
    if module.path.startswith("shared/storage/"):
        return
    for place in ("trio.to_thread", "anyio.to_thread"):
        if _uses(module, place):
            yield f"{place} outside shared/storage"


def _uses(module: Module, place: str) -> bool:
    return any(name == place or name.startswith(place + ".") for name in (*module.imports(), *module.names()))


RULES: tuple[Rule, ...] = (
    points_down,
    knows_no_protocol_by_name,
    is_sans_io,
    keeps_the_loop_to_the_drivers,
    keeps_threads_to_the_store,
)


def modules(*folders: str) -> list[Module]:
    return [
        Module(path.relative_to(ROOT).as_posix(), path.read_text())
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    found = [f"{module.path}: {wrong}" for module in modules(*PACKAGES) for wrong in rule(module)]
    assert found == []


def test_every_package_of_the_project_is_looked_at() -> None:
    assert {"brokers", "logmq", "shared"} <= set(PACKAGES)
    assert all(modules(package) for package in PACKAGES)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (points_down, "shared/limits.py", "import logmq.wire"),
        (points_down, "shared/limits.py", "def f():\n    from brokers import cli"),
        (points_down, "logmq/wire.py", "import brokers.render"),
        (points_down, "logmq/wire.py", "from brokers import render"),
        (points_down, "logmq/wire.py", "from ..brokers import render"),
        (knows_no_protocol_by_name, "brokers/host.py", "from logmq.plugin import plugin"),
        (knows_no_protocol_by_name, "brokers/bench/net.py", "import logmq.client"),
        (knows_no_protocol_by_name, "brokers/pipeline/session.py", "import logmq.wire"),
        (knows_no_protocol_by_name, "brokers/pipeline/source/servers.py", "import dms.wire"),
        (is_sans_io, "logmq/wire.py", "import trio"),
        (is_sans_io, "logmq/session.py", "from time import monotonic"),
        (is_sans_io, "logmq/session.py", "import os.path"),
        (is_sans_io, "logmq/wire.py", "text = open('x').read()"),
        (keeps_the_loop_to_the_drivers, "brokers/host.py", "import trio\ntrio.lowlevel.checkpoint()"),
        (keeps_the_loop_to_the_drivers, "logmq/client.py", "from trio.lowlevel import checkpoint"),
        (keeps_the_loop_to_the_drivers, "logmq/client.py", "from trio import lowlevel"),
        (keeps_threads_to_the_store, "brokers/admin.py", "import trio\ntrio.to_thread.run_sync(f)"),
        (keeps_threads_to_the_store, "brokers/admin.py", "from anyio import to_thread"),
    ],
)
def test_a_broken_rule_is_found(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source)))


def test_two_protocols_may_not_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PROTOCOLS", frozenset({"logmq", "dms"}))
    assert list(points_down(Module("dms/session.py", "from logmq import wire")))
    assert not list(points_down(Module("dms/session.py", "from dms import wire")))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("brokers/bench/logmq.py", "from logmq.client import Client"),
        ("brokers/pipeline/source/servers.py", "from logmq.answers import Mark"),
        ("logmq/session.py", "from shared.net.connection import Connection"),
        ("shared/net/poll.py", "import trio\ntrio.lowlevel.checkpoint()"),
        ("shared/storage/store.py", "import trio\ntrio.to_thread.run_sync(f)"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, source: str) -> None:
    module = Module(path, source)
    assert [wrong for rule in RULES for wrong in rule(module)] == []
