"""Which engine gives an answer: this process, where there is little to read, else Spark.

A JVM takes ten seconds and more to begin with: longer than a gigabyte takes to be read and added up here.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import attrs
from cyclopts import Parameter

from brokers.pipeline.jobs.where import Reading, Where
from shared.errors import UsageError
from shared.tables.table import TooMany

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokers.pipeline.jobs.offers import Offered

_T = TypeVar("_T")


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class FewRows(Reading):
    """The options of commands whose answers are a few rows."""

    engine: Annotated[
        Literal["local", "spark"] | None,
        Parameter(help="local: without Spark. Else by how much is to be read.", show_default=False),
    ] = None


def answered(
    what: str,
    asking: FewRows,
    where: Where,
    chosen: "Iterable[Offered]",
    answer: "Callable[[SparkSession | None], _T]",
) -> _T:
    """What `answer` says, given a session, or None to do without. `chosen`: what it reads.

    Raises UsageError, and what `spark_for` does.
    """
    little = is_little(where, chosen)
    if is_local(asking, little):
        try:
            return answer(None)
        except TooMany as error:
            if asking.engine == "local":
                raise UsageError("--engine", f"{error}, which is for Spark: --engine spark") from None
            little = False
    from brokers.pipeline.jobs.running import spark_for

    with spark_for(what, asking.master, asking.lean if little else asking.config) as spark:
        return answer(spark)


def is_local(asking: FewRows, little: bool) -> bool:
    """What is asked for, or what fits: no settings of Spark's, and little to read. Raises UsageError."""
    is_sparks = bool(asking.conf) or asking.master != FewRows().master
    if asking.engine == "local" and is_sparks:
        raise UsageError("--engine", "--master and --conf are Spark's, and local is without it")
    if asking.engine is not None or is_sparks:
        return asking.engine == "local"
    return little


def is_little(where: Where, chosen: "Iterable[Offered]") -> bool:
    """Whether there is little to read for these tables. Raises as reading them does."""
    from brokers.pipeline.jobs import tables

    return tables.size(where, chosen) <= tables.BYTES_MAX
