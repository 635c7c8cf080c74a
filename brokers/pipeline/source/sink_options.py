"""The sink's options, parsed and checked: no file, socket or Spark here. What is wrong is a ConfigError."""

from collections.abc import Mapping

import attrs

from brokers.pipeline.source.address import Reach, Server, parse_servers
from brokers.pipeline.source.options import REACH_NAMES, Given, count, reach, served_name, size
from logmq.connector import NAME_BYTES_MAX, SKIPPED_BODY_BYTES_MAX, Refusal, name_untrusted
from shared.errors import ConfigError

BATCH_BYTES = 1024 * 1024
"""What a server with the usual settings takes at once."""
_WRITER_BYTES_MAX = NAME_BYTES_MAX - 40
"""Room for the numbers of a partition and a group that are put behind it."""
_EPOCH_MAX = (1 << 55) - 1
"""So that its batches' seqs, 128 for each epoch, are numbers for the wire."""

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of any stream, which Spark hands on."""
NAMES = ("servers", *REACH_NAMES, "topic", "writer", "epoch", "batchBytes")


@attrs.frozen
class SinkOptions:
    """Where rows go, and under which name they are written once (`writer`; None: the query's own)."""

    server: Server
    reach: Reach
    topic: str | None = None
    writer: str | None = None
    epoch: int = 0
    batch_bytes: int = BATCH_BYTES


def parse(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check everything. Raises ConfigError."""
    if any(name.lower() == "path" for name in given):
        raise ConfigError("path", "a data folder is its broker's to write; give its address (servers)")
    ours = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
    options = Given(ours, NAMES, "the sink")
    servers = options.take("servers", parse_servers, ())
    if len(servers) != 1:
        raise ConfigError("servers", "one broker's address is needed, host:port, to write to")
    if streaming and options.has("epoch"):
        raise ConfigError("epoch", "a stream counts its epochs itself; only a batch takes this")
    if options.has("epoch") and not options.has("writer"):
        raise ConfigError("epoch", "is a number of the option writer, which is missing")
    return SinkOptions(
        servers[0],
        reach(options),
        options.take("topic", served_name, None),
        options.take("writer", _writer, None),
        options.take("epoch", _epoch, 0),
        options.take("batchBytes", _batch_bytes, BATCH_BYTES),
    )


def _writer(text: str) -> str:
    try:
        name = name_untrusted(text.encode(), "writer")
    except Refusal as error:
        raise ValueError(error.text) from None
    if len(name) > _WRITER_BYTES_MAX:
        raise ValueError(f"longer than {_WRITER_BYTES_MAX} letters")
    return name


def _epoch(text: str) -> int:
    number = 0 if text.strip() == "0" else count(text)
    if number > _EPOCH_MAX:
        raise ValueError(f"above {_EPOCH_MAX}")
    return number


def _batch_bytes(text: str) -> int:
    number = size(text)
    if number > SKIPPED_BODY_BYTES_MAX:
        raise ValueError(f"above {SKIPPED_BODY_BYTES_MAX}, the most that the wire carries at once")
    return number
