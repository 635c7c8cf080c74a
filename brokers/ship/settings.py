"""Section `[ship]`: where everything acknowledged is shipped to, and how. Off unless `url` names a bucket."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators

from shared.units import GIB, KIB, MIB, RESTART, limit

Ack = Literal["disk", "bucket"]
SCHEMES = ("s3", "gs", "az", "file")


def _seconds(default: float, least: float, most: float) -> Any:
    bounds = [validators.ge(least), validators.le(most)]
    return attrs.field(default=default, validator=bounds, metadata={**RESTART, "unit": "seconds"})


def _is_url(_: Any, field: "attrs.Attribute[Any]", value: str) -> None:
    scheme, separator, rest = value.partition("://")
    if value and (scheme not in SCHEMES or not separator or not rest.strip("/")):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"a bucket is named as s3://bucket/prefix; understood: {known}")


def _are_patterns(_: Any, field: "attrs.Attribute[Any]", value: Sequence[str]) -> None:
    for pattern in value:
        if ":" not in pattern and pattern != "*":
            raise ValueError(f"{pattern!r} is not PROTOCOL:NAME, as logmq:orders*: no answer would wait")


@attrs.frozen
class ShipSettings:
    """Section `[ship]`."""

    url: str = attrs.field(default="", validator=_is_url, metadata=RESTART)
    """The bucket and a prefix in it that no other server has: `s3://bucket/prefix`, `gs://`, `az://`, or
    `file:///` for a folder, on another disk. Empty: nothing is shipped."""
    endpoint: str = attrs.field(default="", metadata=RESTART)
    """The URL of a store that is not the provider's own (`http://127.0.0.1:8333`)."""
    region: str = attrs.field(default="", metadata=RESTART)
    """The bucket's region, where the store asks for one."""
    credentials: Path | None = attrs.field(default=None, metadata=RESTART)
    """A TOML file of what the store takes: for S3 a key and its secret. Without it the environment
    and the machine's role are asked."""
    interval: float = _seconds(1.0, 0.01, 3600)
    """How often what came is shipped, unless it fills an object (8 MiB) before; nothing is sent when nothing
    came. With `ack = "disk"` a machine that is lost takes so much with it at most, and the time of one
    request."""
    fold: float = _seconds(300.0, 1, 86400)
    """How often logs and a snapshot are shipped, so that a restore needs little of the journal."""
    part_bytes: int = limit(32 * MIB, 64 * KIB, 1 * GIB, restart=True)
    """The size of an object of logs' bytes, and of a WAL object at most. So much memory is needed, twice with
    `encrypt`."""
    retention_seconds: float = attrs.field(default=7 * 86400.0, validator=validators.ge(0), metadata=RESTART)
    """Instants of so long ago can be restored; what only older ones need is deleted."""
    retention_bytes: int = attrs.field(default=0, validator=validators.ge(0), metadata=RESTART)
    """The oldest instants are given up where the bucket has more bytes; 0: never for that."""
    delete: bool = attrs.field(default=True, metadata=RESTART)
    """Whether anything in the bucket is ever deleted. If not, no right to delete is needed."""
    ack: Ack = attrs.field(default="disk", metadata=RESTART)
    """`bucket`: an answer waits until the bucket has what it acknowledges, and nothing is ever lost with the
    machine. `disk`: what came since the last object may be."""
    ack_bucket: tuple[str, ...] = attrs.field(default=(), validator=_are_patterns, metadata=RESTART)
    """Patterns of `protocol:name`, as `logmq:orders.*` or `dms:*`, that are acknowledged by the bucket where
    the server is not."""
    on_fenced: Literal["", "stop", "serve"] = attrs.field(default="", metadata=RESTART)
    """What happens once another server ships to the bucket. `stop`: nothing more is acknowledged, as is usual
    where anything is acknowledged by the bucket. `serve`: all goes on, unshipped, as is usual else."""
    fencing: Literal["required", "none"] = attrs.field(default="required", metadata=RESTART)
    """`none` takes a store that cannot make an object only if there is none: two servers then overwrite each
    other's, unseen."""
    backlog: int = attrs.field(default=0, validator=validators.ge(0), metadata={**RESTART, "unit": "bytes"})
    """So much of the journal is kept while the bucket is away, or too slow; above it shipping begins anew
    with a snapshot, and instants between cannot be restored. 0: 10 % of the volume."""
    encrypt: Path | None = attrs.field(default=None, metadata=RESTART)
    """A file with 64 hexadecimal digits (`openssl rand -hex 32`): the key of AES-256-GCM over each object. A
    restore needs it; keep a copy elsewhere."""
    follow: bool = attrs.field(default=False, metadata=RESTART)
    """Follow the bucket instead of shipping to it: what another server ships is applied as it comes, and
    served to readers (`brokers follow`). Once the folder was promoted it ships, whatever this says."""
    restore_if_empty: bool = attrs.field(default=False, metadata=RESTART)
    """Make an empty data folder from the bucket, if there is something in it."""
    drill_every: float = _seconds(0.0, 0, 366 * 86400)
    """How often a restore is tried out, in a temporary folder, and compared with what is served; 0: never by
    itself (`brokers ship drill`)."""
    requests_per_hour_max: int = limit(0, 0, 1_000_000_000, restart=True)
    """Requests are spread so that an hour has no more; 0: no bound. It makes `interval` longer where needed,
    and is not for `ack = "bucket"`."""

    @property
    def acks_by_bucket(self) -> bool:
        """Whether any answer waits for the bucket."""
        return self.ack == "bucket" or bool(self.ack_bucket)

    @property
    def stops_when_fenced(self) -> bool:
        return self.on_fenced == "stop" or (not self.on_fenced and self.acks_by_bucket)

    def __attrs_post_init__(self) -> None:
        if self.on_fenced == "serve" and self.acks_by_bucket:
            raise ValueError(
                'on_fenced = "serve" cannot be kept with ack = "bucket": nothing would be answered'
            )
