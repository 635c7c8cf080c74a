"""Settings: flags over `BROKERS_<SECTION>_<KEY>` over a TOML file over defaults (a command's own first).

Each section is a settings class beside the code that it configures. A plugin brings its protocol's class.
Everything that is wrong is reported at once, with the nearest right name.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from brokers.bridges import own
from brokers.bridges.settings import SECTION, BridgeSettings, ends_of, parse_bridges
from brokers.commands.flags import Flag
from brokers.errors import InvalidSettings, Problem, did_you_mean
from brokers.plugins import enabled, load_working
from brokers.settings.sections import AccessSettings, AdminSettings, AttentionSettings, ServeSettings
from brokers.settings.structure import (
    GivenValue,
    Key,
    build,
    environment_keys,
    flatten,
    leaves,
    plain,
    written,
)
from brokers.ship.settings import ShipSettings
from shared.access import Required
from shared.client.login import VARIABLES
from shared.local_path import local_path, read_file
from shared.net.settings import ClientSettings, NetSettings, ProtocolAccessSettings, TlsSettings
from shared.plugin import Plugin
from shared.recording.settings import RecordSettings
from shared.storage.settings import StorageSettings

FILE_VARIABLE = "BROKERS_CONFIG"
"""The variable for `--config`."""

OWN_SECTIONS: Mapping[str, type[Any]] = {
    "serve": ServeSettings,
    "net": NetSettings,
    "tls": TlsSettings,
    "access": AccessSettings,
    "admin": AdminSettings,
    "attention": AttentionSettings,
    "client": ClientSettings,
    "storage": StorageSettings,
    "record": RecordSettings,
    "ship": ShipSettings,
}

BRIDGES: Key = (SECTION,)
"""Where the tables `[[bridge]]` are kept while the settings are read: they are no section."""
USERS_NAME = "users.toml"
"""The name of the users file in the data folder, unless `access.users_file` names another."""

# Kubernetes sets these in every pod if a Service is called `brokers`. They are not ours.
_SERVICE_LINK = re.compile(r"BROKERS_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP)(_.*)?)?)")


@attrs.frozen
class Shown:
    """One setting as `config show` lists it."""

    setting: str
    value: Any
    source: str


@attrs.frozen
class Config:
    """All sections, valid, and where each value came from. `protocols`: by plugin, its own settings."""

    serve: ServeSettings
    net: NetSettings
    tls: TlsSettings
    access: AccessSettings
    admin: AdminSettings
    attention: AttentionSettings
    client: ClientSettings
    storage: StorageSettings
    record: RecordSettings
    ship: ShipSettings
    protocols: Mapping[str, Any]
    sources: Mapping[Key, str]
    bridges: tuple[BridgeSettings, ...] = ()

    def tls_of(self, protocol: str) -> tuple[str, TlsSettings]:
        """Return a protocol's TLS settings and their section: its own, or the common one."""
        own = getattr(self.protocols[protocol], "tls", None)
        if isinstance(own, TlsSettings) and own.enabled:
            return f"{protocol}.tls", own
        return "tls", self.tls

    def admin_tls(self) -> tuple[str, TlsSettings]:
        """The TLS settings of the admin port and their section."""
        return ("admin.tls", self.admin.tls) if self.admin.tls.enabled else ("tls", self.tls)

    @property
    def asked_for_admin_port(self) -> bool:
        """Whether somebody has named it: then the server does not start without."""
        return ("admin", "port") in self.sources

    def host_of(self, protocol: str) -> tuple[str, str]:
        """The address that a protocol binds, and the setting that says so: its own, or `serve.host`."""
        own = getattr(self.protocols[protocol], "host", None)
        return ("serve.host", self.serve.host) if own is None else (f"{protocol}.host", own)

    def required_of(self, protocol: str) -> Required:
        """Where a protocol's clients have to log in."""
        own = getattr(self.protocols[protocol], "access", None)
        if isinstance(own, ProtocolAccessSettings) and own.required is not None:
            return own.required
        return self.access.required

    @property
    def users_file(self) -> Path:
        return self.access.users_file or self.serve.data_dir / USERS_NAME

    @property
    def has_users_file(self) -> bool:
        """Whether there is one; False, too, where it cannot be looked at, which whoever reads it says."""
        return os.path.exists(self.users_file)

    def logs_in(self, protocol: str) -> bool:
        """Whether it asks every client for a name and a password where other machines reach it."""
        if self.knows_users(protocol) and self.has_users_file:
            return self.required_of(protocol) != "never"
        return bool(getattr(self.protocols[protocol], "logs_in", False))

    def knows_users(self, protocol: str) -> bool:
        """Whether its clients log in as users of the users file, and do what their rules allow."""
        return isinstance(getattr(self.protocols[protocol], "access", None), ProtocolAccessSettings)

    def enabled(self, working: Sequence[Plugin]) -> list[Plugin]:
        """Return those of `working` that are served. Raises InvalidSettings."""
        return enabled(self.serve.enable, working, self.sources.get(("serve", "enable"), "default"))

    def shown(self, *, human: bool) -> list[Shown]:
        """Return every setting in order of section. `human`: sizes and durations have their units."""
        sections: dict[Key, Any] = {(name,): getattr(self, name) for name in OWN_SECTIONS}
        sections |= {(name,): section for name, section in self.protocols.items()}
        sections |= {(SECTION, bridge.name): bridge for bridge in self.bridges}
        return [
            Shown(written(key), plain(value, field, human=human), self._source(key))
            for above, section in sections.items()
            for key, value, field in leaves(section, above)
        ]

    def _source(self, key: Key) -> str:
        return self.sources.get(BRIDGES if key[0] == SECTION else key, "default")


