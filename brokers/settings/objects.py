"""The settings in force as objects of the API, with the action that reads them again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from brokers.commands.render import cell
from brokers.settings.config import OWN_SECTIONS, Config, Shown
from brokers.settings.explaining import explained
from brokers.settings.reloading import Reloaded
from shared.actions import changing
from shared.objects import SETTINGS, Objects, key_of
from shared.storage.threads import Threads


class SettingObjects:
    """The settings of a server. `reload` takes up what changed; with True it only says what that is."""

    def __init__(self, config: Callable[[], Config], reload: Callable[[bool], Awaitable[Reloaded]]) -> None:
        self._config = config
        self._reload = reload
        self._shown: tuple[Config | None, Mapping[str, Shown]] = None, {}
        self._meanings: Mapping[str, str] | None = None
        self._in_thread = Threads()
        self.objects = Objects(
            SETTINGS,
            lambda: list(self._rows()),
            key_of,
            lambda parts: parts[0] if parts[0] in self._rows() else None,
            self._row,
            makes=(self._take_up,),
            look=self._look,
        )

    def _rows(self) -> Mapping[str, Shown]:
        config = self._config()
        if self._shown[0] is not config:
            self._shown = config, {each.setting: each for each in config.shown(human=True)}
        return self._shown[1]

    def _row(self, name: str) -> Mapping[str, Any] | None:
        found = self._rows().get(name)
        if found is None:
            return None
        value = None if found.value is None else cell(found.value)
        return {"name": name, "value": value, "source": found.source}

    async def _look(self, name: str, _: float) -> Mapping[str, Any]:
        if self._meanings is None:
            self._meanings = await self._in_thread(_meanings, self._config())
        return {"meaning": self._meanings.get(name)}

    @changing(
        "reload",
        "Take up settings, users and certificates, all or nothing.",
        answers=("changed", "restart"),
        tells=("settings", "after_a_restart"),
    )
    async def _take_up(self, _: Any, __: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        reloaded = await self._reload(dry_run)
        return {
            "changed": len(reloaded.changed),
            "restart": len(reloaded.restart),
            **_named("settings", reloaded.changed),
            **_named("after_a_restart", reloaded.restart),
        }


def _named(what: str, names: Sequence[str]) -> Mapping[str, str]:
    return {what: ", ".join(names)} if names else {}


def _meanings(config: Config) -> Mapping[str, str]:
    """What each setting is for, by its name. It reads the source of the settings' classes: 100 ms."""
    sections = {**OWN_SECTIONS, **{name: type(section) for name, section in config.protocols.items()}}
    return {row.setting: row.meaning for row in explained(sections)}
