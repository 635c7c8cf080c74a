"""Which server a command means: by flags, variables, settings, a context, or the folder here.

A server has a name in three ways. One is its data folder. Another is its admin port, by an http URL or a
context. The third is a protocol's own port: a host, a port, or a URL of that protocol. A command that asks
the API needs one of the first two. One that speaks a protocol takes any: a running server says where its
protocols listen. So all commands mean one server.

Flags win over `BROKERS_CONTEXT`, this over `BROKERS_SERVE_DATA_DIR` and `BROKERS_CONFIG`, these over the
context that is in use, and that over `./data`. Where no server runs on the folder, a protocol's port is that
of the settings, which `brokers serve` reads, too.
"""

import base64
import os
import socket
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from brokers.errors import ExitCode, Failure
from shared.cli.options import Place, a_path, login_of_flags
from shared.client.login import CONTEXT_VARIABLE, VARIABLES, read_password, url_of
from shared.errors import UsageError
from shared.local_path import local_path, read_file
from shared.net.keepalive import is_loopback

if TYPE_CHECKING:
    import ssl

    from brokers.commands.control import AdminClient
    from shared.plugin import Plugin

DataDir = Annotated[
    Path | None,
    Parameter(
        name=("--data-dir", "-D"),
        help="The data folder; else BROKERS_SERVE_DATA_DIR, else that of --config, else ./data.",
        converter=a_path,
    ),
]
DEFAULT_FOLDER = Path("data")
"""Below the folder where a server was started, if nobody has said otherwise."""
DEFAULT_HOST = "127.0.0.1"
_EVERYWHERE = {"": DEFAULT_HOST, "*": DEFAULT_HOST, "0.0.0.0": DEFAULT_HOST, "::": "::1"}
"""Addresses that mean all of a machine's, and the one of these that is dialled."""
SOCKET = "control.sock"
"""What `brokers.commands.control`, which takes long to import, calls NAME."""
LOGIN = ("token_file", "user", "password_file")
TLS_FILES = ("ca", "certificate", "key")


def data_folder(given: Path | None, config: Path | None = None, default: Path = DEFAULT_FOLDER) -> Path:
    """The folder of a command, as `brokers serve` with the same flags and environment would take it.

    The full settings are not read: that needs every protocol's module, and a health check runs every few
    seconds. Raises Failure.
    """
    return given or path_setting("serve", "data_dir", config) or default


def local_folder(given: Path | None, config: Path | None) -> Path:
    """The folder of a command that works on files. Raises UsageError where a context names a URL."""
    address = ServerAddress(data_dir=given, config=config).resolved()
    if address.data_dir is None:
        text = f"which folder? The context in use names {address.url}, and this command works on files here"
        raise UsageError("--data-dir", text)
    return address.data_dir


def path_setting(section: str, name: str, config: Path | None) -> Path | None:
    """One path, as the environment or the settings' file has it. Raises Failure."""
    variable = f"BROKERS_{section}_{name}".upper()
    if said := os.environ.get(variable):
        try:
            return local_path(said).expanduser()
        except ValueError as error:
            raise Failure(f"{error} ({variable})", ExitCode.CONFIGURATION) from None
    if file := config or os.environ.get("BROKERS_CONFIG"):
        try:
            path = local_path(file)
            named = tomllib.loads(read_file(path).decode()).get(section, {}).get(name)
            return None if named is None else path.parent / local_path(named).expanduser()
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            said = "--config" if config else "BROKERS_CONFIG"
            raise Failure(f"{file}: {why} ({said})", ExitCode.CONFIGURATION) from None
    return None


def require_folder(folder: Path) -> Path:
    """`folder` itself. Raises Failure where it does not exist."""
    if not folder.is_dir():
        raise Failure(f"there is no folder {folder}", ExitCode.DATA_FOLDER)
    return folder


