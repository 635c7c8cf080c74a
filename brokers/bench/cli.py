"""`brokers bench ...`: one line a benchmark; each is imported when it is run."""

from cyclopts import App

app = App(
    name="bench",
    help="Measure this machine: the network layer, or a protocol's server.",
    help_epilogue="Examples:\n\n    brokers bench net\n    brokers bench net --json",
    help_format="plaintext",
)
app.command("brokers.bench.net:bench", name="net", help="The two drivers, without a protocol or a disk.")
app.command("brokers.bench.logmq:bench", name="logmq", help="LogMQ, beside this disk and redis.")
app.command("brokers.bench.dms:bench", name="dms", help="DMS, beside beanstalkd and redis.")
app.command("brokers.bench.routing:bench", name="routing", help="The routing index, one thread.")
