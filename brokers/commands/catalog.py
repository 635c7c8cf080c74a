"""The host's own commands: where each is declared, and its line in the list of all.

Each is imported when it is called, so that no command pays for another's libraries.
"""

from collections.abc import Mapping

OBJECT_KINDS = (
    *("attention", "connections", "queues", "consumers", "topics", "groups"),
    *("sessions", "subscriptions", "retained", "exchanges", "bindings", "settings"),
)
"""Kinds that have a command which lists them (`shared.objects`, which a `--help` does not import)."""
NOUNS = {"attention": "troubles", "retained": "retained messages"}
"""What a list shows, where that is not the plural of its command's name."""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("commands.serve:serve", "Serve protocols until told to stop."),
    "config": ("commands.config:app", "Check settings, show them, or say what they are for."),
    "status": ("commands.server:status", "Show what runs on a data folder, or behind a URL."),
    "metrics": ("commands.server:metrics", "Print the running server's metrics, as Prometheus reads them."),
    "reload": ("commands.server:reload", "Have the running server take up what changed. All or nothing."),
    "drain": ("commands.server:drain", "Stop the running server as SIGTERM does."),
    "backup": ("commands.server:backup", "Copy a data folder, while it is served or not."),
    "fsck": ("commands.folder:fsck", "Check a data folder that no server uses."),
    "restore": ("commands.folder:restore", "Make a data folder from a backup, or from a bucket."),
    "ship": ("ship.cli:ship", "The bucket to which a server ships."),
    "follow": ("ship.cli:follow", "Follow a bucket: serve readers what another server ships."),
    "promote": ("ship.cli:promote", "Make a follower the server that ships and takes writes."),
    "log": ("commands.folder:log", "Look into the logs of a data folder; a server may be running."),
    **{kind: (f"commands.objects:{kind}", f"List the {NOUNS.get(kind, kind)}.") for kind in OBJECT_KINDS},
    "chart": ("commands.chart:chart", "Show the charts of queues, topics, groups, bridges or connections."),
    "logs": ("commands.follow:logs", "Show the running server's log."),
    "trace": ("commands.follow:trace", "Show copies of messages that pass a name."),
    "find": ("commands.find:find", "Find the messages of queues and topics that have a text in them."),
    "kick": ("commands.objects:kick", "Close connections."),
    "context": ("commands.context:app", "Servers by name, for the commands that ask a running one."),
    "definitions": (
        "commands.definitions:app",
        "Users, topics, exchanges, queues, bindings, groups and bridges of a server, as a file.",
    ),
    "user": ("commands.user:app", "Users: who may log in, and what each may do."),
    "replay": (
        "replaying.cli:replay",
        "Send messages of the past again: recorded traffic, a log, or an archive.",
    ),
    "bench": ("bench.cli:bench", "Load a server, its own or one that runs, and show what it does."),
    "conform": (
        "conform.cli:conform",
        "Play a protocol's golden bytes against a server or a client, and say what differs.",
    ),
    "bridge": ("bridges.cli:app", "Bridges: messages that came in by one protocol go out by another."),
    "pipeline": (
        "pipeline.cli:app",
        "Logs as data: Spark over what passed through (needs the extra spark).",
    ),
    "completion": ("commands.cli:completion", "Print a completion script for a shell."),
}
"""By name: the module below this package and the attribute that a call imports, and what it does."""

_SQL = "brokers pipeline sql DATA"
_SPARKS = "Spark's own, from its package: spark-class org.apache.spark.deploy"
_BENCH = "brokers bench PROTOCOL"
_SWEEP = "python -m tests.bench.sweep, in the source tree"
REMOVED: Mapping[str, str] = {
    "top": "brokers queues --watch",
    "log verify": "brokers log dump NAMESPACE NAME, which tells damage, or brokers fsck",
    "call": "the protocol's own commands, or the API (/api/v1/openapi.json describes it)",
    "bench net": _BENCH,
    "bench floor": _SWEEP,
    "bench recording": _BENCH,
    "bench bridge": _BENCH,
    "bench routing": _BENCH,
    "bench pipeline": _BENCH,
    "bench all": _SWEEP,
    "bench compare": "python -m tests.bench.compare, in the source tree",
    "pipeline throughput": f"{_SQL} throughput",
    "pipeline latency": f"{_SQL} latency",
    "pipeline lag": f"{_SQL} lag (of a running server: brokers groups)",
    "pipeline anomaly": f"{_SQL}, with a query of your own",
    "pipeline decode": f"{_SQL} 'SELECT * FROM dms.lives'",
    "pipeline replay": "brokers replay",
    "pipeline master": f"{_SPARKS}.master.Master",
    "pipeline worker": f"{_SPARKS}.worker.Worker",
}
"""Commands of the release before, and what to use instead. They are named for one release."""
