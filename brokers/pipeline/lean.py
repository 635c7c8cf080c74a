"""Settings with which Spark comes sooner to an end, where it runs on this machine.

They are for what a verb knows of its work: that there is little of it, or that it comes bit by bit. A
cluster's settings are its own, and who has a SPARK_CONF_DIR has said what he wants.
"""

import os
from collections.abc import Mapping

_PARTITIONS = "spark.sql.shuffle.partitions"
_JAVA = "spark.driver.extraJavaOptions"


def little(given: Mapping[str, str], master: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For little data, most of whose time is the JVM's start: `given`, and what goes with it.

    Java's first compiler and a collector without threads; the better ones are not worth waiting for.
    """
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return _with({_PARTITIONS: "2", _JAVA: java}, given, master, environ)


def bit_by_bit(
    given: Mapping[str, str], master: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """For a stream, each of whose batches runs as many tasks as there are partitions, rows or not."""
    return _with({_PARTITIONS: str(os.cpu_count() or 2)}, given, master, environ)


def _with(
    ours: Mapping[str, str], given: Mapping[str, str], master: str, environ: Mapping[str, str]
) -> dict[str, str]:
    if not master.startswith("local") or "SPARK_CONF_DIR" in environ:
        return dict(given)
    return {**ours, **given}
