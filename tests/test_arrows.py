"""The arrows of the architecture, read from every import: a wrong one fails here, not in a review.

    brokers -> a folder per protocol -> shared

The rules are functions over one module's syntax tree, so that each is also tested to find what it is for.
Below them three counts over all modules together: files in one circle of imports, reaches into another
file's privates, and sans-IO modules that import a clock or a socket. What is allowed is written down beside
each; these lists only ever shrink.
"""

import ast
import functools
import gc
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    gc.disable()  # these objects stay, and looking through them costs more than making them
    found = tuple(ast.walk(ast.parse(source, path)))
    gc.freeze()
    gc.enable()
    return found


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

    A benchmark may import the protocol that it measures. Spark's data source speaks LogMQ's wire, and imports
    `logmq.connector` for it, which is made for that; nothing else of LogMQ.
    """
    if module.package != "brokers":
        return
    known = {module.name.removesuffix(".py")} if module.path.startswith("brokers/bench/") else set()
    connects = module.path.startswith("brokers/pipeline/source/")
    for name in module.imports():
        if connects and (name == "logmq" or f"{name}.".startswith("logmq.connector.")):
            continue
        if name.partition(".")[0] in PROTOCOLS - known:
            yield f"the host imports {name}"


ENDS = {
    "dmp": (
        "admin amqp_client blocking broker cli client definitions listener messages principal replay "
        "topology topology_table wide"
    ),
    "dms": (
        "admin blocking cli client consumer dmsq_file feeder link listener messages opening replay stress "
        "times"
    ),
    "kqmsgq": "blocking bridge cli client listener replay",
    "logmq": (
        "admin blocking broker cli client definitions groups listener record_counts replay retentions topics "
        "writers"
    ),
    "pubsub": "blocking bridge cli client listener replay terminal",
    "shared": "local_path process_limits replaying task_turns tracing",
    "shared/cli": "commands confirm objects options output_reader",
    "shared/client": (
        "asyncio_loop blocking dial login loop nursery pipelining receiver reconnecting running sender "
        "trio_loop"
    ),
    "shared/net": (
        "accept_filter admission datagrams keepalive listeners liveness logins "
        "loop_turn network poll slots strangers tls tls_socket"
    ),
    "shared/queues": "sifting timers",
    "shared/recording": "recorder",
    "shared/storage": (
        "checkpoint committer file_names files following index index_reader inventory lock log log_recovery "
        "log_writer os_disk reading rebuild recovery reserve_file retention scrub shipping store "
        "syscalls table threads watch"
    ),
    "shared/storage/tools": "backup fsck logs repair view",
}
"""By folder, the modules with a loop, a socket, a file or a clock, and what stands on those. All else of the
protocols and of shared is sans-IO, as is whatever is added: bytes and events in, bytes and events out."""
ALLOWED: dict[str, set[str]] = {
    "dmp/bodies.py": {"secrets"},
    "dmp/dead_letters.py": {"datetime"},
    "dmp/leases.py": {"secrets"},
    "dmp/shown_properties.py": {"datetime"},
    "dmp/timing.py": {"datetime"},
    "shared/addresses.py": {"datetime"},
    "shared/cron.py": {"datetime"},
    "shared/cli/progress.py": {"threading"},
    "shared/client/retry.py": {"secrets"},
    "shared/file_range.py": {"os"},
    "shared/net/settings.py": {"pathlib"},
    "shared/objects.py": {"datetime"},
    "shared/schedules.py": {"datetime"},
    "shared/plugin.py": {"pathlib", "open"},
    "shared/storage/journal.py": {"threading"},
    "shared/units.py": {"datetime"},
}
"""What sans-IO modules use all the same: names that cannot be guessed, the form of times and paths, the
timer of a progress bar, what is loaded where it is called, a field that is called `open`, a lock."""


def is_an_end(path: str) -> bool:
    folder, _, name = path.removesuffix(".py").rpartition("/")
    return name in ENDS.get(folder, "").split()


def should_be_sans_io(path: str) -> bool:
    return not path.startswith("brokers/") and not is_an_end(path)


def is_sans_io(module: Module) -> Iterator[str]:
    """Parsers and engines hold no trio, socket, file, clock or chance; time comes in as an argument."""
    if not should_be_sans_io(module.path):
        return
    allowed = ALLOWED.get(module.path, set())
    for name in module.imports():
        if name.partition(".")[0] in IMPURE - allowed:
            yield f"a sans-IO module imports {name}"
    if "open" in set(module.names()) - allowed:
        yield "a sans-IO module opens a file"


def keeps_the_loop_to_the_drivers(module: Module) -> Iterator[str]:
    """trio.lowlevel is for the driver in shared/net, for what watches the loop, and for what tests a server
    from another thread, alone."""
    if module.path.startswith(("shared/net/", "brokers/host/fairness.py", "brokers/testing.py")):
        return
    used = {*module.imports(), *module.names()}
    if "trio.lowlevel" in module.imports() or any(name.startswith("trio.lowlevel.") for name in used):
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
        (points_down, "shared/units.py", "import logmq.wire"),
        (points_down, "shared/units.py", "def f():\n    from brokers import cli"),
        (points_down, "logmq/wire.py", "import brokers.commands.render"),
        (points_down, "logmq/wire.py", "from brokers import render"),
        (points_down, "logmq/wire.py", "from ..brokers import render"),
        (knows_no_protocol_by_name, "brokers/host/host.py", "from logmq.plugin import plugin"),
        (knows_no_protocol_by_name, "brokers/bench/net.py", "import logmq.client"),
        (knows_no_protocol_by_name, "brokers/pipeline/session.py", "import logmq.wire"),
        (knows_no_protocol_by_name, "brokers/pipeline/source/servers.py", "import dms.wire"),
        (knows_no_protocol_by_name, "brokers/pipeline/source/servers.py", "from logmq.wire import Refusal"),
        (knows_no_protocol_by_name, "brokers/pipeline/source/servers.py", "from logmq import wire"),
        (is_sans_io, "logmq/wire.py", "import trio"),
        (is_sans_io, "dmp/what_is_added.py", "import trio"),
        (is_sans_io, "logmq/session.py", "from time import monotonic"),
        (is_sans_io, "logmq/session.py", "import os.path"),
        (is_sans_io, "logmq/wire.py", "text = open('x').read()"),
        (keeps_the_loop_to_the_drivers, "brokers/host/host.py", "import trio\ntrio.lowlevel.checkpoint()"),
        (keeps_the_loop_to_the_drivers, "logmq/client.py", "from trio.lowlevel import checkpoint"),
        (keeps_the_loop_to_the_drivers, "logmq/client.py", "from trio import lowlevel"),
        (
            keeps_threads_to_the_store,
            "brokers/admin/application.py",
            "import trio\ntrio.to_thread.run_sync(f)",
        ),
        (keeps_threads_to_the_store, "brokers/admin/application.py", "from anyio import to_thread"),
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
        ("brokers/pipeline/source/servers.py", "from logmq.connector import Mark"),
        ("logmq/session.py", "from shared.net.connection import Connection"),
        ("shared/net/poll.py", "import trio\ntrio.lowlevel.checkpoint()"),
        ("shared/storage/store.py", "import trio\ntrio.to_thread.run_sync(f)"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, source: str) -> None:
    module = Module(path, source)
    assert [wrong for rule in RULES for wrong in rule(module)] == []


# -- circles: what needs each other's types is one module

CIRCLE_FILES_MAX = 3


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of nodes that all reach each other, of two and more: Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
            if other in path:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            at = path.index(node)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return found


def import_graph(all_modules: Sequence[Module]) -> dict[str, set[str]]:
    """Which file imports which, for annotations too; a package's front (`__init__.py`) is not looked at."""
    by_name = {module.path.removesuffix(".py").replace("/", "."): module.path for module in all_modules}
    return {
        module.path: {by_name[name] for name in module.imports() if name in by_name} - {module.path}
        for module in all_modules
    }


