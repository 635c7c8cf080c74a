"""DMP's settings: section `[dmp]`."""

import hmac
from collections.abc import Mapping
from typing import ClassVar, Self

import attrs
from attrs import validators

from dmp.timing import EtaHeaders
from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import GIB, KIB, MIB, RESTART, limit

LOCAL = "guest"  # its first password is public, so it may log in from loopback only, as with RabbitMQ


@attrs.frozen
class Users:
    """Users, written `NAME:PASSWORD` with commas between. Only their names are ever shown."""

    secret: ClassVar[bool] = True  # errors do not quote a secret setting
    _passwords: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, which repeats nothing of the text."""
        if text.lstrip()[:1] in ("[", "{"):  # as other settings may be given in a variable; not these
            raise ValueError("users are text, not a list: NAME:PASSWORD with commas between")
        passwords: dict[str, str] = {}
        for part in text.split(","):
            name, colon, password = part.strip().partition(":")
            if not name or not colon or name in passwords:
                raise ValueError("users are NAME:PASSWORD with commas between, each name once")
            passwords[name] = password
        return cls(passwords)

    def allow(self, name: str, password: bytes, *, near: bool) -> bool:
        """Whether that is right, and the place is, too: `near` is this machine. A name that nobody has takes
        as long as a wrong password."""
        known = self._passwords.get(name)
        right = hmac.compare_digest(password, (known or "").encode()) and known is not None
        return right and (near or name != LOCAL)

    @property
    def from_afar(self) -> bool:
        """Whether anybody may log in from other machines."""
        return any(name != LOCAL for name in self._passwords)

    def __str__(self) -> str:
        return ", ".join(f"{name}:***" for name in self._passwords)


@attrs.frozen
class DmpSettings:
    """Section `[dmp]`: the AMQP principal, its exchanges and its queues."""

    port: int = limit(5672, 0, 65535, restart=True)
    """The TCP port; 0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; unset: that of `serve.host`."""
    users: Users = attrs.field(factory=lambda: Users.parse("guest:guest"), metadata=RESTART)
    """Users as `NAME:PASSWORD`, with commas between (PLAIN). Deprecated by the users file, and only in this
    version. They count only without a users file, and may do everything. `guest` may log in from loopback
    only, as with RabbitMQ."""
    prefer_direct: bool = False
    """Tell clients, by the server property `direct` = 1, to move bulk messages over DMP."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a durable declaration is answered and a persistent publish confirmed."""
    heartbeat_seconds: int = limit(60, 0, 3600)
    """The heartbeat that is proposed to clients, which decide; 0: none. RabbitMQ's default."""
    login_seconds: float = attrs.field(default=10.0, validator=validators.gt(0))
    """Where a login is required: the longest time from the connection to connection.open, or to the lease.
    Elsewhere, and as a maximum, `net.first_request_seconds` counts."""
    frame_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time from a frame's first byte to its last."""
    frame_bytes_max: int = limit(128 * KIB, 4096, MIB)
    """The largest frame, with the eight bytes around its payload; clients may ask for less. RabbitMQ's
    default."""
    channels_max: int = limit(2047, 1, 65535)
    """Channels on one connection. RabbitMQ's default."""
    message_bytes_max: int = limit(16 * MIB - 1, 1, 16 * MIB - 1)
    """The largest body by DMP, which has 24-bit lengths. Larger AMQP bodies are not held in memory: each is
    written to its own log as it comes."""
    body_bytes_max: int = limit(128 * MIB, 1, 512 * MIB)
    """The largest body by AMQP. RabbitMQ's default and maximum."""
    begun_bytes_max: int = limit(GIB, 1, 1 << 50)
    """Announced bytes of unfinished bodies above `message_bytes_max`, of all connections together. A
    connection that begins another above this is closed (506)."""
    exchanges_max: int = limit(10_000, 16, 1_000_000)
    """Exchanges, with the six that always exist."""
    queues_max: int = limit(50_000, 1, 1_000_000)
    """Queues, of all connections together."""
    bindings_max: int = limit(200_000, 1, 10_000_000)
    """Bindings of all exchanges together."""
    wild_words_max: int = limit(50_000, 0, 100_000_000)
    """The words of bindings to topic exchanges with more than three wildcards, all together. One key can
    be made to match against all of them: 50,000 words cost some 20 ms."""
    consumers_max: int = limit(4096, 1, 65535)
    """Consumers on one connection."""
    unacked_max: int = limit(100_000, 1, 10_000_000)
    """Unacknowledged deliveries on one channel without a lower prefetch; above it deliveries wait."""
    transaction_messages_max: int = limit(4096, 1, 1_000_000)
    """Messages in one transaction, counted once for each of their queues; a rejection that makes a dead
    letter counts as 32. A commit is one step of the loop: so many messages take some 25 ms."""
    transaction_bytes_max: int = limit(16 * MIB, 1, 1 << 30)
    """Bytes of their bodies, counted the same way; a single message may be larger. A commit is one journal
    entry."""
    leases_max: int = limit(10_000, 1, 1_000_000)
    """Leases of all applications together that are not used yet."""
    feed_bytes_max: int = limit(8 * MIB, 4096, 1 << 32)
    """Unsent bytes of a feed's connection; further messages wait in its queue."""
    memory_bytes_max: int = limit(512 * MIB, MIB, 1 << 50)
    """Bytes of all waiting messages. Above it publishers' connections are not read until a tenth is free.
    A connection with unacknowledged messages must be read, so its publishes are refused instead."""
    hot_bytes: int = limit(128 * MIB, 0, 1 << 50)
    """Bytes of waiting messages in memory, if durable queues have them on disk. Above it, messages behind a
    queue's front are only on disk, and are read back when they are due."""
    queue_warn_messages: int = limit(0, 0, 1 << 40)
    """A queue with more ready messages is logged and counted, and again only after it has halved. 0:
    never."""
    queue_drop_messages: int = limit(0, 0, 1 << 40)
    """Ready messages above which a queue drops new messages and counts them; 0: no limit."""
    eta_header: EtaHeaders = attrs.field(factory=EtaHeaders)
    """Which header of a message says when it is due, an ISO time or Unix seconds, for queues whose clients
    cannot set the argument `x-eta-header`: `PATTERN=HEADER` with commas between, such as `celery*=eta`."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[dmp.tls]`, in place of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[dmp.access]`: which clients must log in."""

    @property
    def logs_in(self) -> bool:
        """Without a users file every client logs in; DMP's own connections carry a lease that one who did was
        given. The user that is there at first is everybody's, and keeps nobody out."""
        return self.users.from_afar
