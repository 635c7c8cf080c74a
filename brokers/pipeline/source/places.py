"""Opening the place that a read's logs are at."""

from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import Options
from brokers.pipeline.source.origin import Origin


def open_place(options: Options, source: str) -> Origin:
    """`source`: one of the options' own."""
    return Folder(source, options.namespace)
