"""`brokers bench ...`: one line a benchmark; each is imported when it is run."""

from shared.cli.app import examples, protocol_app

app, _ = protocol_app(
    "bench", "Measure this machine: the network layer, or a protocol's server.", "net", "net --json"
)


def _add(name: str, help_: str, *words: str) -> None:
    """`words`: what may follow the name, in examples."""
    lines = examples("brokers bench", *(name + each for each in words))
    app.command(f"brokers.bench.{name}:bench", name=name, help=help_, help_epilogue=lines)


_add("floor", "This machine alone: disk, loopback, memory.", "", " --data-dir /srv/brokers --json")
_add("net", "The two drivers, without a protocol or a disk.", "", " --clients 200 --json", " --idle 10000")
_add(
    "logmq",
    "LogMQ, beside this disk and redis.",
    "",
    " --modes produce --size 1000 --json",
    " --sweep --seconds 0.5 --picture logmq.png",
    " --data-dir /srv/brokers",
)
_add(
    "all",
    "Every protocol at every size, beside its peers and a server without a broker.",
    " --picture ratios.png",
    " --protocols logmq kqmsgq --sizes 100 --clients 30 --json",
)
_add(
    "compare",
    "This environment's servers beside another's: what changed beyond noise.",
    " /srv/other/.venv/bin/python --protocols logmq --json",
)
_add("bridge", "Bridges, beside the slower of their two ends alone.", "", " --modes logmq-dms --json")
_add("dmp", "DMP, beside basic.publish, redis and nats.", "", " --readers 1 --size 1024 --json")
_add("dms", "DMS, beside beanstalkd and redis.", "", " --json")
_add("kqmsgq", "KqueueMsgQ, beside nats-server.", "", " --modes fan-out --json")
_add(
    "pipeline",
    "Spark over logs, beside a source of tuples and Spark's text source.",
    "",
    " --megabytes 1000 --json",
)
_add("pubsub", "Pub/sub, beside mosquitto and a bare loop.", "", " --modes intake --rate 300000 --json")
_add(
    "recording",
    "Recording what passes through, beside the same protocols not recorded.",
    "",
    " --protocols kqmsgq --json",
    " --data-dir /srv/brokers",
)
_add("routing", "The routing index, one thread.", "", " --subscriptions 100000 --json")
