"""DMP's settings: section `[dmp]`."""

import hmac
from collections.abc import Mapping
from typing import ClassVar, Self

import attrs
from attrs import validators

from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import GIB, KIB, MIB, RESTART, limit

LOCAL = "guest"  # whose password everybody knows at first. Comes from loopback only, as with RabbitMQ.


@attrs.frozen
class Users:
    """Users, written `NAME:PASSWORD` with commas between. Only their names are ever shown."""

    secret: ClassVar[bool] = True  # what is wrong with such a setting is said without it
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
    """Section `[dmp]`: the AMQP principal, and what holds for its exchanges and queues."""

    port: int = limit(5672, 0, 65535, restart=True)
    """0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; else as `serve.host` has it."""
    users: Users = attrs.field(factory=lambda: Users.parse("guest:guest"), metadata=RESTART)
    """`NAME:PASSWORD`, with commas between (PLAIN): from before there was a users file, and for this version
    only. They count where there is no users file, and may do everything. `guest` comes from loopback only, as
    with RabbitMQ."""
    prefer_direct: bool = False
    """Tell clients, by the server property `direct` = 1, to move bulk messages over DMP."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a durable declaration is answered and a persistent publish confirmed."""
    heartbeat_seconds: int = limit(60, 0, 3600)
    """Proposed to clients, who decide; 0: none. RabbitMQ's default."""
    login_seconds: float = attrs.field(default=10.0, validator=validators.gt(0))
    """From the connection's first moment to connection.open."""
    frame_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """A frame begun is finished within."""
    frame_bytes_max: int = limit(128 * KIB, 4096, MIB)
    """A frame with its eight bytes around the payload; clients may ask for less. RabbitMQ's default."""
    channels_max: int = limit(2047, 1, 65535)
    """On one connection. RabbitMQ's default."""
    message_bytes_max: int = limit(16 * MIB - 1, 1, 16 * MIB - 1)
    """One body by DMP: what its 24-bit lengths can say. AMQP's above that are not held in memory: each is
    written to a log of its own as it comes."""
    body_bytes_max: int = limit(128 * MIB, 1, 512 * MIB)
    """One body by AMQP. RabbitMQ's default, and the most that it takes."""
    begun_bytes_max: int = limit(GIB, 1, 1 << 50)
    """Bodies above `message_bytes_max` that have begun and are not all there, of all connections together, as
    announced; beyond it the connection that begins another is closed (506)."""
    exchanges_max: int = limit(10_000, 16, 1_000_000)
    """The six that are there from the start are among them."""
    queues_max: int = limit(50_000, 1, 1_000_000)
    """Of all connections together."""
    bindings_max: int = limit(200_000, 1, 10_000_000)
    """Of all exchanges together."""
    wild_words_max: int = limit(50_000, 0, 100_000_000)
    """The words of bindings to topic exchanges with more than three wildcards, all together. One key can
    be made to match against all of them: 50,000 words cost some 20 ms."""
    consumers_max: int = limit(4096, 1, 65535)
    """On one connection."""
    unacked_max: int = limit(100_000, 1, 10_000_000)
    """On one channel, where it has set no lower prefetch: then deliveries wait for acknowledgements."""
    transaction_messages_max: int = limit(4096, 1, 1_000_000)
    """Published in one transaction, counted once for each queue they go to; a rejection that makes a dead
    letter counts as 32. A commit is one stretch of work: so many messages take some 25 ms."""
    transaction_bytes_max: int = limit(16 * MIB, 1, 1 << 30)
    """Their bodies, counted so, too; a single message may be larger. A commit is one entry of the journal."""
    leases_max: int = limit(10_000, 1, 1_000_000)
    """Of all applications together, not used yet."""
    feed_bytes_max: int = limit(8 * MIB, 4096, 1 << 32)
    """What a feed's connection may have unsent; what is more waits in its queue."""
    memory_bytes_max: int = limit(512 * MIB, MIB, 1 << 50)
    """All waiting messages together. Above it publishers' connections are not read until a tenth is free;
    a publish from one that itself holds unacknowledged messages, which would then never be read, is
    refused."""
    hot_bytes: int = limit(128 * MIB, 0, 1 << 50)
    """Of these, as long as durable queues have what came on disk: above it what is behind a queue's front is
    there alone, and is read back when its turn comes."""
    queue_warn_messages: int = limit(0, 0, 1 << 40)
    """A queue with more ready messages is logged and counted; again only after it has halved. 0: never."""
    queue_drop_messages: int = limit(0, 0, 1 << 40)
    """Ready messages above which a queue drops what comes new, counted; 0: none."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[dmp.tls]`: instead of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[dmp.access]`: who has to log in here."""

    @property
    def logs_in(self) -> bool:
        """Without a users file every client logs in; DMP's own connections carry a lease that one who did was
        given. The user that is there at first is everybody's, and keeps nobody out."""
        return self.users.from_afar
