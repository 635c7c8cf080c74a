"""The actions that make, change and delete bridges of the data folder (`brokers.bridges.own`)."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from brokers.bridges.actions import CHANGE, CREATE, DELETE, TABLE
from brokers.bridges.bridge import Bridge
from brokers.bridges.own import NAME, read_own, with_own
from brokers.bridges.settings import BridgeSettings, Ends
from shared.definitions import Conflict, DefinitionSection, Made, Promised, Row, name_of
from shared.local_path import replace_file
from shared.objects import BadArgument, BadValue, Objects, a_text
from shared.storage.threads import Threads


class OwnBridges:
    """Makes, changes and deletes bridges. `present`: all that run; `take_up`: has exactly these run."""

    def __init__(
        self,
        folder: Path,
        ends: Ends,
        present: Callable[[], Sequence[BridgeSettings]],
        take_up: Callable[[tuple[BridgeSettings, ...]], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._ends = ends
        self._present = present
        self._take_up = take_up
        self._in_thread = Threads()
        self._lock = trio.Lock()

    def added_to(self, objects: Objects) -> Objects:
        """The bridges with these actions."""
        return attrs.evolve(
            objects, actions=(*objects.actions, self._change, self._delete), makes=(self._create,)
        )

    @CREATE
    async def _create(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        name = a_text(arguments, "name")
        if name in {each.name for each in self._present()}:
            raise BadArgument(f"name: there is a bridge {name} already")
        given = {key: value for key, value in arguments.items() if value is not None}
        await self._put(lambda tables: [*tables, given], dry_run)
        return {"created": 1}

    @CHANGE
    async def _change(self, bridge: Bridge, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        def changed(tables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
            own = next((each for each in tables if each.get("name") == bridge.name), None)
            if own is None:
                raise BadArgument(f"{bridge.name} stands in the settings: change it there, and reload")
            new = {key: value for key, value in {**own, **arguments}.items() if value is not None}
            return [new if each is own else each for each in tables]

        await self._put(changed, dry_run)
        return {"changed": 1}

    @DELETE
    async def _delete(self, bridge: Bridge, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        def without(tables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
            left = [each for each in tables if each.get("name") != bridge.name]
            if len(left) == len(tables):
                raise BadArgument(f"{bridge.name} stands in the settings: remove it there, and reload")
            return left

        await self._put(without, dry_run)
        return {"deleted": 1}

    def definitions(self) -> DefinitionSection:
        """These bridges as a section of a definitions document."""

        async def make(row: Row, dry_run: bool, _: Promised) -> Made:
            name = a_text(row, "name")
            own = {each.get("name"): each for each in await self._in_thread(read_own, self._folder)}
            if own.get(name) == row:
                return Made(new=False)
            if name in own or name in {each.name for each in self._present()}:
                raise Conflict("there is another bridge of that name here")
            await self._put(lambda tables: [*tables, row], dry_run)
            return Made(new=True)

        return DefinitionSection(
            "bridges", ("name", *TABLE), lambda _: iter(read_own(self._folder)), name_of, make
        )

    async def _put(
        self,
        change: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]],
        dry_run: bool,
    ) -> None:
        """Change the tables, and what runs. Raises BadArgument and OSError."""
        async with self._lock:
            try:
                before = await self._in_thread(read_own, self._folder)
            except ValueError as error:
                raise BadArgument(f"{self._folder / NAME} cannot be read: {error}") from None
            after = change(before)
            names = {each.get("name") for each in before}
            others = [each for each in self._present() if each.name not in names]
            every, problems = with_own(others, after, self._ends, NAME)
            if problems:
                raise BadValue("; ".join(f"{each.key.rpartition('.')[2]}: {each.text}" for each in problems))
            if not dry_run:
                data = json.dumps(after, indent=1).encode()
                await self._in_thread(replace_file, self._folder / NAME, data, 0o600)
                await self._take_up(every)