@attrs.frozen(kw_only=True)
class ServerAddress:
    """What a command's flags say about its server, by their names.

    `host`: that of a protocol's own port, or its URL. `url`: that of an admin port. One flag takes both.
    """

    host: str | None = None
    port: int | None = None
    url: str | None = None
    context: str | None = None
    data_dir: Path | None = None
    config: Path | None = None
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> "ServerAddress":
        """From the values of a command's flags; `host` may be the URL of an admin port."""
        named = dict(given)
        named["key"] = named.pop("key_file")
        host = named.pop("host")
        is_url = host is not None and host.startswith(("http://", "https://"))
        return cls(**named, **({"url": host} if is_url else {"host": host}))

    def is_admin(self) -> bool:
        """Whether flags or a context name an admin port or a data folder.

        A command that may ask either way asks the API then. Raises as `resolved` does.
        """
        self._check_one()
        return not self._is_protocols and self._of_context()._is_named

    def resolved(self, default: Path = DEFAULT_FOLDER) -> "ServerAddress":
        """This address with the URL of an admin port, or else with a data folder.

        Raises UsageError, NotThere, and Failure.
        """
        self._check_one()
        if self._is_protocols:
            how = "--url http(s)://HOST:15800, --context or --data-dir names one"
            text = f"names a protocol's own port, and this command asks an admin port: {how}"
            raise UsageError("--port" if self.host is None else "--host", text)
        address = self._of_context()
        if address.url is not None:
            return address
        return attrs.evolve(address, data_dir=data_folder(address.data_dir, self.config, default))

    @property
    def _is_protocols(self) -> bool:
        return self.host is not None or self.port is not None

    @property
    def _is_named(self) -> bool:
        return self.url is not None or self.data_dir is not None

    def _check_one(self) -> None:
        flag, value = ("--port", self.port) if self.host is None else ("--host", self.host)
        given = {"--url": self.url, flag: value, "--context": self.context, "--data-dir": self.data_dir}
        ways = [flag for flag, value in given.items() if value is not None]
        if len(ways) > 1:
            raise UsageError(ways[1], f"{ways[0]} names a server already")

    def _of_context(self) -> "ServerAddress":
        """With what the context says that is named, or in use."""
        name = self.context
        if name is None:
            if self._is_named or self.config is not None:
                return self
            name = os.environ.get(CONTEXT_VARIABLE) or None
        from brokers.commands import contexts

        if name is None:
            if os.environ.get("BROKERS_SERVE_DATA_DIR") or os.environ.get("BROKERS_CONFIG"):
                return self
            name = contexts.in_use()
            if name is None:
                return self
        fields = dict(contexts.context(name))
        if self.token_file is not None or self.user is not None:  # another login than the context's
            fields = {flag: value for flag, value in fields.items() if flag not in LOGIN}
        own = {flag: value for flag, value in attrs.asdict(self).items() if value}
        return attrs.evolve(ServerAddress(**{**fields, **own}), context=None)

    def name(self, default: Path = DEFAULT_FOLDER) -> str:
        """What questions and answers call the server: its URL or its data folder."""
        address = self.resolved(default)
        return address.url or str(address.data_dir)

    def client(self, default: Path = DEFAULT_FOLDER) -> "AdminClient":
        """What asks it. Raises UsageError and Failure."""
        server = self.resolved(default)
        if self.tls:
            raise UsageError("--tls", "is for a protocol's own port; the URL of an admin port has https://")
        if server.url is None:
            for flag in (*LOGIN, *TLS_FILES):
                if getattr(self, flag) is not None:
                    raise UsageError(
                        f"--{flag}".replace("_", "-"),
                        "is for an admin port, which --url or a context names; the control socket takes no "
                        "login",
                    )
        return server._asking()

    def _asking(self) -> "AdminClient":
        """What asks this address, which is resolved."""
        from brokers.commands import control

        if self.url is None:
            assert self.data_dir is not None
            return control.socket_client(self.data_dir)
        control.address_in(self.url)  # a mistake in it is told before a password is asked for
        return control.port_client(self.url, self._authorization(), self._tls)

    def _authorization(self) -> str | None:
        """The header of a login."""
        if self.token_file is not None:
            if self.user is not None:
                raise UsageError("--token-file", "--user says who logs in already")
            try:
                token = read_password(self.token_file, "token").reveal()
            except ValueError as error:
                raise UsageError("--token-file", str(error)) from None
            if not (token.isascii() and token.isprintable()):
                raise UsageError("--token-file", f"{self.token_file} holds no token: letters and digits")
            return f"Bearer {token}"
        if self.user and not self.password_file and not os.environ.get("BROKERS_PASSWORD_FILE"):
            if self.certificate is not None:
                return None
            if sys.stdin.isatty():
                return _basic(self.user, asked_for(f"Password of {self.user}: "))
        login = login_of_flags(self.user, self.password_file, self.certificate)
        return _basic(login.user, login.secret) if login else None

    def _tls(self) -> "ssl.SSLContext | None":
        from shared.client.dial import tls_context

        return tls_context(True, self.ca, self.certificate, self.key)

    def protocol(self, kind: type[Place], plugin: "Plugin") -> Place:
        """Where the server speaks a protocol: a `Place` or a `Server`.

        Raises InvalidSettings, UsageError, NotThere, and Failure where nothing says which port it is.
        """
        self._check_one()
        fields = _settled(plugin, self.config)
        fields |= _of_url(plugin, fields["host"], "client.host")
        if not self._is_protocols:
            fields |= self._told(plugin, is_elsewhere=fields["named"])
        elif self.host is not None:
            fields |= {**_of_url(plugin, self.host, "--host"), "named": True}
        flags = ("port", "user", "password_file", "tls", *TLS_FILES)
        fields |= {flag: value for flag in flags if (value := getattr(self, flag))}
        if not fields["port"]:
            text = f"{plugin.name}.port is 0: the system picked one, which `brokers status` shows; say --port"
            raise Failure(text, ExitCode.CONFIGURATION)
        if kind is Place:
            return Place(host=fields["host"], port=fields["port"], settings=fields["settings"])
        return kind(**fields)

    def _told(self, plugin: "Plugin", *, is_elsewhere: bool) -> dict[str, Any]:
        """What the running server says of a protocol, by the fields of `Server`. Raises Failure.

        Nothing if no server is named, and none that runs in the usual place serves it. `is_elsewhere`: the
        settings name a host.
        """
        # The context's login is that of its admin port. The flags' may be one of the protocol alone.
        server = self if self.url else attrs.evolve(self, user=None, password_file=None)._of_context()
        is_named = server._is_named
        if not is_named and is_elsewhere:
            return {}
        login = {"user": server.user, "password_file": server.password_file} if server.url else {}
        if server.token_file is not None:
            server = attrs.evolve(server, user=None)
        if server.url is None:
            folder = data_folder(server.data_dir, self.config, folder_of(plugin))
            if not is_named and not (folder / SOCKET).exists():
                return {}
            server = attrs.evolve(server, data_dir=folder)
        client = server._asking()
        try:
            status, is_direct = client.status()
        except Failure as error:
            if not is_named and error.code == ExitCode.UNAVAILABLE:
                return {}
            raise Failure(
                f"{error}; or --host and --port name {plugin.name}'s own port", error.code
            ) from None
        row = next((row for row in status["protocols"] if row["protocol"] == plugin.name), None)
        address = next((each for each in row["addresses"] if "/" not in each), None) if row else None
        if row is None or address is None:
            if is_named:
                raise Failure(f"{client.name} does not serve {plugin.name}", ExitCode.UNAVAILABLE)
            return {}
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        fields = {"port": int(port), "tls": row["tls"], **login}
        if server.url is None:
            return {**fields, "host": _EVERYWHERE.get(host, host)}
        files = {flag: getattr(server, flag) for flag in TLS_FILES}
        host = _dialled(plugin, client.name, server.url, host, is_direct=is_direct)
        return {**fields, **files, "host": host, "named": True, "pinned": None}


