"""Keeps Spark's lookup worker quiet, which imports every module whose name begins with `pyspark_*`.

It has no data source.
"""

from contextlib import suppress

with suppress(ImportError):  # the driver's packages may be where this Python does not look
    from brokers.pipeline import workers

    workers.hush()
