"""Opening the place that a read's logs are at."""

from brokers.pipeline.source.address import Server
from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import Options
from brokers.pipeline.source.origin import Origin
from brokers.pipeline.source.servers import Served


def open_place(options: Options, source: str) -> Origin:
    """`source`: one of the options' own."""
    if options.servers:
        return Served(Server.parse(source), options.reach)
    return Folder(source, options.namespace)
