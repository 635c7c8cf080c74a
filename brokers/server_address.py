"""Which running server a command asks: that of a URL, of a context, or of the data folder here.

Flags win over `BROKERS_CONTEXT`, this over `BROKERS_SERVE_DATA_DIR` and `BROKERS_CONFIG`, these over the
context that is in use, and that over `./data`.
"""

import base64
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
from cyclopts import Parameter

from brokers.errors import ExitCode, Failure
from shared.cli.options import a_path, login_of_flags
from shared.client.login import CONTEXT_VARIABLE, read_password
from shared.errors import UsageError
from shared.local_path import local_path, read_file

if TYPE_CHECKING:
    import ssl

    from brokers.control import AdminClient

DataDir = Annotated[
    Path | None,
    Parameter(
        help="The data folder; else BROKERS_SERVE_DATA_DIR, else that of --config, else ./data.",
        converter=a_path,
    ),
]
DEFAULT_FOLDER = Path("data")
"""Below the folder where a server was started, if nobody has said otherwise."""


def data_folder(given: Path | None, config: Path | None = None, default: Path = DEFAULT_FOLDER) -> Path:
    """The folder of a command, as `brokers serve` with the same flags and environment would take it.

    The full settings are not read: that needs every protocol's module, and a health check runs every few
    seconds. Raises Failure.
    """
    return given or path_setting("serve", "data_dir", config) or default


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
    """Where a running server is asked, and as whom: the flags for it, by their names."""

    data_dir: Path | None = None
    config: Path | None = None
    url: str | None = None
    context: str | None = None
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def resolved(self, default: Path = DEFAULT_FOLDER) -> "ServerAddress":
        """This address with a URL, or else with a data folder. Raises UsageError, Failure and NotThere."""
        given = {"--url": self.url, "--context": self.context, "--data-dir": self.data_dir}
        ways = [flag for flag, value in given.items() if value is not None]
        if len(ways) > 1:
            raise UsageError(ways[1], f"{ways[0]} names a server already")
        found = self if self.url is not None else self._of_context()
        if found.url is not None:
            return found
        for flag in ("token_file", "user", "password_file", "ca", "certificate", "key"):
            if getattr(self, flag) is not None:
                raise UsageError(
                    f"--{flag}".replace("_", "-"),
                    "is for an admin port, which --url or a context names; the control socket takes no login",
                )
        return attrs.evolve(found, data_dir=data_folder(found.data_dir, self.config, default))

    def _of_context(self) -> "ServerAddress":
        """With what the context says that is named, or in use."""
        name = self.context
        if name is None and self.data_dir is None and self.config is None:
            name = os.environ.get(CONTEXT_VARIABLE) or None
        elif name is None:
            return self
        from brokers import context_cli

        if name is None:
            if os.environ.get("BROKERS_SERVE_DATA_DIR") or os.environ.get("BROKERS_CONFIG"):
                return self
            name = context_cli.in_use()
            if name is None:
                return self
        said = dict(context_cli.context(name))
        if self.token_file is not None or self.user is not None:  # another login than the context's
            said = {flag: value for flag, value in said.items() if flag not in context_cli.LOGIN}
        own = {flag: value for flag, value in attrs.asdict(self).items() if value is not None}
        return attrs.evolve(ServerAddress(**{**said, **own}), context=None)

    def client(self) -> "AdminClient":
        """What asks it. Raises UsageError and Failure."""
        server = self.resolved()
        from brokers import control

        if server.url is None:
            assert server.data_dir is not None
            return control.socket_client(server.data_dir)
        control.address_in(server.url)  # a mistake in it is told before a password is asked for
        return control.port_client(server.url, server._authorization(), server._tls)

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