def _dialled(plugin: "Plugin", server: str, url: str, bound: str, *, is_direct: bool) -> str:
    """The host of a protocol's port, of a server that has a URL. `bound`: the address that it listens on.

    Raises Failure where another server may be at that address.
    """
    from brokers.commands.control import address_in

    host, _, _ = address_in(url)
    how = "--host and --port say where it is from here"
    if not is_loopback(host):
        if is_loopback(bound):
            text = f"{server} has {plugin.name} at {bound}, where only that machine reaches it; {how}"
            raise Failure(text, ExitCode.UNAVAILABLE)
    elif not is_direct:
        text = f"{server} leads to another machine or container, whose ports may have other numbers here"
        raise Failure(f"{text}; {how}", ExitCode.UNAVAILABLE)
    if bound in _EVERYWHERE:
        return host
    try:
        is_same = any(address[0] == bound for *_, address in socket.getaddrinfo(host, None))
    except OSError:
        is_same = False
    return host if is_same else bound


def with_server(answer: Any, name: str | None) -> Any:
    """A command's answer, with the server's name where the command destroys something (else `name` is
    None)."""
    return answer if name is None else {**answer, "server": name}


def folder_of(plugin: "Plugin") -> Path:
    """The data folder of a protocol's commands if nothing names another."""
    own = Path(plugin.own_folder)
    is_own = plugin.own_folder and own.is_dir() and not DEFAULT_FOLDER.exists()
    return own if is_own else DEFAULT_FOLDER


