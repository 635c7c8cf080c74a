"""The options that commands of several protocols take. Nothing heavy is imported: commands start with it."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import attrs
from cyclopts import Parameter, Token

from shared.client.login import Login, login_of, url_of
from shared.errors import UsageError
from shared.local_path import local_path

if TYPE_CHECKING:
    from shared.client.dial import How

Command = TypeVar("Command", bound=Callable[..., Any])


def bound_port(usual: int, transport: str = "") -> Parameter:
    """The port of a server that the command starts; the settings check it."""
    help_ = f"Bind this port{transport} ({usual} unless set); 0 picks one."
    return Parameter(name=("--port", "-p"), help=help_)


def flag(help_: str, *names: str) -> Parameter:
    """A switch: given or not."""
    return Parameter(name=names or None, help=help_, negative="", show_default=False)


def at_least_one(_: type, number: int | None) -> None:
    """A validator, for numbers of things."""
    if number is not None and number < 1:
        raise ValueError("1 at least")


def _above_zero(_: type, seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise ValueError("more than 0 seconds")


def _a_port(_: type, number: int | None) -> None:
    if number is not None and not 1 <= number <= 65535:
        raise ValueError("a port is 1 to 65535")


def a_path(_: type, tokens: Sequence[Token]) -> Path:
    """A converter that refuses "" (`--data-dir "$UNSET"`), which pathlib would read as the current folder."""
    return local_path(tokens[0].value)


def a_file(_: type, tokens: Sequence[Token]) -> Path:
    """A converter that takes `-`, the standard input or output, and no flag that is mistyped."""
    given = tokens[0].value
    if given.startswith("-") and given != "-":
        raise ValueError(f"there is no flag {given}; a file is ./{given}")
    return local_path(given)


Json = Annotated[bool, flag("JSON, one object a line, instead of text.")]
Port = Annotated[int | None, Parameter(name=("--port", "-p"), help="Its port.", validator=_a_port)]
"""The port of a server to connect to."""
Max = Annotated[
    int | None, Parameter(name=("--max", "-n"), help="Stop after so many messages.", validator=at_least_one)
]
Timeout = Annotated[
    float | None,
    Parameter(
        name="--timeout",
        help="End once no message came for so many seconds; the exit code is 75 if --max asks for more.",
        validator=_above_zero,
    ),
]
Words = Annotated[
    str, Parameter(name="MESSAGES", help="Messages; without any, each line of standard input is one.")
]
Messages = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--message", "-m"),
        help="A message, also one that begins with a hyphen; repeatable.",
        negative="",
        show_default=False,
        allow_leading_hyphen=True,
    ),
]
Whole = Annotated[bool, flag("All of standard input is one message.")]
Raw = Annotated[bool, flag("The messages' bytes as they are, nothing between.")]
Tls = Annotated[bool, flag("Speak TLS; so it is where the settings say that the server does.")]
Ca = Annotated[Path | None, Parameter(help="PEM: trust this authority; implies --tls.", converter=a_path)]
Certificate = Annotated[
    Path | None, Parameter(help="PEM: our own certificate, for mutual TLS.", converter=a_path)
]
_KEY = "PEM: its key, if not in the same file."
Key = Annotated[Path | None, Parameter(name=("--key", "--key-file"), help=_KEY, converter=a_path)]
KeyFile = Annotated[Path | None, Parameter(name="--key-file", help=_KEY, converter=a_path)]
"""The certificate's key, for commands whose `--key` means something else."""
User = Annotated[str | None, Parameter(help="Log in as this user (BROKERS_USER).")]
PasswordFile = Annotated[
    Path | None,
    Parameter(
        help="The file whose first line is the user's password (BROKERS_PASSWORD_FILE).", converter=a_path
    ),
]

