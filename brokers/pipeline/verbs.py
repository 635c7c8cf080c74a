"""`brokers pipeline ...`: each verb a Spark job, or a look at what one would read.

A verb imports what it needs when it is called: a list of commands must not wait for Spark.
"""

from typing import Annotated

from cyclopts import App, Parameter

Master = Annotated[
    str, Parameter(help="Where Spark runs: local[*], or a cluster's spark://host:port.", show_default=True)
]

app = App(
    name="pipeline",
    help="Logs as data: Spark jobs over what passed through (needs the extra spark).",
    help_epilogue="",
    help_format="plaintext",
)
