"""`brokers pipeline ...`: each command a Spark job, or a look at what one would read.

A command imports what it needs when it is called: a list of commands must not wait for Spark.
"""

from cyclopts import App

from brokers.pipeline.jobs import cli as jobs

app = App(
    name="pipeline",
    help="Logs as data: Spark jobs over what passed through (needs the extra spark).",
    help_epilogue="""Examples:

    brokers pipeline doctor
    brokers pipeline archive /srv/archive --path /srv/brokers --once
    brokers pipeline report /srv/brokers --to page""",
    help_format="plaintext",
)

app.command(
    "brokers.pipeline.archive.cli:archive",
    name="archive",
    help="Write logs to Parquet, by topic and date, each record exactly once.",
    help_epilogue="""Examples:

    brokers pipeline archive /srv/archive --path /srv/brokers --once
    brokers pipeline archive /srv/archive --servers 127.0.0.1:8080 --topics a,b
    brokers pipeline archive /srv/archive --path /srv/brokers --namespace dms""",
)
app.command(
    "brokers.pipeline.archive.cli:archived",
    name="archived",
    help="Show what is in an archive, and hold its files against its manifest.",
    help_epilogue="Examples:\n\n    brokers pipeline archived /srv/archive --json",
)
app.command(
    "brokers.pipeline.doctor:doctor",
    name="doctor",
    help="Say what Spark jobs need here, what of it is missing, and how to get it.",
    help_epilogue="""Examples:

    brokers pipeline doctor
    brokers pipeline doctor --start --json | jq 'select(.state != "ok")'""",
)
app.command(
    "brokers.pipeline.cluster:master",
    name="master",
    help="Be the master of a Spark cluster, until told to stop.",
    help_epilogue="""Examples:

    brokers pipeline master
    brokers pipeline master --host 10.0.0.1 --secret-file secret""",
)
app.command(
    "brokers.pipeline.cluster:worker",
    name="worker",
    help="Be a worker of a Spark cluster, until told to stop.",
    help_epilogue="""Examples:

    brokers pipeline worker spark://127.0.0.1:7077 --cores 2
    brokers pipeline worker spark://10.0.0.1:7077 --secret-file secret""",
)
jobs.add_commands(app)
