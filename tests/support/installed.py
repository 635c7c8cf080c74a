"""Protocols that are installed only for a test: fake entry points over real modules made on the spot."""

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, cast

import attrs
import pytest
import structlog

from brokers import plugins
from shared.metrics import Sample
from shared.plugin import Context, Plugin, Service


@attrs.frozen
class Settings:
    port: int = 0


class Idle:
    """A service that binds nothing and does nothing."""

    endpoints = ()

    async def run(self) -> None: ...

    def drain(self) -> None: ...

    def samples(self) -> Iterable[Sample]:
        return ()


async def open_idle(_: Context, __: Any) -> Service:
    return Idle()


def plugin(name: str, **changes: Any) -> Plugin:
    """A plugin that does nothing, but for `changes`."""
    idle = Plugin(
        name=name, summary=f"Protocol {name}.", settings=Settings, open=open_idle, cli=f"{name}_plugin:app"
    )
    return attrs.evolve(idle, **changes)


def install(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, Mapping[str, Any] | Exception]) -> None:
    """Have exactly these protocols installed: by name, what the module `<name>_plugin` holds.

    An exception instead: importing it raises that. Entry points name the module's `plugin`.
    """
    points = []
    for name, contents in modules.items():
        module = types.ModuleType(f"{name}_plugin", f"Protocol {name}.\n\nMore.")
        if isinstance(contents, Exception):
            module.__getattr__ = _raiser(contents)  # type: ignore[method-assign]
        else:
            vars(module).update(contents)
        monkeypatch.setitem(sys.modules, f"{name}_plugin", module)
        points.append(EntryPoint(name, f"{name}_plugin:plugin", plugins.GROUP))
    look_again(monkeypatch)
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this test what is installed is looked for each time, not once a process."""
    monkeypatch.setattr(plugins, "installed", getattr(plugins.installed, "__wrapped__", plugins.installed))


def quiet_log(told: list[Mapping[str, Any]] | None = None) -> structlog.stdlib.BoundLogger:
    """A logger that nobody hears but `told`, and that makes no tracebacks pretty."""

    def drop(_: Any, __: str, line: Any) -> Any:
        if told is not None:
            told.append(line)
        raise structlog.DropEvent

    return cast(structlog.stdlib.BoundLogger, structlog.wrap_logger(None, processors=[drop]))


def _raiser(error: Exception) -> Callable[[str], Any]:
    def get(_: str) -> Any:
        raise error

    return get
