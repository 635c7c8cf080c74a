"""`brokers pipeline ...`: each command is a Spark job, or a look at what one would read.

A command imports what it needs when it is called, so that a list of commands does not wait for Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokers.pipeline import cluster, doctor
from brokers.pipeline.archiving import cli as archiving
from brokers.pipeline.jobs import cli as jobs
from shared.cli.app import protocol_app

app, command = protocol_app(
    "pipeline",
    "Logs as data: Spark jobs over what passed through (needs the extra spark).",
    "doctor",
    "archive /srv/archive --path /srv/brokers --once",
    "report /srv/brokers --to page",
)

_EXAMPLES: Mapping[Callable[..., Any], Sequence[str]] = {
    archiving.archive: (
        "archive /srv/archive --path /srv/brokers --once",
        "archive /srv/archive --servers 127.0.0.1:8080 --topics a,b",
        "archive /srv/archive --path /srv/brokers --namespace dms",
    ),
    archiving.archived: ("archived /srv/archive --json",),
    doctor.doctor: ("doctor", "doctor --start --json | jq 'select(.state != \"ok\")'"),
    cluster.master: ("master", "master --host 10.0.0.1 --secret-file secret"),
    cluster.worker: (
        "worker spark://127.0.0.1:7077 --cores 2",
        "worker spark://10.0.0.1:7077 --secret-file secret",
    ),
    jobs.tables: ("tables",),
    jobs.decode: (
        "decode data lives --limit 5",
        "decode data lives --to lives.parquet",
        "decode data events --follow --json | jq .event",
        "decode --servers 10.0.0.1,10.0.0.2 volumes",
    ),
    jobs.throughput: (
        "throughput data",
        "throughput /srv/one /srv/two --window '10 seconds' --json",
        "throughput --servers 127.0.0.1:8080",
        "throughput data --follow --window '10 seconds'",
    ),
    jobs.latency: ("latency data", "latency data --window '1 hour' --json"),
    jobs.lag: (
        "lag data",
        "lag --servers 127.0.0.1:8080 --groups billing,audit",
        "lag data --json | jq 'select(.messages > 1000)'",
    ),
    jobs.anomaly: (
        "anomaly data",
        "anomaly data --window '10 seconds' --tolerance 8",
        "anomaly data --protocol pubsub --all --json",
    ),
    jobs.report: ("report data", "report data --to page --window '10 minutes'"),
}
for _command, _lines in _EXAMPLES.items():
    command(*_lines)(_command)