def test_a_circle_of_imports_is_at_most_three_files() -> None:
    too_large = [
        files for files in circles(import_graph(modules(*PACKAGES))) if len(files) > CIRCLE_FILES_MAX
    ]
    assert too_large == [], "files that need each other's types are one module, or the arrow has to go"


def test_a_circle_is_found_where_only_an_annotation_closes_it() -> None:
    one = Module("dms/a.py", "import dms.b")
    two = Module("dms/b.py", "from dms import c")
    three = Module("dms/c.py", "if TYPE_CHECKING:\n    from dms.a import A")
    leaf = Module("dms/d.py", "import dms.a")
    assert circles(import_graph([leaf, one, two, three])) == [["dms/a.py", "dms/b.py", "dms/c.py"]]
    assert circles(import_graph([leaf, one, two])) == []


# -- privates: what another file needs is public, or belongs there

NOT_PRIVATE = frozenset(
    {"_replace", "_asdict", "_fields", "_exit", "_current_frames", "_get_j_spark_session_class"}
)
"""Named tuples', `os._exit` and `sys._current_frames`, and with `_j...` what py4j and Spark call theirs."""
LIBRARIES_PRIVATES: Mapping[str, frozenset[str]] = {
    "brokers/settings/explaining.py": frozenset({"_validators"}),
    "tests/dmp/test_pika.py": frozenset({"_impl", "_transport", "_sock"}),
    "tests/shared/storage/test_os_disk.py": frozenset({"_thread_cache"}),
    "tests/trials/sim/world.py": frozenset({"_run", "_r"}),
}
"""attrs' joined validators, pika's socket, trio's idle threads and its chance: no public way leads there."""
PLANTED_BUGS = frozenset({"tests/trials/sim/bugs.py"})
"""A planted bug is a change of the inside: it names what it changes, and fails where that is gone."""


