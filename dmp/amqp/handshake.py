"""How a connection begins: start, tune, open. Who may come in, and on what terms."""

import functools
import importlib.metadata
from typing import TYPE_CHECKING, Any

from pamqp import commands

from dmp.amqp.states import Event
from dmp.amqp.wire import encode
from dmp.refusals import Code, Refusal, shown

if TYPE_CHECKING:
    from dmp.amqp.session import AmqpSession

FRAME_BYTES_MIN = 4096
VHOST = "/"
_LOOPBACK = ("127.", "[::1]", "unix", "memory")
_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "consumer_priorities": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class Handshake:
    """One session's."""

    __slots__ = ("_session", "capabilities")

    def __init__(self, session: "AmqpSession") -> None:
        self._session = session
        self.capabilities: dict[str, Any] = {}

    def start(self) -> bytes:
        """Connection.Start, whole."""
        properties: dict[str, Any] = {
            "product": "Brokers",
            "version": _version(),
            "platform": "Python",
            "capabilities": _CAPABILITIES,
        }
        if self._session.broker.settings.prefer_direct:
            properties["direct"] = 1
        return encode(commands.Connection.Start(0, 9, properties, "PLAIN", "en_US"), 0)

    def start_ok(self, method: commands.Connection.StartOk) -> None:
        session = self._session
        if method.mechanism != "PLAIN":
            raise Refusal(Code.COMMAND_INVALID, f"mechanism {shown(method.mechanism.encode())} is not PLAIN")
        found = method.client_properties.get("capabilities")
        self.capabilities = found if isinstance(found, dict) else {}
        response: str | bytes = method.response  # bytes where it is not UTF-8
        user = self._login(response.encode() if isinstance(response, str) else response)
        if user is None:
            session.broker.counts.logins_refused += 1
            session.refused_login(tell=bool(self.capabilities.get("authentication_failure_close")))
            return
        session.step(Event.START_OK)
        session.user = user
        settings = session.broker.settings
        tune = commands.Connection.Tune(
            settings.channels_max, settings.frame_bytes_max, settings.heartbeat_seconds
        )
        session.connection.write(encode(tune, 0))

    def tune_ok(self, method: commands.Connection.TuneOk) -> None:
        session, settings = self._session, self._session.broker.settings
        channels, frame_bytes = method.channel_max, method.frame_max
        if channels > settings.channels_max:
            raise Refusal(Code.NOT_ALLOWED, f"channel_max {channels} is above {settings.channels_max}")
        if frame_bytes and not FRAME_BYTES_MIN <= frame_bytes <= settings.frame_bytes_max:
            limits = f"between {FRAME_BYTES_MIN} and {settings.frame_bytes_max}"
            raise Refusal(Code.NOT_ALLOWED, f"frame_max {frame_bytes} is not {limits}")
        session.step(Event.TUNE_OK)
        session.tuned(
            channels or settings.channels_max, frame_bytes or settings.frame_bytes_max, method.heartbeat
        )

    def open(self, method: commands.Connection.Open) -> None:
        session = self._session
        if method.virtual_host != VHOST:
            raise Refusal(Code.INVALID_PATH, f"vhost {shown(method.virtual_host.encode())} not found")
        session.step(Event.OPEN)
        session.opened()
        session.connection.write(encode(commands.Connection.OpenOk(), 0))

    def _login(self, response: bytes) -> str | None:
        """The user, if the name, the password and the place are right; all three are always looked at."""
        session = self._session
        fields = response.split(b"\0")
        if len(fields) != 3:
            return None
        _, name, password = fields
        user = name.decode(errors="replace")
        near = session.connection.peer.startswith(_LOOPBACK)
        return user if session.broker.settings.users.allow(user, password, near=near) else None


@functools.cache
def _version() -> str:
    """The package's; clients that compare versions need one where it runs from its source, too."""
    try:
        return importlib.metadata.version("brokers")
    except importlib.metadata.PackageNotFoundError:
        return "0"