def load(
    plugins: Sequence[Plugin],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Iterable[Flag] = (),
    defaults: Iterable[Flag] = (),
    broken: Sequence[str] = (),
    alone: bool = False,
    wrong: list[Problem] | None = None,
) -> Config:
    """Read and check everything that was given. Raises InvalidSettings with all that is wrong.

    Settings of protocols in `broken` are ignored, because their fault was reported already. `alone`: so are
    settings of all protocols that are not in `plugins`. `wrong`: gets all problems, in place of the error; a
    wrong value then leaves the default.
    """
    protocols = {plugin.name: plugin.settings for plugin in plugins}
    sections = {**OWN_SECTIONS, **protocols}
    named = file or environ.get(FILE_VARIABLE)
    given, ranks, problems = _laid(
        _from_flags(defaults, sections),
        _from_file(named, sections, broken, alone) if named else (),
        _from_environment(environ, sections, broken, plugins, alone),
        _from_flags(flags, sections),
    )
    of_bridges = given.pop(BRIDGES, None)
    built = {name: build(settings, (name,), given, problems) for name, settings in OWN_SECTIONS.items()}
    if not problems:
        _spread_durability(given, ranks, protocols)
    built |= {name: build(settings, (name,), given, problems) for name, settings in protocols.items()}
    if not problems and not alone:
        problems += _without_bucket(built["ship"], {name: built[name] for name in protocols}, given)
    bridges = _bridges(of_bridges, plugins, problems)
    if not alone:
        bridges = _own_bridges(bridges, built["serve"].data_dir, plugins, problems)
    recorded: Key = ("record", "protocols")
    source = given[recorded].source if recorded in given else ""
    reasons = () if alone else _unrecorded(built["record"].protocols, plugins, broken)
    problems += [Problem(written(recorded), why, source) for why in reasons]
    if problems and wrong is None:
        raise InvalidSettings(tuple(problems))
    if wrong is not None:
        wrong += problems
    return Config(
        **{name: built[name] for name in OWN_SECTIONS},
        protocols={name: built[name] for name in protocols},
        sources={
            **{key: value.source for key, value in given.items()},
            **({BRIDGES: of_bridges.source} if of_bridges else {}),
        },
        bridges=bridges,
    )


def as_served(file: Path | None) -> Config:
    """Return the settings as serving would read them. Broken plugins are reported on standard error."""
    working, broken = load_working()
    return load(working, file=file, environ=os.environ, broken=broken)


def _laid(
    *layers: Iterable[tuple[Key, GivenValue] | Problem],
) -> tuple[dict[Key, GivenValue], dict[Key, int], list[Problem]]:
    """Put layers over each other, the last on top. Returns values and layers by key, and problems."""
    given: dict[Key, GivenValue] = {}
    ranks: dict[Key, int] = {}
    problems: list[Problem] = []
    for rank, layer in enumerate(layers):
        for leaf in layer:
            if isinstance(leaf, Problem):
                problems.append(leaf)
            else:
                key, value = leaf
                given[key], ranks[key] = value, rank
    return given, ranks, problems


def _without_bucket(
    ship: ShipSettings, protocols: Mapping[str, Any], given: Mapping[Key, GivenValue]
) -> Iterator[Problem]:
    """What is set and needs a bucket, where nothing may be left to one."""
    why = "" if ship.url else "ship.url names no bucket, which would have the rest"
    if ship.url and ship.fencing == "none":
        why = 'ship.fencing is "none": another server could delete what only the bucket has'
    for protocol, settings in protocols.items() if why else ():
        setting = getattr(settings, "needs_bucket", None)
        if setting is not None:
            name = f"{protocol}.{setting}"
            source = next((value.source for key, value in given.items() if written(key) == name), "")
            yield Problem(name, why, source)