def _of_url(plugin: "Plugin", host: str, where: str) -> dict[str, Any]:
    """Return what a host that is a URL says, by the fields of `Server`. Raises UsageError."""
    try:
        url = url_of(host, plugin.name)
    except ValueError as error:
        raise UsageError(where, str(error)) from None
    if url is None:
        name, colon, port = host.partition(":")
        if colon and port.isdecimal():  # an IPv6 address has more colons
            raise UsageError(where, f"a host has no port in it: --host {name} --port {port}")
        return {"host": host}
    files = {name: Path(value) for name, value in url.files.items()}
    fields = {"host": url.host, "port": url.port, "tls": url.tls, "user": url.user, **files}
    return {name: value for name, value in fields.items() if value}


def _settled(plugin: "Plugin", file: Path | None) -> dict[str, Any]:
    """Return what the settings say, by the fields of `Server`."""
    if file is None and not any(name.startswith("BROKERS_") for name in os.environ if name not in VARIABLES):
        # The usual case, kept quick: reading settings takes as long as all else before the connection.
        settings = plugin.settings()
        return {"host": DEFAULT_HOST, "port": settings.port, "settings": settings, "named": False}
    from brokers.settings.config import load

    config = load([plugin], file=file, environ=os.environ, alone=True)
    client, (_, tls) = config.client, config.tls_of(plugin.name)
    (_, host), settings = config.host_of(plugin.name), config.protocols[plugin.name]
    return {
        "host": client.host or _EVERYWHERE.get(host, host),
        "named": client.host is not None,
        "port": settings.port,
        "settings": settings,
        "tls": tls.enabled if client.tls is None else client.tls,
        "ca": client.ca,
        "certificate": client.certificate,
        "key": client.key,
        "pinned": tls.certificate,
    }


def asked_for(prompt: str) -> str:
    """A password that is typed at the terminal. Raises UsageError where none is."""
    from getpass import getpass

    try:
        return getpass(prompt)
    except EOFError:
        print(file=sys.stderr)  # the prompt's line has no end yet
        raise UsageError("password", "none was given") from None


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