def private_accesses(module: Module) -> Iterator[str]:
    """Names that begin with one underscore and are neither of this file nor of `self`."""
    own: set[str] = set()
    for node in nodes(module.source, module.path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            own |= names
            if "__slots__" in names and node.value is not None:
                own |= {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    known = NOT_PRIVATE | LIBRARIES_PRIVATES.get(module.path, frozenset())
    for node in nodes(module.source, module.path):
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and node.args and not _is_self(node.args[0]):
            names = set(_named_in_strings(node))
        else:
            continue
        for name in names - own - known:
            if name.startswith("_") and not name.startswith(("__", "_j")):
                yield name


def _named_in_strings(call: ast.Call) -> Iterator[str]:
    """What `getattr(that, "_name")` and `monkeypatch.setattr("module._name", ...)` reach."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in ("getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"):
        for each in call.args[:2]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield from each.value.split(".")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_no_file_touches_another_files_privates() -> None:
    touched = [
        f"{module.path}: {name}"
        for module in modules(*PACKAGES, "tests")
        if module.path not in PLANTED_BUGS
        for name in private_accesses(module)
    ]
    assert touched == [], "make it public, or move what needs it"


@pytest.mark.parametrize(
    ("source", "touched"),
    [
        ("session.connection._flush()", ["_flush"]),
        ("from dms.session import _apply", ["_apply"]),
        ("class A:\n    def _f(self): self._g(); other._f()", []),
        ("class A:\n    __slots__ = ('_x',)\n    def f(self, other): other._x", []),
        ("getattr(session, '_flush', None)", ["_flush"]),
        ("monkeypatch.setattr(session, '_flush', None)", ["_flush"]),
        ("monkeypatch.setattr('dms.session._apply', None)", ["_apply"]),
        ("attrgetter('connection._flush')", ["_flush"]),
        ("class A:\n    def _f(self): getattr(self, '_g'); getattr(other, '_f'); getattr(other, 'f')", []),
        ("row._replace(x=1); os._exit(1); spark._jvm; a.__class__", []),
    ],
)
def test_a_touched_private_is_found(source: str, touched: list[str]) -> None:
    assert list(private_accesses(Module("dms/a.py", source))) == touched


# -- sans-IO: imported where there is no loop, no socket, no system and no clock

BLOCKED = ("trio", "socket", "os", "time")
_IMPORTER = """
import builtins, importlib, json, sys

packages, blocked, names = json.load(sys.stdin)
plain_import, found = builtins.__import__, {}

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if not level and name.partition(".")[0] in blocked and importer.partition(".")[0] in packages:
        raise ImportError(f"{importer} imports {name}")
    return plain_import(name, globals, locals, fromlist, level)

builtins.__import__ = guarded
for name in names:
    try:
        importlib.import_module(name)
    except ImportError as error:
        found[name] = str(error)
json.dump(found, sys.stdout)
"""


def unimportable(paths: Sequence[str], blocked: Sequence[str] = BLOCKED) -> list[str]:
    """Those of `paths` that, or that through another file of ours, import one of `blocked`; and who does."""
    names = [path.removesuffix(".py").replace("/", ".") for path in paths]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTER],
        input=json.dumps([PACKAGES, blocked, names]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [f"{name}: {why}" for name, why in json.loads(done.stdout).items()]


def test_sans_io_modules_are_imported_without_a_loop_a_socket_a_system_or_a_clock() -> None:
    paths = [module.path for module in modules(*PACKAGES) if should_be_sans_io(module.path)]
    assert {"logmq/wire.py", "dms/session.py", "shared/routing/trie.py"} <= set(paths)
    assert unimportable(paths) == []


def test_what_needs_no_loop_socket_system_or_clock_is_not_named_among_the_ends() -> None:
    paths = [module.path for module in modules(*PACKAGES) if is_an_end(module.path)]
    assert len(unimportable(paths)) == len(paths)


def test_what_a_module_imports_through_another_is_found() -> None:
    assert unimportable(["logmq/listener.py"], ["trio"]) != []
    assert unimportable(["logmq/wire.py"], ["trio"]) == []