def _from_file(
    file: str | Path, sections: Mapping[str, type[Any]], broken: Sequence[str], alone: bool
) -> Iterator[tuple[Key, GivenValue] | Problem]:
    source = str(file)
    try:
        path = local_path(file)
    except ValueError as error:
        yield Problem(source, str(error))
        return
    try:
        text = read_file(path).decode()
        tables = tomllib.loads(text)
    except OSError as error:
        yield Problem(source, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        yield Problem(source, f"is not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:  # Python's own: deep, or long numbers
        yield Problem(source, f"is not TOML: {error}")
    else:
        if not text and path.is_fifo():
            yield Problem(source, "is a pipe, and was read before: name a file, which can be read again")
        bridges = tables.pop(SECTION, None)
        if bridges is not None and not alone:
            yield BRIDGES, GivenValue(bridges, source)
        known = {
            name: table for name, table in tables.items() if name in sections or not (alone or name in broken)
        }
        for leaf in flatten(known, sections, source):
            if isinstance(leaf, Problem):
                yield leaf
            else:
                key, given = leaf
                yield key, attrs.evolve(given, folder=path.parent)


def _bridges(
    given: GivenValue | None, plugins: Sequence[Plugin], problems: list[Problem]
) -> tuple[BridgeSettings, ...]:
    """What `[[bridge]]` says; what is wrong goes to `problems`."""
    if given is None:
        return ()
    bridges, wrong = parse_bridges(given.value, ends_of(plugins), given.source)
    problems += wrong
    return bridges


def _own_bridges(
    bridges: tuple[BridgeSettings, ...], folder: Path, plugins: Sequence[Plugin], problems: list[Problem]
) -> tuple[BridgeSettings, ...]:
    """Those and the bridges that the data folder has; what is wrong with these goes to `problems`."""
    source = str(folder / own.NAME)
    try:
        tables = own.read_own(folder)
    except (OSError, ValueError) as error:
        problems.append(Problem(SECTION, f"cannot be read: {error}", source))
        return bridges
    if not tables:
        return bridges
    every, wrong = own.with_own(bridges, tables, ends_of(plugins), source)
    problems += wrong
    return every


def _from_environment(
    environ: Mapping[str, str],
    sections: Mapping[str, type[Any]],
    broken: Sequence[str],
    plugins: Sequence[Plugin],
    alone: bool,
) -> Iterator[tuple[Key, GivenValue] | Problem]:
    known = {_variable(*key): key for key in environment_keys(sections)}
    of_commands = {_variable(plugin.name, word) for plugin in plugins for word in plugin.command_variables}
    passed_over = tuple(_variable(name, "") for name in broken)
    ours = tuple(_variable(name, "") for name in sections) if alone else ("",)
    for name, value in environ.items():
        if not name.startswith("BROKERS_") or name == FILE_VARIABLE or name in VARIABLES:
            continue
        if _SERVICE_LINK.fullmatch(name) or name.startswith(passed_over) or name in of_commands:
            continue
        if not name.startswith(ours):
            continue
        if name in known:
            yield known[name], GivenValue(value, name, words=True)
        else:
            yield Problem(name, f"unknown variable{did_you_mean(name, known)}")


def _variable(*key: str) -> str:
    return f"BROKERS_{'_'.join(key)}".upper().replace("-", "_")


def _from_flags(
    flags: Iterable[Flag], sections: Mapping[str, type[Any]]
) -> Iterator[tuple[Key, GivenValue] | Problem]:
    known = set(environment_keys(sections))
    for flag in flags:
        if flag.key in known:
            yield flag.key, GivenValue(flag.value, flag.source, words=isinstance(flag.value, str))
        else:
            hint = "" if flag.key[0] in sections else did_you_mean(flag.key[0], sections)
            yield Problem(written(flag.key), f"no such setting{hint}", flag.source)


def _unrecorded(names: Iterable[str], plugins: Sequence[Plugin], broken: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the names of protocols to record."""
    known = {plugin.name: plugin for plugin in plugins}
    for name in names:
        if name in known:
            why = known[name].unrecorded
            if why is not None:
                yield f"{name} cannot be recorded: {why}"
        elif name not in broken:
            can = [plugin.name for plugin in plugins if plugin.unrecorded is None]
            hint = did_you_mean(name, can, f"; there are {', '.join(sorted(can)) or 'none'}")
            yield f"no protocol {name!r} is installed{hint}"


def _spread_durability(
    given: dict[Key, GivenValue], ranks: Mapping[Key, int], protocols: Mapping[str, type[Any]]
) -> None:
    """Use `serve.durability` for every protocol whose own was not given, or was given in a lower layer.

    What the table of a topic or queue says stays, because it is more specific.
    """
    ours: Key = ("serve", "durability")
    if ours not in given:
        return
    for key in environment_keys(protocols):
        if len(key) == 2 and key[1] == "durability" and ranks.get(key, -1) < ranks[ours]:
            given[key] = attrs.evolve(given[ours], source=f"serve.durability, {given[ours].source}")
