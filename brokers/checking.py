"""Finds everything that would keep the settings from being served: files, addresses, exposure, ports.

`config check` asks for all of it. `serve` asks before it touches the data folder, except for its ports, which
it binds anyway.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import trio

from brokers import control, definitions, users
from brokers.config import FILE_VARIABLE, Config, load
from brokers.errors import Failure, InvalidSettings, Problem
from brokers.plugins import load_working
from shared.errors import ConfigError
from shared.net.datagrams import allowed_networks
from shared.net.listeners import CannotListen, bind_each, check_exposure
from shared.net.tls import faults


def checked(file: Path | None) -> Config:
    """Return the settings as serving would read them. Raises InvalidSettings with all that is wrong."""
    working, broken = load_working()
    found: list[Problem] = []
    config = load(working, file=file, environ=os.environ, broken=broken, wrong=found)
    names = {str(file), os.environ.get(FILE_VARIABLE, "")}
    if not any(problem.key in names for problem in found):  # else too little of them is known
        try:
            protocols = [plugin.name for plugin in config.enabled(working)]
        except InvalidSettings as error:
            found += error.problems
            protocols = [plugin.name for plugin in working if plugin.name in config.serve.enable]
        told = {problem.key for problem in found}
        start = start_problems(config, protocols)
        of_users = [Problem(error.key, error.text) for error in _raised_by(users.load, config)]
        document = config.serve.definitions
        of_document = [] if document is None else _raised_by(trio.run, definitions.rows_of, document)
        unread = [Problem(error.key, error.text) for error in of_document]
        more = (*start, *of_users, *unread, *taken_ports(config, protocols))
        found += [problem for problem in more if problem.key not in told]
    if found:
        raise InvalidSettings(tuple(found))
    return config


def require_startable(config: Config, protocols: Sequence[str]) -> None:
    """Raise InvalidSettings with all that would keep a start from serving these, except taken ports."""
    found = tuple(start_problems(config, protocols))
    if found:
        raise InvalidSettings(found)


def start_problems(config: Config, protocols: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with files that the settings name, and with addresses that others reach."""
    found = [error for protocol in protocols for error in _faults(config, protocol)]
    errors = dict.fromkeys((error.key, error.text) for error in (*found, *_admin_faults(config)))
    yield from (Problem(*error) for error in errors)
    ports: dict[int, str] = {}
    for protocol in protocols:
        port = config.protocols[protocol].port
        first = ports.setdefault(port, protocol)
        if port and first != protocol:
            yield Problem(f"{protocol}.port", f"{port} is {first}.port, too: each needs one of its own")
    port = config.admin.port
    if config.admin.enabled and config.asked_for_admin_port and port and port in ports:
        yield Problem("admin.port", f"{port} is {ports[port]}.port, too: each needs one of its own")


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
    for some in [[text] for text in allow or ()] or ([[]] if allow is not None else []):
        yield from _raised_by(allowed_networks, f"{protocol}.allow", host, some)


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
        port = config.protocols[protocol].port
        try:
            _try(host, port, socket.SOCK_STREAM)
            if hasattr(config.protocols[protocol], "allow"):  # only who takes datagrams has that setting
                _try(host, port, socket.SOCK_DGRAM)
        except CannotListen as error:
            ours = _served(config.serve.data_dir) if ours is None else ours
            if port not in ours:
                yield Problem(f"{protocol}.port", str(error))


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
        found = control.request(folder, "GET", "/status")
    except Failure:
        return set()
    addresses = [address for protocol in found["protocols"] for address in protocol["addresses"]]
    return {int(address.rpartition(":")[2]) for address in addresses if not address.endswith("/udp")}
