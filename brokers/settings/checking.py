"""Finds everything that would keep the settings from being served: files, folders, addresses and ports.

`config check` asks for all of it. `serve` asks before it touches the data folder, except for the folder, the
definitions and the ports, which it then opens, loads and binds anyway.
"""

import errno
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from brokers.access import users
from brokers.access.objects import UserObjects
from brokers.admin import definitions
from brokers.commands import control
from brokers.errors import Failure, InvalidSettings, Problem, folder_errors
from brokers.plugins import load_working
from brokers.settings.config import FILE_VARIABLE, Config, load
from shared.errors import ConfigError, StoreError
from shared.net.datagrams import allowed_networks
from shared.net.listeners import CannotListen, bind_each, check_exposure
from shared.net.tls import faults
from shared.plugin import Plugin
from shared.storage.os_disk import OsDisk
from shared.storage.recovery import check_number, format_number
from shared.units import MIB


def checked(file: Path | None, *, ports: bool = True) -> Config:
    """Return the settings as serving would read them. Raises InvalidSettings with all that is wrong.

    `ports`: try the ports and addresses, too.
    """
    working, broken = load_working()
    problems: list[Problem] = []
    config = load(working, file=file, environ=os.environ, broken=broken, wrong=problems)
    names = {str(file), os.environ.get(FILE_VARIABLE, "")}
    if not any(problem.key in names for problem in problems):  # else too little of them is known
        try:
            protocols = [plugin.name for plugin in config.enabled(working)]
        except InvalidSettings as error:
            problems += error.problems
            protocols = [plugin.name for plugin in working if plugin.name in config.serve.enable]
        named = {problem.key for problem in problems}
        start = start_problems(config, protocols)
        of_users = [Problem(error.key, error.text) for error in _raised_by(users.load, config)]
        document = config.serve.definitions
        chosen = [plugin for plugin in working if plugin.name in protocols]
        of_document = (
            []
            if document is None or problems
            else _raised_by(trio.run, _try_definitions, document, config, chosen)
        )
        unmade = [Problem(error.key, error.text) for error in of_document]
        taken = taken_ports(config, protocols) if ports else ()
        more = (*start, *of_users, *_folder_problems(config), *unmade, *taken)
        problems += [problem for problem in more if problem.key not in named]
    if problems:
        raise InvalidSettings(tuple(problems))
    return config


def require_startable(config: Config, protocols: Sequence[str]) -> None:
    """Raise InvalidSettings with all that would keep a start from serving these, except taken ports."""
    problems = tuple(start_problems(config, protocols))
    if problems:
        raise InvalidSettings(problems)


