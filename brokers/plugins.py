"""The protocols that are installed: packages with an entry point in the group `brokers.protocols`.

Their names are known without importing anything; a plugin is loaded when it is served, configured or called.
A package that is broken costs one clear line, never the others.
"""

import functools
import importlib
import re
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

import attrs

import shared
from brokers.commands.catalog import COMMANDS
from brokers.errors import ExitCode, Failure, InvalidSettings, Problem, did_you_mean

if TYPE_CHECKING:
    from shared.access import Rule
    from shared.plugin import Plugin

GROUP = "brokers.protocols"

OWN_SECTIONS = frozenset(
    {"serve", "net", "tls", "access", "admin", "attention", "client", "storage", "record", "ship"}
)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def names() -> list[str]:
    """The installed protocols, sorted; whether they work is not known yet."""
    return sorted(installed())


def packages() -> list[str]:
    """The top-level packages of the host and of the installed protocols, sorted."""
    modules = {point.module for points in installed().values() for point in points}
    return sorted({name.partition(".")[0] for name in (__name__, shared.__name__, *modules)})


def summary(name: str) -> str:
    """One line about a protocol, from its package's docstring: what a list of commands can afford."""
    try:
        module = installed()[name][0].module
        package = importlib.import_module(module.rpartition(".")[0] or module)
    except Exception as error:
        return f"(broken: {said(error)})"
    return (package.__doc__ or "").strip().partition("\n")[0]


def load(name: str) -> "Plugin":
    """The plugin of an installed protocol. Raises Failure, in one line, where it is missing or broken."""
    candidates = installed().get(name)
    if not candidates:
        hint = did_you_mean(name, names(), f"; installed: {', '.join(names()) or 'none'}")
        raise Failure(f"no protocol {name!r} is installed{hint}", ExitCode.CONFIGURATION)
    where = " and ".join(sorted(_package(point) for point in candidates))
    if len(candidates) > 1:
        raise Failure(f"protocol {name!r} is offered twice, by {where}: remove one", ExitCode.CONFIGURATION)
    fault: object
    try:
        plugin = candidates[0].load()
        fault = _fault(name, plugin)
    except Exception as error:
        fault = said(error)
    if fault:
        raise Failure(f"protocol {name!r} of {where} cannot be used: {fault}", ExitCode.CONFIGURATION)
    return plugin  # type: ignore[no-any-return]  # _fault has looked


def load_all() -> tuple[list["Plugin"], dict[str, Failure]]:
    """Every plugin that works, and by name a line for each that does not."""
    plugins, broken = [], {}
    for name in names():
        try:
            plugins.append(load(name))
        except Failure as error:
            broken[name] = error
    return plugins, broken


def load_working() -> tuple[list["Plugin"], tuple[str, ...]]:
    """Every plugin that works, and the names of the others: each of those is a line on standard error."""
    working, broken = load_all()
    for error in broken.values():
        print(f"brokers: {error}", file=sys.stderr)
    return working, tuple(broken)


def enabled(enable: Sequence[str], plugins: Sequence["Plugin"], source: str) -> list["Plugin"]:
    """The plugins that `enable` names (`all`: every one that works), each once.

    Raises InvalidSettings where a name is unknown, or is that of a plugin which does not work; `source` is
    where the list came from.
    """
    working = {plugin.name: plugin for plugin in plugins}
    names = [name for name in dict.fromkeys(enable) if name != "all"]
    problems = []
    for name in names:
        if name not in working:
            try:
                load(name)
            except Failure as error:
                problems.append(Problem("serve.enable", str(error), source))
    if problems:
        raise InvalidSettings(tuple(problems))
    return list(plugins) if "all" in enable else [working[name] for name in names]


def check_rule(rule: "Rule") -> None:
    """Raises UsersError where nothing here asks for what the rule allows: a word of it is misspelt."""
    from shared.access import ADMIN, UsersError

    if rule.protocol == ADMIN:
        return
    if rule.protocol not in ("*", *installed()):
        hint = did_you_mean(rule.protocol, names())
        raise UsersError(f"rule {rule}: no protocol {rule.protocol} is installed{hint}")
    known = _actions(rule.protocol)
    if known and rule.action not in ("*", *known):
        raise UsersError(f"rule {rule}: its action is {', '.join(known)} or *, not {rule.action}")


@functools.cache
def _actions(protocol: str) -> tuple[str, ...]:
    """What rules can allow in a protocol, or in one of them (`*`); nothing where one is broken."""
    actions: dict[str, None] = {}
    for name in names() if protocol == "*" else [protocol]:
        try:
            actions |= dict.fromkeys(load(name).actions)
        except Failure:
            return ()
    return tuple(actions)


@functools.cache
def installed() -> dict[str, list[EntryPoint]]:
    """By name, the entry points that offer a protocol of that name: more than one is a mistake.

    Kept, since it reads the metadata of every installed package; uncached, one command did it six times.
    """
    entry_points_by_name: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        # By value: one installation can be seen twice, through an editable install and its folder.
        entry_points_by_name.setdefault(point.name, {}).setdefault(point.value, point)
    return {name: list(points.values()) for name, points in entry_points_by_name.items()}


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _fault(name: str, plugin: object) -> str | None:
    """What is wrong with a plugin, if anything: what would otherwise fail later, and less clearly."""
    from shared.plugin import Plugin

    if not isinstance(plugin, Plugin):
        return f"its entry point names a {type(plugin).__name__}, not a Plugin"
    if plugin.name != name:
        return f"its entry point is called {name!r}, its Plugin {plugin.name!r}"
    if name in OWN_SECTIONS | COMMANDS.keys() or not _NAME.fullmatch(name):
        return "its name is taken by the host, or is not made of a-z, 0-9, _ and - (32 at most)"
    if not (isinstance(plugin.settings, type) and attrs.has(plugin.settings)):
        return "its settings are not an attrs class"
    fields = attrs.fields_dict(plugin.settings)
    bare = [field.name for field in fields.values() if field.init and field.default is attrs.NOTHING]
    if bare:
        return f"its setting {bare[0]!r} has no default"
    if "port" not in fields:
        return "its settings have no port"
    return None
