"""What the worker of Spark's that looks for data sources imports: modules whose name begins with `pyspark_`.

This one has no data source, and keeps that worker quiet.
"""

from contextlib import suppress

with suppress(ImportError):  # on a driver that has our packages in no place that other Pythons know
    from brokers.pipeline import workers

    workers.hush()
