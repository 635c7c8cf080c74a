"""Reload: settings, users and certificates are read again, and every part of the server applies them.

All or nothing. First everything is read and checked in a thread, and every part prepares. An error in this
phase ends the reload, and nothing is changed. Then all parts apply, which cannot fail. Settings that take a
restart (`shared.units.RESTART`) keep their value, and are named in the result.

The host, each protocol and the admin port are parts, registered with `Reloader.register`. A part prepares: it
checks all that it needs of the settings and of the files named there. Files that it watches, mostly
certificates, are checked each minute; if one changed, that part alone reloads it under the present settings.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import structlog
import trio

from brokers.bridges.settings import BridgeSettings
from brokers.errors import Failure
from brokers.settings.checking import require_startable
from brokers.settings.config import OWN_SECTIONS, Config
from brokers.settings.structure import take_up
from shared.errors import BrokerError
from shared.storage.threads import Threads

LOOK_SECONDS = 60.0
"""How often watched files are checked."""
APPLY_SECONDS = 30.0
"""To apply what was prepared; it takes a second with 100,000 topics. Then a caller that is gone ends it."""
NOT_SERVED = ("client",)
"""Sections that a server ignores."""
NEXT_START = ("storage",)
"""Sections whose values all take a restart."""

Apply = Callable[[], Awaitable[None]]
Prepare = Callable[[Config], Awaitable[Apply]]
"""Raises BrokerError, and nothing has changed. The result cannot fail; it may not be called at all."""
Watched = Callable[[Config], Iterable[Path]]
"""Files that are applied when they change, without a reload."""


class PartlyReloaded(Failure):
    """A bug kept some changes from being applied; all others are in effect."""


@attrs.frozen
class Reloaded:
    """The settings that changed, and the changed ones that take a restart."""

    changed: Sequence[str] = ()
    restart: Sequence[str] = ()


class Reloader:
    """Applies changes to all registered parts. `config`: the present settings."""

    def __init__(
        self,
        config: Config,
        protocols: Mapping[str, bool],
        log: structlog.stdlib.BoundLogger,
        read: Callable[[], Config] | None = None,
    ) -> None:
        """`protocols`: those that are served, and whether each takes settings up. `read`: the settings as a
        start would read them now; without it they stay."""
        self.config = config
        self._protocols = protocols
        self._log = log
        self._read = read or (lambda: config)
        self._parts: dict[Prepare, Watched] = {}
        self._seen: dict[Prepare, Seen] = {}
        self._lock = trio.Lock()
        self._in_thread = Threads()

    def register(self, prepare: Prepare, watched: Watched = lambda _: ()) -> None:
        """Include a part in every reload from now on."""
        self._parts[prepare] = watched
        self._seen[prepare] = self._look(prepare, self.config)

    async def reload(self, *, dry_run: bool = False) -> Reloaded:
        """Read and apply everything again. Raises BrokerError; nothing is changed then, unless it is
        PartlyReloaded. `dry_run`: only read, check and prepare."""
        async with self._lock:
            config: Config
            reloaded: Reloaded
            with self._bugs_refuse():
                config, reloaded = await self._in_thread(self._read_and_check, abandon_on_cancel=True)
            await self._take_up(config, tuple(self._parts), dry_run=dry_run)
            return reloaded

    async def take_bridges(self, part: Prepare, bridges: tuple[BridgeSettings, ...]) -> None:
        """Have exactly these bridges run. Raises as `reload`."""
        async with self._lock:
            await self._take_up(attrs.evolve(self.config, bridges=bridges), [part])

    async def run(self) -> None:
        """Look at the watched files each minute, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            async with self._lock:
                parts = [part for part, seen in self._seen.items() if self._look(part, self.config) != seen]
                if not parts:
                    continue
                try:
                    await self._take_up(self.config, parts)
                except PartlyReloaded:
                    pass  # it is in the log
                except BrokerError as error:
                    self._log.error(
                        "files of TLS have changed and cannot be used: the old certificate is served on; put "
                        "them right, they are looked at each minute",
                        error=str(error),
                    )
                else:
                    self._log.info("files of TLS have changed: new connections see the new certificate")

    def _read_and_check(self) -> tuple[Config, Reloaded]:
        old, new = self.config, self._read()
        changed: list[str] = []
        restart: list[str] = []
        own = {
            name: take_up(
                getattr(old, name),
                getattr(new, name),
                (name,),
                changed if name not in NOT_SERVED else [],
                restart,
                all_restart=name in NEXT_START,
            )
            for name in OWN_SECTIONS
        }
        protocols = {
            name: take_up(
                old.protocols[name],
                settings,
                (name,),
                changed if name in self._protocols else [],
                restart if name in self._protocols else [],
                all_restart=not self._protocols.get(name, True),
            )
            for name, settings in new.protocols.items()
        }
        bridges = ({bridge.name: bridge for bridge in config.bridges} for config in (old, new))
        before, after = bridges
        changed += [
            f"bridge.{name}" for name in sorted({*before, *after}) if before.get(name) != after.get(name)
        ]
        config = attrs.evolve(new, **own, protocols=protocols)
        # What is asked for has to start one day, and what comes out of it is served now.
        for each in (new, config):
            require_startable(each, list(self._protocols))
        return config, Reloaded(changed, restart)

    async def _take_up(self, config: Config, parts: Sequence[Prepare], *, dry_run: bool = False) -> None:
        seen = {part: self._look(part, config) for part in parts}  # before they are read
        with self._bugs_refuse():
            applies = [await prepare(config) for prepare in parts]
        if dry_run:
            return
        bugs: list[Exception] = []
        with trio.move_on_after(APPLY_SECONDS, shield=True):
            for apply in applies:
                try:
                    await apply()
                except Exception as error:
                    self._log.error(
                        "a reload met a bug where it applies changes: one part has some of them from the "
                        "next start on, all else has them; report it",
                        exc_info=error,
                    )
                    bugs.append(error)
        self.config = config
        self._seen |= seen
        if bugs:
            listed = ", ".join(map(repr, bugs))
            raise PartlyReloaded(f"a bug, and it is done in part until a restart; report it: {listed}")

    @contextmanager
    def _bugs_refuse(self) -> Iterator[None]:
        """Refuse what meets a bug, before anything has changed: a protocol's own code is called here."""
        try:
            yield
        except BrokerError:
            raise
        except Exception as error:
            self._log.error(
                "a reload met a bug, and changed nothing: the server goes on as it was; report it",
                exc_info=error,
            )
            raise Failure(f"a bug, and nothing was changed; report it: {error!r}") from error

    def _look(self, part: Prepare, config: Config) -> "Seen":
        """What tells that a file was replaced or written, of each that the part watches."""
        return {path: _stat(path) for path in self._parts[part](config)}


Seen = Mapping[Path, Collection[int]]


def _stat(path: Path) -> Collection[int]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