_AT = ("--host", "--url")
_ADMIN_URL = "http(s)://HOST:15800"
Host = Annotated[
    str | None,
    Parameter(
        name=_AT,
        help="The server: the host of the protocol's port, this machine unless set (client.host); "
        f"PROTOCOL[+tls]://USER@HOST:PORT, as logmq+tls://ann@broker:8080; or its admin port, {_ADMIN_URL}.",
    ),
]
AdminUrl = Annotated[str | None, Parameter(name=_AT, help=f"The server by its admin port: {_ADMIN_URL}.")]
"""The same for a command that asks the API alone."""
Context = Annotated[str | None, Parameter(help="The server of this context (BROKERS_CONTEXT).")]
TokenFile = Annotated[
    Path | None, Parameter(help="Log in to the admin port with the token in this file.", converter=a_path)
]
Hidden = Parameter(show=False)
"""Of a flag that a command takes only to refuse it with words."""


def speaks_for(*flags: str) -> Callable[[Command], Command]:
    """Declare that a command with one of these flags speaks its protocol, and does not ask the API.

    Where a context or a flag names an admin port, the server says there where its protocol listens.
    """

    def declare(command: Command) -> Command:
        command.speaks_for = flags  # type: ignore[attr-defined]
        return command

    return declare


@attrs.frozen(kw_only=True)
class Place:
    """Where a server is.

    The host gives a command with a parameter of this class, or of `Server`, the flags for it. The command
    gets the result of flags, environment and settings, the same way for every protocol.
    """

    host: str
    port: int
    settings: Any = None
    """The protocol's limits as set on this machine. A server elsewhere may have others."""

    def at(self, host: str | None, port: int | None) -> Self:
        """This place with another host and port, for commands that take these in a form of their own."""
        return attrs.evolve(self, host=host or self.host, port=port or self.port)


@attrs.frozen(kw_only=True)
class Server(Place):
    """Where a server is, and how to connect to it.

    `pinned`: the certificate of this machine's own server, from its settings. It is trusted whatever name it
    holds. Unless the user named the host (`named`), no other certificate is.
    """

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    pinned: Path | None = None
    named: bool = True
    user: str | None = None
    password_file: Path | None = None

    def at(self, host: str | None, port: int | None) -> Self:
        return attrs.evolve(super().at(host, port), named=self.named or host is not None)

    def at_url(self, host: str | None, port: int | None, protocol: str) -> Self:
        """As `at`, but `host` may be a URL; parts missing from the URL stay as they are. Raises
        UsageError."""
        try:
            url = None if host is None else url_of(host, protocol)
        except ValueError as error:
            raise UsageError("IP", str(error)) from None
        if url is None:
            return self.at(host, port)
        files: dict[str, Any] = {name: Path(value) for name, value in url.files.items()}
        server = self.at(url.host, port or url.port)
        return attrs.evolve(server, tls=url.tls or self.tls, user=url.user or self.user, **files)

    def ssl_context(self) -> ssl.SSLContext | None:
        """None: no TLS. Raises UsageError for a file that cannot be read."""
        if not (self.tls or self.ca or self.certificate):
            return None
        from shared.client.dial import pinned_context, tls_context

        if self.pinned is not None and self.ca is None:
            pinned = pinned_context(self.pinned, certificate=self.certificate, key=self.key, named=self.named)
            if pinned is not None:
                return pinned
        return tls_context(True, self.ca, self.certificate, self.key)

    def login(self) -> Login:
        """The login from the flags and environment variables. Raises UsageError."""
        return login_of_flags(self.user, self.password_file, self.certificate)

    def given(self) -> dict[str, Any]:
        """The keyword arguments for any protocol's client. Raises UsageError."""
        return {"host": self.host, "port": self.port, **self.how()}

    def how(self) -> "How":
        """The login and TLS of these arguments. Raises UsageError."""
        login = self.login()
        return {"user": login.user, "password": login.password, "ssl_context": self.ssl_context()}


def login_of_flags(user: str | None, password_file: Path | None, certificate: Path | None = None) -> Login:
    """The login from these flags. Raises UsageError for a user without a password, or a password without a
    user."""
    try:
        login = login_of(user, None, password_file)
    except ValueError as error:
        raise UsageError("--password-file", str(error)) from None
    if password_file is not None and not login.user:
        raise UsageError("--password-file", "whose password it is says --user, or BROKERS_USER")
    if login.user and not login and certificate is None:
        raise UsageError("--user", "its password is in a file: --password-file, or BROKERS_PASSWORD_FILE")
    return login