def start_problems(config: Config, protocols: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with files that the settings name, and with addresses that others reach."""
    faults_found = [error for protocol in protocols for error in _faults(config, protocol)]
    errors = dict.fromkeys((error.key, error.text) for error in (*faults_found, *_admin_faults(config)))
    yield from (Problem(*error) for error in errors)
    ports: dict[int, str] = {}
    for protocol in protocols:
        for key, port in _ports(config, protocol):
            first = ports.setdefault(port, key)
            if port and first != key:
                yield Problem(key, f"{port} is {first}, too: each needs one of its own")
    port = config.admin.port
    if config.admin.enabled and config.asked_for_admin_port and port and port in ports:
        yield Problem("admin.port", f"{port} is {ports[port]}, too: each needs one of its own")


def _ports(config: Config, protocol: str) -> Iterator[tuple[str, int]]:
    """The ports of a protocol, by setting: `port`, and others that are set."""
    for name, value in attrs.asdict(config.protocols[protocol], recurse=False).items():
        if (name == "port" or name.endswith("_port")) and value is not None:
            yield f"{protocol}.{name}", value


def _admin_faults(config: Config) -> Iterator[ConfigError]:
    if config.admin.enabled:
        section, tls = config.admin_tls()
        if tls.enabled:
            yield from faults(tls, section)
        insecure = config.serve.insecure
        yield from _raised_by(
            check_exposure, "admin.host", config.admin.host, tls, logs_in=True, insecure=insecure
        )


def _raised_by(check: Callable[..., object], *arguments: Any, **keywords: Any) -> Iterator[ConfigError]:
    """What a check raises."""
    try:
        check(*arguments, **keywords)
    except ConfigError as error:
        yield error


def _faults(config: Config, protocol: str) -> Iterator[ConfigError]:
    section, tls = config.tls_of(protocol)
    if tls.enabled:
        yield from faults(tls, section)
    (key, host), insecure = config.host_of(protocol), config.serve.insecure
    if config.required_of(protocol) == "always":
        try:
            config.users_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            text = f"nobody could log in: {config.users_file} is not there; see brokers user add"
            yield ConfigError("access.required", text)
        except OSError as error:
            text = f"nobody could log in: cannot read {config.users_file}: {error.strerror}"
            yield ConfigError("access.required", text)
        if not (config.knows_users(protocol) or config.logs_in(protocol)):
            text = f"{protocol} does not ask for users of the users file: leave it out of serve.enable"
            yield ConfigError("access.required", text)
    yield from _raised_by(check_exposure, key, host, tls, logs_in=config.logs_in(protocol), insecure=insecure)
    allow = getattr(config.protocols[protocol], "allow", None)
    for networks in [[text] for text in allow or ()] or ([[]] if allow is not None else []):
        yield from _raised_by(allowed_networks, f"{protocol}.allow", host, networks)


async def _try_definitions(path: Path, config: Config, plugins: Sequence[Plugin]) -> None:
    """Make what a start's file defines, in an empty folder that is removed. Raises ConfigError."""
    rows = await definitions.rows_of(path)
    from brokers.host import logs
    from shared.access import Access
    from shared.client.nursery import open_nursery
    from shared.plugin import Context
    from shared.storage.store import Store

    log = logs.configure("error", config.serve.log_format)
    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder), attrs.evolve(config.storage, segment_bytes=MIB))
        try:
            async with open_nursery() as nursery:
                await nursery.start(store.run)
                each = []
                for plugin in plugins:
                    service = await plugin.open(Context(store, log), config.protocols[plugin.name])
                    each += [(plugin.name, section) for section in getattr(service, "definitions", ())]
                own = UserObjects(Access(users.load(config)), lambda: config.users_file).definitions
                await definitions.take(definitions.Document(each, [own], store), rows, path, dry_run=True)
        finally:
            with trio.CancelScope(shield=True):
                await store.close()


def _folder_problems(config: Config) -> Iterator[Problem]:
    """Yield why the data folder cannot be made or written, or is of a newer version."""
    folder = config.serve.data_dir.absolute()
    source = config.sources.get(("serve", "data_dir"), "")
    try:
        with folder_errors(folder):
            nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
            try:
                if not nearest.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                tempfile.TemporaryDirectory(dir=nearest).cleanup()
            except OSError as error:  # it names a file that nobody asked for
                raise OSError(error.errno, error.strerror, str(folder)) from None
            if nearest == folder:
                with OsDisk(nearest, create=False, read_only=True) as disk:
                    check_number(format_number(disk) or 0)
    except (Failure, StoreError) as error:
        yield Problem("serve.data_dir", str(error), source)


def taken_ports(config: Config, protocols: Sequence[str]) -> Iterator[Problem]:
    """Yield addresses that cannot be bound, except those that the server of this data folder has itself."""
    hosts = dict(config.host_of(protocol) for protocol in protocols)
    unusable = set()
    for key, host in hosts.items():
        try:
            _try(host, 0, socket.SOCK_STREAM)
        except CannotListen as error:
            unusable.add(host)
            yield Problem(key, str(error))
    ours: set[int] | None = None
    for protocol in protocols:
        _, host = config.host_of(protocol)
        if host in unusable:
            continue
        for key, port in _ports(config, protocol):
            try:
                _try(host, port, socket.SOCK_STREAM)
                if hasattr(config.protocols[protocol], "allow"):  # only who takes datagrams has that setting
                    _try(host, port, socket.SOCK_DGRAM)
            except CannotListen as error:
                ours = _served(config.serve.data_dir) if ours is None else ours
                if port not in ours:
                    yield Problem(key, str(error))


def _try(host: str, port: int, kind: socket.SocketKind) -> None:
    """Bind, and close before anybody can connect. Raises CannotListen."""

    def prepare(sock: socket.socket, _: str) -> None:
        if kind is socket.SOCK_STREAM:  # as listeners have it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    for sock in bind_each(host, port, kind, prepare):
        sock.close()


def _served(folder: Path) -> set[int]:
    """Return the ports of the server that runs on the folder, if one does."""
    try:
        status = control.request(folder, "GET", "/status")
    except Failure:
        return set()
    addresses = [address for protocol in status["protocols"] for address in protocol["addresses"]]
    return {int(address.removesuffix("/udp").rpartition(":")[2]) for address in addresses}
